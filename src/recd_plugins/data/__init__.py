"""What a row is, what a batch is, how batches come."""
