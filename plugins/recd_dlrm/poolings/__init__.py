"""Poolings, from sequences to vectors: one file per way of pooling."""
