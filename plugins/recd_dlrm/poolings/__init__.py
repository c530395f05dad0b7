"""Sequences to vectors: one file per way of pooling."""
