"""The samples that look up replicated rows alone, found in one pass over the ids: one bit is read
for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api.batch import SparseFeatures
from recd_plugins.api.planning import TablePlan, TierPlan
from recd_plugins.api.rows import kernel

__all__ = ["HotRows"]

Bools: TypeAlias = npt.NDArray[np.bool_]
I64: TypeAlias = npt.NDArray[np.int64]
U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]

U64 = np.uint64


class HotRows:
    """The rows of a tier plan that every rank has, and who looks them up."""

    def __init__(self, plan: TierPlan, features: Mapping[str, Sequence[str]]) -> None:
        """`features` of each table; of one that the plan does not name, no row is hot."""
        self.version = plan.version
        plans = [plan.tables.get(name, TablePlan(table=name)).replicated for name in features]
        self._sizes = [int(rows.max()) + 1 if len(rows) else 0 for rows in plans]
        """The size of each table up to its last hot row."""
        self._whole = np.array(
            [len(rows) == size for rows, size in zip(plans, self._sizes, strict=True)]
        )
        """Whether all rows of a table up to its last hot one are hot."""
        self._starts = [0, *accumulate(size // 8 + 1 for size in self._sizes)]
        """The start of each table's bits, in bytes; each has a bit for one row more, which is not
        hot."""
        self._bits = np.zeros(self._starts[-1], np.uint8)
        for rows, start, end in zip(plans, self._starts, self._starts[1:], strict=False):
            _set(self._bits[start:end], rows)
        self._tables: dict[str, list[int]] = {}
        """The numbers of the tables that each feature looks up."""
        self._lookups: dict[tuple[tuple[str, ...], tuple[str, ...]], _Lookups] = {}
        for number, names in enumerate(features.values()):
            for name in names:
                self._tables.setdefault(name, []).append(number)

    def samples(self, features: SparseFeatures) -> Bools:
        """[B]: which samples have hot ids alone; those that have none among them."""
        hot = np.ones(features.stride(), np.bool_)
        for kjt, keys, lookup in features.by_lookup():
            rows = self._rows(kjt, keys)
            hot &= rows if lookup is None else rows[lookup.numpy()]
        return hot

    def _rows(self, features: KeyedJaggedTensor, keys: Sequence[str]) -> Bools:
        """[stride]: which rows have hot ids alone in all of `keys`."""
        hot = np.ones(features.stride(), np.uint8)
        lookups = self._lookups_of(tuple(features.keys()), tuple(keys))
        if len(lookups.keys):
            lengths = features.lengths().numpy().reshape(len(features.keys()), len(hot))
            _and_all(features.values().numpy(), lengths, *lookups, self._bits, hot)
        return hot.view(np.bool_)

    def _lookups_of(self, order: tuple[str, ...], keys: tuple[str, ...]) -> _Lookups:
        """The lookups of these keys of a KJT whose keys are in this order: the same for each
        batch."""
        if (order, keys) not in self._lookups:
            looked_up = [
                (order.index(key), table) for key in keys for table in self._tables.get(key, ())
            ]
            at, tables = np.array(sorted(looked_up), np.int64).reshape(-1, 2).T.copy()
            starts, sizes = np.array(self._starts, np.int64), np.array(self._sizes, np.int64)
            self._lookups[order, keys] = _Lookups(
                at, starts[tables], sizes[tables], self._whole[tables]
            )
        return self._lookups[order, keys]


class _Lookups(NamedTuple):
    """The tables that are looked up, in ascending order of the key whose ids they are asked for."""

    keys: I64
    starts: I64
    sizes: I64
    whole: Bools


@kernel
def _set(bits: U8, rows: npt.NDArray[Any]) -> None:
    for at in range(len(rows)):
        row = U64(rows[at])
        bits[row >> U64(3)] |= np.uint8(1) << np.uint8(row & U64(7))


@kernel
def _and_all(
    values: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    keys: I64,
    starts: I64,
    sizes: I64,
    whole: Bools,
    bits: U8,
    hot: U8,
) -> None:
    """Lookup l is of the ids of key `keys[l]`. As in the router's kernel, no branch depends on
    an id. Of keys of one id a row, those of `left` alone are read: rows that may still be hot."""
    left = np.empty(len(hot), np.uint32)
    for row in range(len(hot)):
        left[row] = row
    first, num_left = U64(0), U64(len(hot))
    lookup = 0
    for key in range(len(lengths)):
        count, ones = U64(0), True
        for row in range(len(hot)):
            count += U64(lengths[key, row])
            ones &= lengths[key, row] == 1
        while lookup < len(keys) and keys[lookup] == key:
            start, size, every = U64(starts[lookup]), U64(sizes[lookup]), whole[lookup]
            if ones and every:
                _ones_below(values, first, size, hot)
            elif ones:
                num_left = _ones_among(values, first, start, size, bits, left, num_left)
            else:
                _rows_among(values, lengths[key], first, start, size, every, bits, hot)
            lookup += 1
        first += count
        if num_left == 0:
            break
    found = np.zeros(len(hot), np.uint8)
    place = U64(0)
    while place < num_left:
        found[left[place]] = hot[left[place]] & np.uint8(1)
        place += U64(1)
    for row in range(len(hot)):
        hot[row] = found[row]


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _ones_below(values: npt.NDArray[Any], first: np.uint64, size: np.uint64, hot: U8) -> None:
    """Mark samples of one id each in a table that is hot whole: there is no bit to read."""
    for row in range(len(hot)):
        hot[row] &= np.uint8(U64(values[first + U64(row)]) < size)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _ones_among(
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
def _rows_among(
    values: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    first: np.uint64,
    start: np.uint64,
    size: np.uint64,
    whole: bool,
    bits: U8,
    hot: U8,
) -> None:
    at = first
    for row in range(len(hot)):
        every = np.uint8(1)
        for _ in range(lengths[row]):
            number = U64(values[at])
            every &= np.uint8(number < size) if whole else _holds(number, start, size, bits)
            at += U64(1)
        hot[row] &= every


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _holds(number: np.uint64, start: np.uint64, size: np.uint64, bits: U8) -> Any:
    """Whether the row is hot, in the lowest bit; the higher bits are other rows'. A negative id
    is huge."""
    row = min(number, size)
    return bits[start + (row >> U64(3))] >> np.uint8(row & U64(7))
