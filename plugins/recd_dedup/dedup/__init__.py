"""O3: converters of batches to IKJTs, and the advisor that chooses feature groups.

`converters` has the records. `chosen` has their groups: as given, or as the `advisor` finds them in
batches of a table (`sample`) or of the reader (`reading`). It weighs what a group saves against
what it costs (`worth`), by times that are measured on this device (`calibrate`).
"""
