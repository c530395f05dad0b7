"""Which samples look up replicated rows alone: one pass over the ids, one bit read for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.tier_plan import TablePlan, TierPlan
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.tiers.bitmap import RankedBitmap, has_row

__all__ = ["HotRows"]

Bools: TypeAlias = npt.NDArray[np.bool_]
I64: TypeAlias = npt.NDArray[np.int64]

U64 = np.uint64


class HotRows:
    """The rows of a tier plan that every rank has, and who looks them up."""

    def __init__(self, plan: TierPlan, features: Mapping[str, Sequence[str]]) -> None:
        """`features` of each table; of one that the plan does not name, no row is hot."""
        self.version = plan.version
        plans = [plan.tables.get(name, TablePlan(table=name)).replicated for name in features]
        self._sizes = [int(rows.max()) + 1 if len(rows) else 0 for rows in plans]
        """Of each table, up to its last hot row."""
        self._whole = np.array(
            [len(rows) == size for rows, size in zip(plans, self._sizes, strict=True)]
        )
        """Whether all of these are hot."""
        self._starts = [0, *accumulate(self._sizes)]
        rows = [rows + start for rows, start in zip(plans, self._starts, strict=False)]
        every = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *rows]))
        self._words = RankedBitmap(every, self._starts[-1]).words.numpy()
        self._tables: dict[str, list[int]] = {}
        """Of each feature, by their numbers."""
        for number, names in enumerate(features.values()):
            for name in names:
                self._tables.setdefault(name, []).append(number)

    def samples(self, batch: Batch) -> Bools:
        """[B]: which samples have hot ids alone; those that have none among them."""
        hot = self._rows(batch.features, batch.features.keys())
        dedup = batch.dedup
        if isinstance(dedup, PartialInverseKeyedJaggedTensor):
            dedup = dedup.to_ikjt()
        if isinstance(dedup, InverseKeyedJaggedTensor):
            for group, lookup in zip(dedup.groups, dedup.inverse_lookup, strict=True):
                hot &= self._rows(dedup.kjt, group)[lookup.numpy()]
        elif dedup is not None:
            raise CapabilityError(
                f"cache.hot_batches: batches are deduplicated into a {type(dedup).__name__}, whose "
                "samples cannot be told apart. Let the converter make an "
                "InverseKeyedJaggedTensor, or set hot_batches to false."
            )
        return hot

    def _rows(self, features: KeyedJaggedTensor, keys: Sequence[str]) -> Bools:
        """[stride]: which rows have hot ids alone in all of `keys`."""
        order = {key: at for at, key in enumerate(features.keys())}
        looked_up = [(order[key], table) for key in keys for table in self._tables.get(key, ())]
        hot = np.ones(features.stride(), np.uint8)
        if looked_up:
            at, tables = np.array(looked_up, np.int64).T
            lengths = features.lengths().numpy().reshape(len(order), -1)
            _and_all(
                features.values().numpy(),
                lengths,
                np.array(features.offset_per_key(), np.int64)[at],
                at,
                np.array(self._starts, np.int64)[tables],
                np.array(self._sizes, np.int64)[tables],
                self._whole[tables],
                self._words,
                hot,
            )
        return hot.view(np.bool_)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _and_all(
    values: npt.NDArray[Any],
    lengths: npt.NDArray[Any],
    firsts: I64,
    keys: I64,
    starts: I64,
    sizes: I64,
    whole: Bools,
    words: I64,
    hot: npt.NDArray[np.uint8],
) -> None:
    """Lookup l is of the ids of key `keys[l]`, which begin at `firsts[l]`. As in the router's
    kernel, no branch depends on an id."""
    for lookup in range(len(keys)):
        key, at = keys[lookup], firsts[lookup]
        start, size = U64(starts[lookup]), U64(sizes[lookup])
        if whole[lookup]:  # no bit to read
            for row in range(len(hot)):
                every = U64(1)
                for _ in range(lengths[key, row]):
                    every &= U64(U64(values[at]) < size)
                    at += 1
                hot[row] &= np.uint8(every)
            continue
        for row in range(len(hot)):
            every = U64(1)
            for _ in range(lengths[key, row]):
                number = U64(values[at])  # a negative id is huge
                known = U64(number < size)
                every &= has_row(words, (start + number) * known) & known
                at += 1
            hot[row] &= np.uint8(every)
