"""The plugin's datasets: generated and public."""
