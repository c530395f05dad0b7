"""The schema that is proposed for foreign columns, and what is in doubt.

`proposal` has the whole of it, as YAML with comments. It gives each surveyed column an entry
(`column_entry`) by its name (`column_names`) and its values, as the time (`time_columns`), a label
(`label_columns`) or a feature (`feature_columns`, `whole_numbers`); and it doubts columns that know
the label beforehand (`leaks`).
"""
