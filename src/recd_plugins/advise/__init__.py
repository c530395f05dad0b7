"""Advice on a registry: which additions it could have, what each would change, and which pay."""
