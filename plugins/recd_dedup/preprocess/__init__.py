"""O4: transforms of ids, row by row."""
