"""Where files lie: on disk, or on a store that a URI names; and what its faults become."""
