"""What is wrong with foreign files, found in one pass.

`file_check` has the whole check: whether the files are alike (`alike_files`), and each row by the
schema (`row_check`); and how many rows are there more than once (`repeated_rows`). `table_problems`
has what is found: where, what, and how to cure it.
"""
