"""The places where files are: a disk, or a store that a URI names; and how faults of a store are
reported."""
