"""The collections that TorchRec sharded, with tiers in front of their tables."""
