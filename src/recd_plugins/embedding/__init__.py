"""Modules that take an IKJT: embeddings of unique samples, poolings on them, models adapted."""
