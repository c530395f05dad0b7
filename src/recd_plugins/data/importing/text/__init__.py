"""Text, delimited or lines of JSON, from its bytes to rows.

`encodings` decodes its bytes, and `whole_lines` cuts a file into lines with their numbers, with the
quotes of programs that escape them made plain (`escaped_quotes`). `delimited` finds by the first
lines what separates fields. `text_rows` and `json_rows` read lines as rows: the values of one field
may be a list (`text_lists`), and numbers with zeros before them are codes (`padded_codes`).
"""
