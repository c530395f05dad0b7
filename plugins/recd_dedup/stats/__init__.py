"""RecD's characterization of a table (section 3).

`measure` goes through a table by batches and by sessions (`session_rows`), `repeats` counts what
these repeat, and `session_report` says it beside the paper's figures.
"""
