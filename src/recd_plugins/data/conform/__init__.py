"""Columns of somebody else's files become conformed ones: by kind of column, a chunk at a time."""
