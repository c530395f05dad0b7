"""Rows and batches: their schema, their tables, and how batches come."""
