"""Rows of jagged features: which are equal, which overlap, and how rows are picked."""
