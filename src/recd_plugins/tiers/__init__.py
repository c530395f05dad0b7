"""Replica tiers: copies of hot rows in front of the tables that TorchRec shards."""
