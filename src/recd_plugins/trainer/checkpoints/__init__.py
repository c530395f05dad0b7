"""What a run keeps on disk and goes on from."""
