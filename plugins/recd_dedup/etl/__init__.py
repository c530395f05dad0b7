"""O2: clustering of tables by session, and downsampling.

`cluster` is the step. It `scan`s a table's rows in bounded memory, sends them to buckets on disk
(`spills`) and orders each bucket (`sort`). `parts` writes the files of the new table, and checks
each by a `checksum` of its rows (`row_hash`). `spark` orders rows by Spark instead. `downsample`
keeps a share of the sessions, or of the samples.
"""
