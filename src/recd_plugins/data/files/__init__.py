"""The files of a table, and what is known of each before its rows are read.

`found` finds them by folders, names and globs (`paths`), with the columns that the names of folders
give (`partitions`). If a program keeps a log of a folder's files (`logs`), its latest snapshot says
which files those are: `snapshots` asks for it, and each log is read by a file of its own
(`delta_snapshot`, `iceberg_snapshot`, `spark_snapshot`) with what all have in common
(`logged_tables`). For Iceberg, `iceberg_metadata` first finds which metadata file is the latest. A
log also says what the table calls the columns of a file (`delta_columns`, `iceberg_columns`).
`left_behind` refuses files that a log no longer lists, and
`missing_table` says what lies near a path at which there is nothing. `footers` reads the footers of
all files, and keeps them between runs.
"""
