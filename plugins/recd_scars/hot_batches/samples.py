"""Batches that follow each other, and their samples in other batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.errors import CapabilityError

__all__ = ["Samples"]

I64: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]


class Samples:
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
        """Samples `samples` [B], in this order."""
        batch = dataclasses.replace(
            self._first,
            dense=torch.from_numpy(self._dense[samples]),
            features=self._features.take(samples),
            labels=torch.from_numpy(self._labels[samples]),
            weights=torch.from_numpy(self._weights[samples]),
            dedup=None if self._dedup is None else self._dedup.select(torch.from_numpy(samples)),
        )
        return batch.pin_memory() if self._pinned else batch


class _Features:
    """KJTs of the same keys, the rows of one after those of the other."""

    def __init__(self, kjts: Sequence[KeyedJaggedTensor]) -> None:
        self._keys: list[str] = kjts[0].keys()
        lengths = [kjt.lengths().numpy().reshape(len(self._keys), -1) for kjt in kjts]
        self._lengths = np.concatenate(lengths, axis=1)
        bounds = [kjt.offset_per_key() for kjt in kjts]
        self._values = _by_key([kjt.values() for kjt in kjts], bounds)
        weights = [kjt.weights_or_none() for kjt in kjts]
        given = [each for each in weights if each is not None]
        self._weights = _by_key(given, bounds) if given else None

    def take(self, rows: I64) -> KeyedJaggedTensor:
        lengths = np.empty((len(self._keys), len(rows)), self._lengths.dtype)
        firsts = np.empty(lengths.shape, np.int64)
        numel = _find_rows(self._lengths, self._offsets, rows, lengths, firsts)

        def spread(values: Numbers) -> Tensor:
            out = np.empty(numel, values.dtype)
            _copy_rows(values, firsts.ravel(), lengths.ravel(), out)
            return torch.from_numpy(out)

        return KeyedJaggedTensor(
            keys=self._keys,
            values=spread(self._values),
            weights=None if self._weights is None else spread(self._weights),
            lengths=torch.from_numpy(lengths.ravel()),
            stride=len(rows),
        )

    @cached_property
    def _offsets(self) -> I64:
        """[K, N]: where the ids of each row of each key begin."""
        ends: I64 = self._lengths.ravel().cumsum(dtype=np.int64)
        begins: I64 = ends.reshape(self._lengths.shape) - self._lengths
        return begins


def _by_key(parts: Sequence[Tensor], bounds: Sequence[Sequence[int]]) -> Numbers:
    """What each part has between its `bounds` [K + 1], all parts' of a key together."""
    arrays = [part.numpy() for part in parts]
    count = len(bounds[0]) - 1
    pieces = [
        array[bound[key] : bound[key + 1]]
        for key in range(count)
        for array, bound in zip(arrays, bounds, strict=True)
    ]
    return np.concatenate(pieces) if pieces else arrays[0]


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
def _find_rows(
    lengths: Numbers, offsets: I64, rows: I64, out_lengths: Numbers, out_firsts: I64
) -> int:
    """The lengths of these rows of each key, and where their ids begin; how many they are."""
    numel = 0
    for key in range(len(lengths)):
        for place in range(len(rows)):
            length = lengths[key, rows[place]]
            out_lengths[key, place] = length
            out_firsts[key, place] = offsets[key, rows[place]]
            numel += length
    return numel


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _copy_rows(values: Numbers, firsts: I64, lengths: Numbers, out: Numbers) -> None:
    at = 0
    for row in range(len(firsts)):
        first, length = firsts[row], lengths[row]
        if length == 1:  # most are: a copy of a slice would cost ten times as much
            out[at] = values[first]
        else:
            out[at : at + length] = values[first : first + length]
        at += length
