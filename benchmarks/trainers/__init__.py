"""What recd_plugins is worth in trainers that others wrote, and in the plans of pooled tables."""
