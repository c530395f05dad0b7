"""Foreign files, which strangers wrote: what they are and hold, and how they become a table."""
