"""Where rows go: topology and plan."""
