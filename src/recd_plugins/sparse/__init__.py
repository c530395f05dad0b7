"""Tensors: jagged operations, Arrow in and out."""
