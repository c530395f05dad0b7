"""On the way there: which ids pass on, each once, and in whose hands."""
