"""A Parquet file, from its bytes to Arrow tables.

`footer` reads what the file says of itself, under the table's names for its columns
(`footer_names`); `not_parquet` says what a file is that has no footer. `opened_file` reads columns
of row groups. Their chunks (`chunk_columns`) are fetched in few requests (`coalesced_reads`). Long
lists are decoded by `lists`: it cuts chunks into `pages`, whose bytes kernels read (`levels`,
`page_bytes`). Arrow decodes everything else. `left_out` puts back the lists that a table's writer
left out. `file_writer` writes a file. Footers and the headers of pages are written in `thrift`.
"""
