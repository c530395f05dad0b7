"""Foreign files: what they are, what they hold, and how they become a table."""
