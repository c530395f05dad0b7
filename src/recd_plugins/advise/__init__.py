"""Advice on a registry: the additions that it could have, what each would bring, and which pay."""
