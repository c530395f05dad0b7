"""Foreign files: what they are, what they hold, and how they become a table.

`table_files` finds the files of a table, `formats` says what each is (`foreign_file`), and
`reading` yields their rows block by block: those of text by `text`, in the `column_types` that the
files of a table share, as a `text_form` says.

`surveying` looks at a sample of them, `proposing` suggests a schema, which `schema_file` keeps, and
`checking` finds what is wrong. `table_import` makes the table, in the segments of an
`import_folder`: its rows are split (`splits`, `row_split`), clicks get `negatives`, and features
without a vocabulary get one (`made_vocabularies`; without an import, by `vocabulary_pass`).
`made_otherwise` says by the schemas beside two tables what was made otherwise in one of them.
"""
