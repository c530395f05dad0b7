"""Rows of jagged features: which are equal, which overlap, and how rows are picked.

`unique` finds the equal rows of features, `deduplicate` the unique samples of groups of them,
`unique_samples` the same of samples whose rows a `pool` has numbered, and `repeats` the rows that
equal the one before. `coalesce` finds the different ids. `shared` lays rows over each other.
`gather` copies rows of ids, those of many features into `blocks`; `take` copies rows of one width,
and `sums` adds them up. `counted` keeps what is known of rows. Rows of a huge table are found in
`slots` of `slot_sizes`. `memory` and `bits` are for the kernels themselves.
"""
