"""O1: raw logs as shards, and the join of features with events."""
