"""What runs recorded and commands printed, drawn: one HTML page that needs nothing else."""
