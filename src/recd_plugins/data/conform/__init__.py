"""Columns of somebody else's files become canonical ones: by kind of column, a chunk at a time."""
