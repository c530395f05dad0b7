"""DLRM: models, poolings and data."""
