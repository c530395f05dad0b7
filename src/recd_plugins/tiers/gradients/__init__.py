"""Gradients of replicas: which rank has them for which rows, and how all ranks sum them."""
