"""RecD's characterization of a table."""
