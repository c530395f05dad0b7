"""Plans and profiles in files, and what changed between two."""
