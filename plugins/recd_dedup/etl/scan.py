"""A table's rows in order, in chunks of limited size, whatever the size of its stripes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recd_plugins.api import DataError, so_many
from recd_plugins.api.data import Location, Schema, Stripe, Table, check_columns

__all__ = ["checked_rows", "decoded_bytes", "require_sessions", "scan"]

ID_BYTES = 8
OFFSET_BYTES = 4


def require_sessions(schema: Schema, what: str, path: Location) -> str:
    """The column of the session; raises `DataError` if the table has none."""
    if schema.session_id is None:
        raise DataError(
            f"{path}: its schema names no session_id, but {what} works by session. Name the "
            f"column under `dataset.schema.session_id`, or take {what} out of `etl`."
        )
    return schema.session_id


def decoded_bytes(table: Table) -> int:
    """The memory that all rows take, computed from only the footers."""
    columns = table.file_columns(table.schema.columns)
    groups: dict[Location, list[int]] = {}
    for stripe in table.stripes:
        groups.setdefault(stripe.file, []).append(stripe.group)
    return sum(
        _group_bytes(opened.metadata, group, columns, opened.dedupe_factor)
        for file, of_file in groups.items()
        for opened in [table.opened(file)]
        for group in of_file
    )


def scan(table: Table, chunk_bytes: int, skip: int = 0) -> Iterator[pa.Table]:
    """The rows from row number `skip` on, in chunks of about `chunk_bytes`."""
    for location, there in groupby(_stripes_from(table, skip), key=lambda part: part[0].file):
        # Once for all of its stripes: to parse a footer takes as long as there are stripes. With a
        # buffer, the huge column chunks of a foreign file are not read whole.
        with table.opened(location, buffer_size=1 << 20) as file:
            for stripe, before in there:
                yield from _rows(file, stripe, table, chunk_bytes, before)


def _stripes_from(table: Table, skip: int) -> Iterator[tuple[Stripe, int]]:
    """The stripes that have rows from row number `skip` on, each with how many of its rows come
    before."""
    for stripe in table.stripes:
        if skip < stripe.num_rows:
            yield stripe, skip
        skip = max(0, skip - stripe.num_rows)


def _rows(
    file: Any, stripe: Stripe, table: Table, chunk_bytes: int, skip: int
) -> Iterator[pa.Table]:
    first = 0
    for chunk in _stripe(file, stripe, table, chunk_bytes):
        if skip < chunk.num_rows:
            rows = table.conform(chunk.slice(skip), str(stripe), first_row=first + skip)
            yield checked_rows(rows, table.schema, str(stripe))
        skip = max(0, skip - chunk.num_rows)
        first += chunk.num_rows


def checked_rows(chunk: pa.Table, schema: Schema, where: str) -> pa.Table:
    """The schema's columns, in its order and types; raises `DataError` for a null."""
    check_columns(chunk.schema, schema, where)
    arrow = schema.arrow()
    chunk = chunk.select(arrow.names)
    lists = {*schema.sparse_names, *schema.weights_names}
    for name in arrow.names:
        nulls = chunk[name].null_count
        if name in lists:
            nulls += pc.list_flatten(chunk[name]).null_count
        if nulls:
            raise DataError(
                f"{where}: column {name!r} holds {so_many(nulls, 'null')}. Give them a value; a "
                "missing list of ids is an empty one."
            )
    try:
        return chunk.cast(arrow, safe=False)
    except pa.ArrowException as error:
        raise DataError(
            f"{where}: does not fit its schema ({error}). Write the table again, or correct the "
            "schema."
        ) from error


def _stripe(file: Any, stripe: Stripe, table: Table, chunk_bytes: int) -> Iterator[pa.Table]:
    columns = table.file_columns(table.schema.columns)
    per_row = _group_bytes(file.metadata, stripe.group, columns, file.dedupe_factor) / (
        stripe.stored or stripe.num_rows
    )
    batches = file.iter_batches(
        batch_size=max(1, int(chunk_bytes / per_row)),
        row_groups=[stripe.group],
        columns=list(table.asked(file, stripe, columns)),
    )
    for batch in batches:
        yield table.taken(pa.Table.from_batches([batch]), stripe, columns)


def _group_bytes(
    footer: pq.FileMetaData,
    group: int,
    columns: Sequence[str],
    dedupe_factor: Callable[[str], float],
) -> int:
    """The memory that some columns take; `dedupe_factor` is that of an `OpenedFile`."""
    found = footer.row_group(group)
    total = 0
    for index in range(found.num_columns):
        column = found.column(index)
        list_name = column.path_in_schema.rsplit(".", 2)[0]  # of name.list.element
        if column.path_in_schema in columns:
            total += column.num_values * ID_BYTES
        elif list_name in columns:
            ids = math.ceil(column.num_values * dedupe_factor(list_name))
            total += ids * ID_BYTES + found.num_rows * OFFSET_BYTES
    return total
