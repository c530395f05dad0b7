"""Conversion of foreign columns to conformed ones: by kind of column, a chunk at a time."""
