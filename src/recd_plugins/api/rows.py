"""Fast operations on the rows of jagged tensors: for preprocessing, dedup and statistics."""

from recd_plugins.compat.kernels import kernel
from recd_plugins.sparse.keyed import with_feature, with_ids
from recd_plugins.sparse.rows.gather import spread_rows
from recd_plugins.sparse.rows.memory import array_like
from recd_plugins.sparse.rows.slot_sizes import MOST_IN_SLOTS, SLOT_BYTES
from recd_plugins.sparse.rows.slots import among_slots, slots_of
from recd_plugins.sparse.rows.unique import group_codes, unique_rows, unique_rows_of_parts

__all__ = [
    "MOST_IN_SLOTS",
    "SLOT_BYTES",
    "among_slots",
    "array_like",
    "group_codes",
    "kernel",
    "slots_of",
    "spread_rows",
    "unique_rows",
    "unique_rows_of_parts",
    "with_feature",
    "with_ids",
]
