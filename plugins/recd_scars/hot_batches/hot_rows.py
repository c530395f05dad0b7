"""The samples that look up only replicated rows, found in one pass over the ids. One bit is read
for each id, or two slots where the bits of a huge table would take much memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from recd_plugins.api.batch import JoinedFeatures, SparseFeatures
from recd_plugins.api.planning import Integers, TablePlan, TierPlan
from recd_plugins.api.rows import (
    MOST_IN_SLOTS,
    SLOT_BYTES,
    among_slots,
    array_like,
    kernel,
    slots_of,
)

__all__ = ["HotRows", "most_bytes"]

Bools: TypeAlias = npt.NDArray[np.bool_]
I64: TypeAlias = npt.NDArray[np.int64]
U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
U64s: TypeAlias = npt.NDArray[np.uint64]

U64 = np.uint64
STAYS = np.uint8(2)
"""A second mark, beside 1 for a row that may be hot: the row is among those that are left."""

BELOW, BY_BIT, BY_SLOT = 0, 1, 2
"""The ways to look a row up: by whether it comes before the end of the hot rows, where all before
are hot; by its bit; and by the slots of the hot rows."""
SMALL = 1 << 24
"""Bytes of a table's bits that are never too much: they are read faster than slots."""


class HotRows:
    """The rows of a tier plan that every rank has, and who looks them up."""

    def __init__(self, plan: TierPlan, features: Mapping[str, Sequence[str]]) -> None:
        """`features` of each table; of one that the plan does not name, no row is hot."""
        self.version = plan.version
        hot = [plan.tables.get(name, TablePlan(table=name)).replicated for name in features]
        self.any = any(map(len, hot))
        """Whether any row is hot."""
        ends = [int(rows.max()) + 1 if len(rows) else 0 for rows in hot]
        self._ways = [way_to(len(rows), end) for rows, end in zip(hot, ends, strict=True)]
        """The way in which each table's rows are looked up."""
        self._starts, self._sizes = [0] * len(hot), ends
        """Where each table's bits (in bytes) or slots begin; and the end of its hot rows, or how
        many slots it has."""
        self._bits = self._set_bits(hot)
        self._slots = self._fill_slots(hot)
        self._tables = _tables_by_feature(features)
        self._lookups: dict[tuple[tuple[str, ...], tuple[str, ...]], _Lookups] = {}

    def _set_bits(self, hot: Sequence[Integers]) -> U8:
        """The bits of the tables that are looked up by them, one table after another. Each table
        has a bit for one row more, which is not hot."""
        tables, num_bytes = self._tables_in(BY_BIT), 0
        for table in tables:
            self._starts[table] = num_bytes
            num_bytes += self._sizes[table] // 8 + 1
        bits = np.zeros(num_bytes, np.uint8)
        for table in tables:
            _set(bits[self._starts[table] :], hot[table])
        return bits

    def _fill_slots(self, hot: Sequence[Integers]) -> U64s:
        """The slots of the tables that are looked up by them, one table after another."""
        filled, num_slots = [np.empty(0, np.uint64)], 0
        for table in self._tables_in(BY_SLOT):
            slots = slots_of(hot[table])
            self._starts[table], self._sizes[table] = num_slots, len(slots)
            num_slots += len(slots)
            filled.append(slots)
        return np.concatenate(filled)

    def _tables_in(self, way: int) -> list[int]:
        """The numbers of the tables whose rows are looked up in this way."""
        return [table for table, its_way in enumerate(self._ways) if its_way == way]

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self._bits.nbytes + self._slots.nbytes

    def samples(self, features: SparseFeatures) -> Bools:
        """[B]: which samples have only hot ids; samples without ids are among them."""
        return self.samples_of_all(JoinedFeatures([features.plain]), [features])

    def samples_of_all(self, plain: JoinedFeatures, batches: Sequence[SparseFeatures]) -> Bools:
        """[N]: the same for batches that follow each other, whose plain features are joined."""
        hot = self._rows(plain, plain.keys)
        begins = plain.ids.begins
        for begin, end, batch in zip(begins, begins[1:], batches, strict=False):
            if batch.dedup is None:
                continue
            unique, of_batch = JoinedFeatures([batch.dedup.kjt]), hot[begin:end]
            for keys, lookup in zip(batch.dedup.groups, batch.dedup.inverse_lookup, strict=True):
                of_batch &= self._rows(unique, keys)[lookup.numpy()]
        return hot

    def _rows(self, features: JoinedFeatures, keys: Sequence[str]) -> Bools:
        """[N]: which rows have only hot ids in all of `keys`."""
        hot = np.ones(features.ids.begins[-1], np.uint8)
        lookups = self._lookups_of(tuple(features.keys), tuple(keys))
        if len(lookups.keys):
            _and_all(*features.ids, *lookups, self._bits, self._slots, hot)
        return hot.view(np.bool_)

    def _lookups_of(self, order: tuple[str, ...], keys: tuple[str, ...]) -> _Lookups:
        """The lookups of these keys of a KJT whose keys are in this order: the same for each
        batch."""
        if (order, keys) not in self._lookups:
            looked_up = [
                (order.index(key), table) for key in keys for table in self._tables.get(key, ())
            ]
            at, tables = np.array(sorted(looked_up), np.int64).reshape(-1, 2).T.copy()
            each = (self._starts, self._sizes, self._ways)
            of_tables = (np.array(one, np.int64)[tables] for one in each)
            self._lookups[order, keys] = _Lookups(at, *of_tables)
        return self._lookups[order, keys]


class _Lookups(NamedTuple):
    """The tables that are looked up, in ascending order of the key whose ids they are asked for."""

    keys: I64
    starts: I64
    sizes: I64
    ways: I64


def _tables_by_feature(features: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """The numbers of the tables that each feature looks up, from the features of each table."""
    found: dict[str, list[int]] = {}
    for number, names in enumerate(features.values()):
        for name in names:
            found.setdefault(name, []).append(number)
    return found


def way_to(hot: int, end: int) -> int:
    """The way to look up rows of a table with so many hot rows, all before `end`: by bits, unless
    these take much memory and slots take less."""
    if hot == end:
        return BELOW
    less = end / 8 > max(SMALL, SLOT_BYTES * hot)
    return BY_SLOT if less and hot <= MOST_IN_SLOTS else BY_BIT


def most_bytes(hot: int, num_rows: int) -> float:
    """The most memory that so many hot rows take, wherever they lie in a table of so many rows."""
    way = way_to(hot, num_rows)
    return 0 if way == BELOW or not hot else SLOT_BYTES * hot if way == BY_SLOT else num_rows / 8


@kernel
def _set(bits: U8, rows: npt.NDArray[Any]) -> None:
    for at in range(len(rows)):
        row = U64(rows[at])
        bits[row >> U64(3)] |= np.uint8(1) << np.uint8(row & U64(7))


@kernel
def _and_all(
    places: I64,
    like: npt.NDArray[Any],
    begins_of_keys: I64,
    begins: I64,
    one_id: Bools,
    lengths: I64,
    like_lengths: npt.NDArray[Any],
    keys: I64,
    starts: I64,
    sizes: I64,
    ways: I64,
    bits: U8,
    slots: U64s,
    hot: U8,
) -> None:
    """Lookup l is of the ids of key `keys[l]`, of joined KJTs. As in the router's kernel, no branch
    depends on an id. For keys with one id in each row, only the rows `left` are read, which may
    still be hot."""
    left = np.empty(len(hot), np.uint32)
    for part in range(len(places)):
        values, begin, end = array_like(places[part], like), begins[part], begins[part + 1]
        of_part, num_left = hot[begin:end], U64(end - begin)
        for row in range(len(of_part)):
            left[row] = row
        of_keys, size_of_part = array_like(lengths[part], like_lengths), end - begin
        for lookup in range(len(keys)):
            key = keys[lookup]
            first = U64(begins_of_keys[part, key])
            start, size, way = U64(starts[lookup]), U64(sizes[lookup]), ways[lookup]
            if not one_id[key]:
                of_rows = of_keys[key * size_of_part : (key + 1) * size_of_part]
                if way == BELOW:
                    _rows_below(values, of_rows, first, size, of_part)
                elif way == BY_BIT:
                    _rows_by_bit(values, of_rows, first, start, size, bits, of_part)
                else:
                    _rows_by_slot(values, of_rows, first, start, size, slots, of_part)
            elif way == BELOW:
                _ones_below(values, first, size, of_part)
            elif way == BY_BIT:
                num_left = _ones_by_bit(values, first, start, size, bits, left, num_left)
            else:
                num_left = _ones_by_slot(values, first, start, size, slots, left, num_left)
            if num_left == 0:
                break
        place = U64(0)
        while place < num_left:
            of_part[left[place]] += STAYS
            place += U64(1)
        for row in range(len(of_part)):
            of_part[row] = of_part[row] == STAYS + np.uint8(1)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _ones_below(values: npt.NDArray[Any], first: np.uint64, size: np.uint64, hot: U8) -> None:
    """Mark samples of one id each in a table that is hot whole: there is no bit to read."""
    for row in range(len(hot)):
        hot[row] &= np.uint8(U64(values[first + U64(row)]) < size)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _ones_by_bit(
    values: npt.NDArray[Any],
    first: np.uint64,
    start: np.uint64,
    size: np.uint64,
    bits: U8,
    left: U32,
    num_left: np.uint64,
) -> Any:
    """The number of `left` that stay there, of rows of one id each: each is written, but only those
    that do go on to the next place."""
    kept = at = U64(0)
    while at < num_left:
        row = left[at]
        left[kept] = row
        kept += U64(_holds(U64(values[first + U64(row)]), start, size, bits) & np.uint8(1))
        at += U64(1)
    return kept


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _ones_by_slot(
    values: npt.NDArray[Any],
    first: np.uint64,
    start: np.uint64,
    size: np.uint64,
    slots: U64s,
    left: U32,
    num_left: np.uint64,
) -> Any:
    """The same by the slots of hot rows."""
    kept = at = U64(0)
    while at < num_left:
        row = left[at]
        left[kept] = row
        kept += U64(among_slots(U64(values[first + U64(row)]), start, size, slots))
        at += U64(1)
    return kept


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _rows_below(
    values: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    first: np.uint64,
    size: np.uint64,
    hot: U8,
) -> None:
    """Mark rows of any number of ids, in a table that is hot whole."""
    at = first
    for row in range(len(hot)):
        every = np.uint8(1)
        for _ in range(lengths[row]):
            every &= np.uint8(U64(values[at]) < size)
            at += U64(1)
        hot[row] &= every


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _rows_by_bit(
    values: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    first: np.uint64,
    start: np.uint64,
    size: np.uint64,
    bits: U8,
    hot: U8,
) -> None:
    """The same in a table that has bits."""
    at = first
    for row in range(len(hot)):
        every = np.uint8(1)
        for _ in range(lengths[row]):
            every &= _holds(U64(values[at]), start, size, bits)
            at += U64(1)
        hot[row] &= every


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _rows_by_slot(
    values: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    first: np.uint64,
    start: np.uint64,
    size: np.uint64,
    slots: U64s,
    hot: U8,
) -> None:
    """The same in a table that has slots."""
    at = first
    for row in range(len(hot)):
        every = np.uint8(1)
        for _ in range(lengths[row]):
            every &= among_slots(U64(values[at]), start, size, slots)
            at += U64(1)
        hot[row] &= every


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _holds(number: np.uint64, start: np.uint64, size: np.uint64, bits: U8) -> Any:
    """Whether the row is hot, in the lowest bit; the higher bits are other rows'. A negative id
    is huge."""
    row = min(number, size)
    return bits[start + (row >> U64(3))] >> np.uint8(row & U64(7))
