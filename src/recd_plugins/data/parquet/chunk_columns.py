"""Which column each chunk of a row group is of.

A chunk's path joins names by dots, and names may have dots themselves: `a.b` may be a column, or
the field b of a column a. So chunks are counted by the columns' types.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["column_of_each_chunk"]


def column_of_each_chunk(columns: pa.Schema) -> list[str]:
    """The names of a file's columns, each as often as it has chunks, in the order of the chunks."""
    return [column.name for column in columns for _ in range(_chunks_of(column.type))]


def _chunks_of(kind: pa.DataType) -> int:
    """How many chunks a column of a type has in a row group: one for each type within it that is
    not nested."""
    if isinstance(kind, pa.BaseExtensionType):
        return _chunks_of(kind.storage_type)
    if not pa.types.is_nested(kind):
        return 1
    return sum(_chunks_of(kind.field(number).type) for number in range(kind.num_fields))
