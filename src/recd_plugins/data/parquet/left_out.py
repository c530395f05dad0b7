"""Lists of ids that equal the previous row's are left out of a table's files: a null stands for
each.

The footer of such a file names these columns under `LEFT_OUT`. The first row of a stripe always has
its lists. `OpenedFile` puts all others back, unless it is asked for each list once: then a column
is an Arrow dictionary array, whose values are the lists in the file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.errors import DataError

__all__ = ["LEFT_OUT", "LeavingOut", "expanded", "expanded_batches", "held_once", "lists_left_out"]

LEFT_OUT = b"recd_left_out"


def lists_left_out(footer: pq.FileMetaData, file: object) -> Mapping[str, int]:
    """The columns of a file that leave out lists, and how many ids each has when expanded."""
    text = (footer.metadata or {}).get(LEFT_OUT)
    if text is None:
        return {}
    try:
        return {str(name): int(ids) for name, ids in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: its footer's {LEFT_OUT.decode()!r}, which says which columns leave out "
            f"lists, cannot be read ({error}). Write the file again."
        ) from error


class LeavingOut:
    """Leaves lists of some columns out of a file that is being written."""

    def __init__(self, columns: Iterable[str]) -> None:
        self._ids = dict.fromkeys(columns, 0)

    def schema(self, arrow: pa.Schema) -> pa.Schema:
        """The types of the file's columns, of which some may now have nulls."""
        fields = (one.with_nullable(one.nullable or one.name in self._ids) for one in arrow)
        return pa.schema(fields, arrow.metadata)

    def stripe(self, rows: pa.Table) -> pa.Table:
        """The rows of a stripe as they are to be written."""
        for name in self._ids if rows.num_rows else ():
            at, lists = rows.column_names.index(name), _whole(rows[name])
            self._ids[name] += len(lists.flatten())
            rows = rows.set_column(at, rows.field(at).with_nullable(True), _without_repeats(lists))
        return rows

    def noted(self) -> dict[bytes, bytes]:
        """What the footer is to say of them."""
        return {LEFT_OUT: json.dumps(self._ids).encode()} if self._ids else {}


def _without_repeats(lists: pa.ListArray) -> pa.ListArray:
    """The lists, with a null in place of each that equals the one before."""
    from recd_plugins.sparse.rows.repeats import repeats  # numba: a second

    ids, offsets = lists.flatten().to_numpy(), lists.offsets.to_numpy()
    again = repeats(ids, offsets - offsets[0])
    if not again.any():
        return lists
    lengths = np.diff(offsets)
    held = ids[np.repeat(~again, lengths)]
    lengths[again] = 0
    bounds = np.zeros(len(offsets), offsets.dtype)
    np.cumsum(lengths, out=bounds[1:])
    return pa.ListArray.from_arrays(bounds, held, type=lists.type, mask=pa.array(again))


def held_once(rows: pa.Table, columns: Collection[str], where: str) -> pa.Table:
    """Rows as they lie in a file, from the start of a stripe on: those of `columns` that leave out
    lists become dictionaries of the lists in the file. `where` is for errors."""
    for at, name in enumerate(rows.column_names):
        if name in columns and rows[name].null_count:
            made = _dictionary(_whole(rows[name]), f"{where}: {name!r}")
            rows = rows.set_column(at, name, made)
    return rows


def expanded(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """The rows with all lists of `columns`, which leave out some."""
    for at, name in enumerate(rows.column_names):
        lists = rows[name]
        if name not in columns or lists.null_count:
            continue
        if pa.types.is_dictionary(lists.type) and pa.types.is_list(lists.type.value_type):
            whole = [chunk.dictionary.take(chunk.indices) for chunk in lists.chunks]
            lists = pa.chunked_array(whole, lists.type.value_type)
        rows = _with(rows, at, lists)
    return rows


def expanded_batches(
    batches: Iterable[pa.RecordBatch], columns: Collection[str], where: str
) -> Iterator[pa.RecordBatch]:
    """Rows that come in batches, from the start of a stripe on, with all lists of `columns`."""
    last: dict[str, pa.Array] = {}
    for batch in batches:
        for name in batch.schema.names if batch.num_rows else ():
            if name in columns:
                at = batch.schema.names.index(name)
                lists = _after(last.get(name), batch.column(at), f"{where}: {name!r}")
                batch = _with(pa.Table.from_batches([batch]), at, lists).to_batches()[0]
                last[name] = lists.slice(len(lists) - 1)
        yield batch


def _after(before: pa.Array | None, lists: pa.ListArray, where: str) -> pa.ListArray:
    """All lists; the first ones may be the list of the row before."""
    if not lists.null_count:
        return lists
    found = _dictionary(lists if before is None else pa.concat_arrays([before, lists]), where)
    return found.dictionary.take(found.indices).slice(before is not None)


def _with(rows: pa.Table, at: int, lists: pa.Array | pa.ChunkedArray) -> pa.Table:
    field = pa.field(rows.column_names[at], lists.type, nullable=False)
    return rows.set_column(at, field, lists)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece; a single piece is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _dictionary(lists: pa.ListArray, where: str) -> pa.DictionaryArray:
    from recd_plugins.sparse.rows.repeats import held_bounds  # numba: a second

    bits, offsets = np.frombuffer(lists.buffers()[0], np.uint8), lists.offsets.to_numpy()
    which, bounds = held_bounds(bits, lists.offset, offsets)
    if which[0] < 0:
        raise DataError(
            f"{where}: its first list is left out, but no row comes before it. The file was "
            "damaged, or a program changed it that does not know about lists that are left out: "
            "write it again."
        )
    held = pa.ListArray.from_arrays(bounds, lists.values, type=lists.type)
    return pa.DictionaryArray.from_arrays(which, held, safe=False)
