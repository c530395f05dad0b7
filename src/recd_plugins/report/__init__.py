"""The drawn report of what runs recorded and commands printed: one HTML page that needs nothing
else."""
