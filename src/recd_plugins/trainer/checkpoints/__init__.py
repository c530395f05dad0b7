"""The checkpoints that a run keeps on disk and goes on from."""
