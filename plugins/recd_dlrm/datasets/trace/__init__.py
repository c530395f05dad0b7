"""Synthetic traces: the dataset, stack distances, the LRU stack that takes them."""
