"""SCARS: coalescing, a cache of hot rows, hot and normal batches."""
