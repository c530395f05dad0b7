"""On the way back: rows and sums from all tiers, in the order they were asked for."""
