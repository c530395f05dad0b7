"""Trials on fresh ranks: the largest batch that fits, and how fast batches learn."""
