"""A Parquet file, from its bytes to Arrow tables.

`opened_file` reads its footer, with the table's names for its columns (`footer_names`), and then
columns of its row groups. Their chunks (`chunk_columns`) are fetched in few requests
(`coalesced_reads`). Long lists are decoded by `lists`: it cuts chunks into `pages`, whose bytes
kernels read (`levels`, `page_bytes`). Arrow decodes everything else. `left_out` puts back the lists
that a table's writer left out.
"""
