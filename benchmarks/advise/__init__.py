"""What `recd advise` takes, and what its advice is worth against a search of registries."""
