"""Batches that follow each other, and their samples in other batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api import CapabilityError
from recd_plugins.api.batch import Batch

__all__ = ["WindowSamples"]

Bools: TypeAlias = npt.NDArray[np.bool_]
I64: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]

U64 = np.uint64


class WindowSamples:
    """The samples of some batches, by their place in all of them. On CPU, in numpy: torch's own
    operations would wake threads that belong to the model."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._first = batches[0]
        self._pinned = self._first.labels.is_pinned()
        self._dense, self._labels, self._weights = (
            np.concatenate([getattr(batch, name).numpy() for batch in batches])
            for name in ("dense", "labels", "weights")
        )
        self._features = _Features([batch.features for batch in batches])
        self._dedup = _joined([batch.dedup for batch in batches])

    def batch(self, samples: I64) -> Batch:
        """The batch of the samples at these places [B], in this order."""
        batch = dataclasses.replace(
            self._first,
            dense=torch.from_numpy(self._dense.take(samples, axis=0)),
            features=self._features.take(samples),
            labels=torch.from_numpy(self._labels.take(samples)),
            weights=torch.from_numpy(self._weights.take(samples)),
            dedup=None if self._dedup is None else self._dedup.select(torch.from_numpy(samples)),
        )
        return batch.pin_memory() if self._pinned else batch


class _Features:
    """KJTs of the same keys, whose ids lie one KJT after another. Of keys with one id a row, which
    most are, nothing is kept by row."""

    def __init__(self, kjts: Sequence[KeyedJaggedTensor]) -> None:
        self._keys: list[str] = kjts[0].keys()
        self._values = np.concatenate([kjt.values().numpy() for kjt in kjts])
        weights = [kjt.weights_or_none() for kjt in kjts]
        given = [each.numpy() for each in weights if each is not None]
        self._weights = np.concatenate(given) if given else None
        lengths = [kjt.lengths().numpy().reshape(len(self._keys), kjt.stride()) for kjt in kjts]
        counts = np.empty((len(kjts), len(self._keys)), np.int64)
        self._one_id = np.ones(len(self._keys), np.bool_)
        """[K]: which keys have one id in each row."""
        for part, count in zip(lengths, counts, strict=True):
            _count(part, count, self._one_id)
        ends = counts.ravel().cumsum().reshape(counts.shape)
        self._starts = np.ascontiguousarray((ends - counts).T)
        """[K, W]: where the ids of each key begin, of each KJT."""
        sizes = [part.shape[1] for part in lengths]
        self._part = np.repeat(np.arange(len(sizes)), sizes)
        """[N]: which KJT each row is of, and the row that it is there."""
        self._row = np.concatenate([np.arange(size) for size in sizes])
        self._lengths = np.concatenate([part[~self._one_id] for part in lengths], axis=1)
        """[G, N]: of the other keys."""
        self._firsts = np.empty(self._lengths.shape, np.int64)
        """[G, N]: where the ids of each row of these begin."""
        _find_rows(self._lengths, self._starts[~self._one_id], self._part, self._firsts)

    def take(self, rows: I64) -> KeyedJaggedTensor:
        lengths = np.ones((len(self._keys), len(rows)), self._lengths.dtype)
        lengths[~self._one_id] = self._lengths[:, rows]
        counts = np.full(len(self._keys), len(rows))
        counts[~self._one_id] = lengths[~self._one_id].sum(axis=1)
        offsets = [0, *counts.cumsum().tolist()]
        places = self._part[rows], self._row[rows]
        firsts = self._firsts[:, rows]

        def copied(values: Numbers) -> Tensor:
            out = np.empty(offsets[-1], values.dtype)
            _copy(values, self._one_id, self._starts, *places, firsts, lengths, out)
            return torch.from_numpy(out)

        return KeyedJaggedTensor(
            keys=self._keys,
            values=copied(self._values),
            weights=None if self._weights is None else copied(self._weights),
            lengths=torch.from_numpy(lengths.ravel()),
            stride=len(rows),
            length_per_key=counts.tolist(),
            offset_per_key=offsets,
        )


def _joined(parts: Sequence[Any]) -> Any:
    """Deduplicated features: an IKJT, or whatever can be joined and selected like one."""
    first = parts[0]
    if first is None:
        return None
    if not (hasattr(first, "concat") and hasattr(first, "select")):
        raise CapabilityError(
            f"cache.hot_batches: batches are deduplicated into a {type(first).__name__}, which has "
            "no `concat` and `select` to put samples into other batches. Let the converter make "
            "an InverseKeyedJaggedTensor, or set hot_batches to false."
        )
    return type(first).concat(parts)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _count(lengths: Numbers, counts: I64, one_id: Bools) -> None:
    """The ids of each key; a key that has others than one in a row is no key of one id."""
    for key in range(len(lengths)):
        count, ones = 0, True
        for row in range(lengths.shape[1]):
            count += lengths[key, row]
            ones &= lengths[key, row] == 1
        counts[key] = count
        one_id[key] &= ones


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _find_rows(lengths: Numbers, starts: I64, parts: I64, out: I64) -> None:
    """Where the ids of each row begin: at `starts` [G, W] in the first row of a part."""
    for key in range(len(lengths)):
        at, last = 0, -1
        for row in range(len(parts)):
            if parts[row] != last:
                last = parts[row]
                at = starts[key, last]
            out[key, row] = at
            at += lengths[key, row]


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _copy(
    values: Numbers,
    one_id: Bools,
    starts: I64,
    parts: I64,
    rows: I64,
    firsts: I64,
    lengths: Numbers,
    out: Numbers,
) -> None:
    """Write each key's ids of B rows: of row `rows[b]` of part `parts[b]`, where it has one, or
    `lengths[key, b]` from `firsts` on, whose rows are those of the other keys."""
    at, other = U64(0), 0
    for key in range(len(one_id)):
        if one_id[key]:
            for place in range(len(rows)):
                out[at + U64(place)] = values[
                    U64(starts[key, U64(parts[place])]) + U64(rows[place])
                ]
            at += U64(len(rows))
        else:
            for place in range(len(rows)):
                first = U64(firsts[other, place])
                for id_ in range(lengths[key, place]):
                    out[at + U64(id_)] = values[first + U64(id_)]
                at += U64(lengths[key, place])
            other += 1
