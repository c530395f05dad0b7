"""The rows of a table that have the most ids: batches of them need the most memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.compute as pc

from recd_plugins.data.files.footers import footers_of
from recd_plugins.data.parquet.chunk_columns import column_of_each_chunk
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.stripes import Stripe
from recd_plugins.data.table import Table
from recd_plugins.storage.uri import Location

__all__ = ["Heaviest", "heaviest_stripe"]


@dataclass(frozen=True, kw_only=True)
class Heaviest:
    """A stripe, and the ids of its rows."""

    stripe: Stripe
    ids_per_row: float


def heaviest_stripe(table: Table, ids_of: Callable[[Stripe], int] | None = None) -> Heaviest:
    """The stripe whose rows have the most ids by the footers. It is read, so that ids are counted
    as batches have them: without the values that stand for nulls, with the lists that its file
    leaves out; or as `ids_of` counts them, such as behind transforms."""
    held = _numbers_held(table)
    stripe = max(table.stripes, key=lambda one: held.get((one.file, one.group), 0.0))
    if ids_of is None:
        lists = table.read(stripe, table.schema.sparse_names).columns
        ids = sum(pc.sum(pc.list_value_length(one)).as_py() or 0 for one in lists)
    else:
        ids = ids_of(stripe)
    return Heaviest(stripe=stripe, ids_per_row=ids / max(1, stripe.num_rows))


def _numbers_held(table: Table) -> dict[tuple[Location, int], float]:
    """The values of a row's features in each row group, by file and number of the group."""
    features = {*table.schema.sparse_names}
    facts = {file: table.facts.get(file, FileFacts()) for file in table.files}
    found = {}
    for file, _, footer in footers_of(facts):
        names = column_of_each_chunk(footer.metadata.schema.to_arrow_schema())
        for number in range(footer.metadata.num_row_groups):
            group = footer.metadata.row_group(number)
            chunks = [group.column(at) for at, name in enumerate(names) if name in features]
            values = sum(chunk.num_values for chunk in chunks)
            found[file, number] = values / max(1, group.num_rows)
    return found
