"""SCARS' theory: what a batch, and an epoch, must move; and how much to cache of it."""
