"""A plan in words and in a picture: what its tiers take, and why not more."""
