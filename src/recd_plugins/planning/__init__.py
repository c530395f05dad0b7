"""The planning of where rows go: how often they are looked up, the cluster, the prices, the
plan."""
