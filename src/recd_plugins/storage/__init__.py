"""The places where files lie: a disk, or a store that a URI names; and what a store's faults
become."""
