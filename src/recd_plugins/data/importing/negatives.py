"""Samples of what was not clicked, for data that have only clicks: other items for each click."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recd_plugins.config import Config, Range
from recd_plugins.data.conform.hashing import hash_integers
from recd_plugins.data.importing.proposing.leaks import describes
from recd_plugins.data.schema import Schema
from recd_plugins.errors import DataError, RegistryError, nearest

__all__ = [
    "Catalogue",
    "CatalogueBuilder",
    "Negatives",
    "check_clicks",
    "check_sole_label",
    "item_columns",
    "undrawn",
    "with_negatives",
]

I64 = npt.NDArray[np.int64]
ATTEMPTS = 8
"""How many draws are tried for a negative that is not the clicked item; after these, the next item
is taken."""
PENDING = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Negatives(Config):
    """The number of negatives, and how they are drawn."""

    count: Annotated[int, Range(ge=1)]
    """The number of samples with label 0 for each click."""
    by: Literal["popularity", "uniform"] = "popularity"
    """How likely each item is to be drawn: in proportion to its clicks (`popularity`), or as likely
    as any other."""
    seed: Annotated[int, Range(ge=0)] = 0
    """The seed of the draw: the same seed draws the same negatives."""
    items: tuple[str, ...] = ()
    """The columns that belong to the item, its id first. By default they are the features of kind
    item that are not sequences."""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The items that are clicked, each with its columns."""

    ids: I64
    """[K], ascending."""
    counts: I64
    """[K] clicks."""
    rows: pa.Table
    """K rows: the columns that belong to an item."""


class CatalogueBuilder:
    """Collects the items of rows that stream by; memory grows only with the number of items."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._whole: Catalogue | None = None
        self._parts: list[Catalogue] = []
        self._size = 0

    def add(self, rows: pa.Table, where: str) -> None:
        ids, first, counts = np.unique(
            clicked(rows, self._columns[0], where), return_index=True, return_counts=True
        )
        items = rows.select(self._columns).take(pa.array(first))
        self._parts.append(Catalogue(ids=ids, counts=counts, rows=items))
        self._size += ids.size
        if self._size > max(PENDING, 0 if self._whole is None else self._whole.ids.size):
            self._merge()

    def done(self) -> Catalogue:
        """All items; raises `DataError` if there are too few to draw another one."""
        self._merge()
        if self._whole is None or self._whole.ids.size < 2:
            raise DataError(
                "--negatives: there are fewer than two items, so no other item can be drawn as a "
                "negative. Import more clicks, or name another column as the item's: --item NAME."
            )
        return self._whole

    def _merge(self) -> None:
        parts = [*([self._whole] if self._whole else []), *self._parts]
        if not parts:
            return
        every = np.concatenate([one.ids for one in parts])
        ids, first, inverse = np.unique(every, return_index=True, return_inverse=True)
        counts = np.bincount(inverse, np.concatenate([one.counts for one in parts])).astype(
            np.int64
        )
        rows = pa.concat_tables([one.rows for one in parts]).take(pa.array(first))
        self._whole = Catalogue(ids=ids, counts=counts, rows=rows.combine_chunks())
        self._parts, self._size = [], 0


def undrawn(
    schema: Schema, negatives: Negatives, sample: Mapping[str, pa.ChunkedArray]
) -> list[str]:
    """The features that describe an item in a sample, but that negatives would keep from the
    clicked one."""
    drawn = item_columns(schema, negatives)
    item = sample.get(drawn[0])
    if item is None:
        return []
    others = [one for one in (*schema.sparse_names, *schema.dense) if one not in drawn]
    return [name for name in others if name in sample and describes(sample[name], item)]


def item_columns(schema: Schema, negatives: Negatives) -> tuple[str, ...]:
    """The columns that a negative takes from another item."""
    if negatives.items:
        for name in negatives.items:
            if name not in (*schema.sparse_names, *schema.dense):
                known = (*schema.sparse_names, *schema.dense)
                raise RegistryError(f"no feature {name!r}; {nearest(name, known)}", "--item")
        if negatives.items[0] not in schema.sparse_names:
            raise RegistryError(
                f"{negatives.items[0]!r} is dense. Name the item's id first.", "--item"
            )
        return _with_weights(schema, negatives.items)
    found = [one.name for one in schema.sparse if one.kind == "item" and not one.sequence]
    if not found:
        raise RegistryError(
            "the schema has no feature of kind item, apart from sequences, so nothing could be "
            "replaced by another item's. Name the item's columns, its id first: --item item_id "
            "--item brand.",
            "--negatives",
        )
    return _with_weights(schema, found)


def _with_weights(schema: Schema, names: Sequence[str]) -> tuple[str, ...]:
    """The columns, and those of the weights of scored features."""
    scored = {one.name: one.weights_name for one in schema.sparse if one.scored}
    return (*names, *(scored[name] for name in names if name in scored))


def check_sole_label(schema: Schema) -> None:
    """Raises `RegistryError` unless the schema's only label is that of clicks."""
    graded = [one.name for one in schema.targets if one.kind != "click"]
    if graded or len(schema.targets) > 1:
        which = f"{graded[0]!r}, which is of no clicks" if graded else "several labels"
        raise RegistryError(
            f"it makes labels of clicks, 1, and of what was not clicked, 0, and the schema has "
            f"{which}. Keep one label of `kind: click`, or take --negatives out.",
            "--negatives",
        )


def check_clicks(rows: pa.Table, label: str, where: str) -> None:
    """Raises `DataError` unless each row is a click by its label."""
    labels = rows[label].to_numpy()
    if others := int((labels != 1).sum()):
        other = labels[labels != 1][0]
        raise DataError(
            f"{where}: label {label!r} is not 1 in {others:,} of {len(labels):,} rows (first, it "
            f"is {other:g}), and --negatives takes each row for a click. Take --negatives out, to "
            "train on these labels; or import clicks alone."
        )


def clicked(rows: pa.Table, column: str, where: str) -> I64:
    """[N] the item of each row; raises `DataError` unless each row has one."""
    parts = [np.zeros(0, np.int64)]
    for chunk in rows[column].chunks:
        if np.any(np.diff(chunk.offsets.to_numpy()) != 1):
            raise DataError(
                f"{where}: feature {column!r} does not have one id in each row, so it is not an "
                "item to which negatives could be drawn. Name the item's column: --item NAME; rows "
                "without one are left out by `nulls: drop` in its entry of the schema."
            )
        parts.append(chunk.flatten().to_numpy())
    return np.concatenate(parts)


def with_negatives(
    rows: pa.Table,
    catalogue: Catalogue,
    negatives: Negatives,
    *,
    columns: Sequence[str],
    label: str,
    key: int,
    where: str,
) -> pa.Table:
    """The rows with each click followed by its negatives: rows like it, but with another item and
    label 0.

    `columns` are the item's; the draws depend only on the seed, on `key` and on the row's place.
    """
    count, size = negatives.count, 1 + negatives.count
    own = clicked(rows, columns[0], where)
    drawn = _drawn(own, catalogue, negatives, key)
    # The click's own items are looked up after those of the catalogue.
    items = catalogue.ids.size + np.arange(own.size * size) // size
    grid = items.reshape(own.size, size)
    grid[:, 1:] = drawn.reshape(own.size, count)
    each = np.arange(own.size).repeat(size)
    repeated = rows.take(pa.array(each))
    both = pa.concat_tables([catalogue.rows, rows.select(list(columns))]).combine_chunks()
    of_items = both.take(pa.array(grid.reshape(-1)))
    labels = np.zeros((own.size, size), np.float32)
    labels[:, 0] = 1
    made = {name: of_items[name] for name in columns}
    made[label] = pa.chunked_array([pa.array(labels.reshape(-1))])
    return pa.table(
        [made.get(name, repeated[name]) for name in rows.column_names], schema=rows.schema
    )


def _drawn(own: I64, catalogue: Catalogue, negatives: Negatives, key: int) -> I64:
    """[N * count] places in the catalogue, none of them the row's own item."""
    places = np.arange(own.size * negatives.count, dtype=np.uint64)
    clicked_items = own.repeat(negatives.count)
    seed = hash_integers(np.array([key % 2**64], np.uint64), negatives.seed)[0]
    ends = catalogue.counts.cumsum()
    found = np.zeros(places.size, np.int64)
    open_ = np.arange(places.size)
    for attempt in range(ATTEMPTS):
        numbers = hash_integers((places[open_] * np.uint64(ATTEMPTS) + np.uint64(attempt)) ^ seed)
        shares = (numbers >> np.uint64(11)) * 2.0**-53
        if negatives.by == "popularity":
            found[open_] = np.searchsorted(ends, (shares * ends[-1]).astype(np.int64), "right")
        else:
            found[open_] = (shares * catalogue.ids.size).astype(np.int64)
        open_ = open_[catalogue.ids[found[open_]] == clicked_items[open_]]
        if not open_.size:
            return found
    found[open_] = (found[open_] + 1) % catalogue.ids.size
    return found
