"""What a sample of foreign files shows of their columns.

`sample` takes rows from places all over the files (of lines of JSON, by `json_sample`), and
`sampled_types` finds as which types these are read. `survey` says of each column what its values
seem to be (`column_survey`), in the few types that Arrow computes with (`few_types`), without what
lists are padded with (`filled_lists`). `asked_types` has the types by a schema that says more.
"""
