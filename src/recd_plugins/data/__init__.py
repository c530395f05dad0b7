"""Rows and batches: their schema, their tables, and how batches come.

A `schema` says what the columns of a table mean, and `foreign` what those of other programs' files
do. A `table` has `stripes` in files, which `table_writer` writes and `rewrite` writes anew; it may
have a `selection` of its rows, columns that some files lack (`absent`) and features of a
`side_table`. `layout` says how it lies on disk, and `pins` keep a run from going on with another.

A `dataset` makes tables, or has them (`parquet_tables`); one that grows has a table for each period
(`growing`). The `reader` turns rows (`decoded`) into a `batch`, whose features are `columns` until
they are joined. Between processes it is a `wired_batch`, and a `kept_batch` on disk.
"""
