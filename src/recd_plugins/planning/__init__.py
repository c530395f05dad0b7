"""Where rows go: how often they are looked up, what the cluster is, what a choice costs, the
plan."""
