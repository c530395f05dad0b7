"""Synthetic traces: the dataset, stack distances, and the LRU stack that measures them."""
