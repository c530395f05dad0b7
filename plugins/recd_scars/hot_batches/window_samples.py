"""Batches that follow each other, and their samples in other batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api import CapabilityError
from recd_plugins.api.batch import SparseFeatures, parts_of, with_parts
from recd_plugins.api.rows import kernel

__all__ = ["WindowSamples"]

Bools: TypeAlias = npt.NDArray[np.bool_]
I64: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]

U64 = np.uint64


class WindowSamples:
    """The samples of some batches, by their place in all of them. On CPU, in numpy: torch's own
    operations would wake threads that belong to the model."""

    def __init__(self, batches: Sequence[Any], sizes: Sequence[int]) -> None:
        """`sizes` are the samples of each batch, which may be of any type."""
        self._pinned = any(_is_pinned(batches[0]))
        self._column = _column(batches, sizes, "batch")

    def batch(self, samples: I64) -> Any:
        """The batch of the samples at these places [B], in this order."""
        batch = self._column(samples)
        return batch.pin_memory() if self._pinned and hasattr(batch, "pin_memory") else batch


Column: TypeAlias = Callable[[I64], Any]
"""Places of samples to what a batch of them has in one of its places."""


def _column(values: Sequence[Any], sizes: Sequence[int], path: str) -> Column:
    """The column that batches have in one place: rows of samples, something made of such, or one
    thing."""
    first = values[0]
    if len({type(value) for value in values}) > 1:
        raise _refusal(path, f"is a {' and a '.join(sorted({type(v).__name__ for v in values}))}")
    if isinstance(first, KeyedJaggedTensor):
        if [kjt.stride() for kjt in values] == list(sizes) and _alike(kjt.keys() for kjt in values):
            return _Features(values).take
        raise _refusal(path, "is a KeyedJaggedTensor of other keys or samples than the batch")
    if isinstance(first, SparseFeatures):
        plain = _column([value.plain for value in values], sizes, f"{path}.plain")
        unique = _column([value.dedup for value in values], sizes, f"{path}.dedup")
        return lambda samples: dataclasses.replace(
            first, plain=plain(samples), dedup=unique(samples)
        )
    if isinstance(first, Tensor | np.ndarray) and first.ndim:
        if [len(value) for value in values] == list(sizes):
            return _rows(values)
        raise _refusal(path, f"has {len(first)} rows in a batch of {sizes[0]} samples")
    if hasattr(first, "concat") and hasattr(first, "select"):  # an IKJT, or what is like one
        joined = type(first).concat(values)
        return lambda samples: joined.select(torch.from_numpy(samples))
    if _is_list_of_samples(values, sizes):
        every = [one for value in values for one in value]
        return lambda samples: type(first)(every[i] for i in samples)
    if (parts := parts_of(first)) is not None:
        columns = {
            name: _column(
                [_part(value, name, path) for value in map(parts_of, values)],
                sizes,
                f"{path}.{name}",
            )
            for name in parts
        }
        return lambda samples: with_parts(
            first, {name: column(samples) for name, column in columns.items()}
        )
    if all(_same(first, value) for value in values):
        return lambda samples: first
    raise _refusal(path, f"is a {type(first).__name__} that differs from batch to batch")


def _refusal(path: str, what: str) -> CapabilityError:
    return CapabilityError(
        f"cache.hot_batches: {path} {what}, so nobody knows which of it goes with a sample. Say "
        "how samples become a batch, stack.order(loader, select=...), or set hot_batches to false."
    )


def _part(parts: Any, name: Any, path: str) -> Any:
    if parts is None or name not in parts:
        raise _refusal(f"{path}.{name}", "is not in every batch")
    return parts[name]


def _rows(values: Sequence[Any]) -> Column:
    """Rows of samples, of tensors or arrays."""
    if isinstance(values[0], np.ndarray):
        arrays: Numbers = np.concatenate(values)
        return lambda samples: arrays.take(samples, axis=0)
    if values[0].dtype == torch.bfloat16:  # which numpy does not have
        every = torch.cat(list(values))
        return lambda samples: every[torch.from_numpy(samples)]
    joined: Numbers = np.concatenate([value.detach().numpy() for value in values])
    return lambda samples: torch.from_numpy(joined.take(samples, axis=0))


def _is_list_of_samples(values: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Whether each is a plain list of a value for each sample, such as a text."""
    return (
        type(values[0]) in (list, tuple)
        and [len(value) for value in values] == list(sizes)
        and not any(isinstance(one, Tensor | KeyedJaggedTensor) for one in values[0])
    )


def _alike(values: Iterable[Any]) -> bool:
    first, *others = values
    return all(other == first for other in others)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Tensor | np.ndarray):  # of no dimension
        return bool(one == other)
    return isinstance(one, Plain) and one == other


Plain = (str, bytes, int, float, bool, Enum)


def _is_pinned(batch: Any) -> Iterator[bool]:
    parts = parts_of(batch)
    for part in (parts or {}).values():
        if isinstance(part, Tensor):
            yield part.is_pinned()
        else:
            yield from _is_pinned(part)


class _Features:
    """KJTs of the same keys, their ids laid out key by key, so that those of a key lie in the order
    of the samples. Of keys with one id a row, which most are, nothing is kept by row."""

    def __init__(self, kjts: Sequence[KeyedJaggedTensor]) -> None:
        self._keys: list[str] = kjts[0].keys()
        lengths = [kjt.lengths().numpy().reshape(len(self._keys), kjt.stride()) for kjt in kjts]
        counts = np.empty((len(kjts), len(self._keys)), np.int64)
        self._one_id = np.ones(len(self._keys), np.bool_)
        """[K]: which keys have one id in each row."""
        for part, count in zip(lengths, counts, strict=True):
            _count(part, count, self._one_id)

        def by_key(numbers: Sequence[Tensor]) -> Numbers:
            given = np.concatenate([part.numpy() for part in numbers])
            laid = np.empty_like(given)
            _lay_by_key(given, counts, laid)
            return laid

        self._values = by_key([kjt.values() for kjt in kjts])
        weights = [kjt.weights_or_none() for kjt in kjts]
        given = [each for each in weights if each is not None]
        self._weights = by_key(given) if given else None
        numels = counts.sum(axis=0)
        self._starts = numels.cumsum() - numels
        """[K]: where the ids of each key begin."""
        self._lengths = np.concatenate([part[~self._one_id] for part in lengths], axis=1)
        """[G, N]: of the other keys."""
        before = self._lengths.cumsum(axis=1, dtype=np.int64) - self._lengths
        self._firsts = self._starts[~self._one_id, None] + before
        """[G, N]: where the ids of each row of these begin."""

    def take(self, rows: I64) -> KeyedJaggedTensor:
        lengths = np.ones((len(self._keys), len(rows)), self._lengths.dtype)
        lengths[~self._one_id] = self._lengths[:, rows]
        counts = np.full(len(self._keys), len(rows))
        counts[~self._one_id] = lengths[~self._one_id].sum(axis=1)
        offsets = [0, *counts.cumsum().tolist()]
        firsts = self._firsts[:, rows]

        def copied(values: Numbers) -> Tensor:
            out = np.empty(offsets[-1], values.dtype)
            _copy(values, self._one_id, self._starts, rows, firsts, lengths, out)
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


@kernel
def _count(lengths: Numbers, counts: I64, one_id: Bools) -> None:
    """The ids of each key; a key that has others than one in a row is no key of one id."""
    for key in range(len(lengths)):
        count, ones = 0, True
        for row in range(lengths.shape[1]):
            count += lengths[key, row]
            ones &= lengths[key, row] == 1
        counts[key] = count
        one_id[key] &= ones


@kernel
def _lay_by_key(values: Numbers, counts: I64, out: Numbers) -> None:
    """Values that lie part by part, and in each key by key, in `counts` [W, K]: key by key."""
    starts = np.empty(counts.shape[1], np.int64)
    at = 0
    for key in range(counts.shape[1]):
        starts[key] = at
        at += counts[:, key].sum()
    at = 0
    for part in range(counts.shape[0]):
        for key in range(counts.shape[1]):
            count, start = counts[part, key], starts[key]
            out[start : start + count] = values[at : at + count]
            starts[key] += count
            at += count


@kernel
def _copy(
    values: Numbers,
    one_id: Bools,
    starts: I64,
    rows: I64,
    firsts: I64,
    lengths: Numbers,
    out: Numbers,
) -> None:
    """Write each key's ids of B rows: those of `rows` [B] where it has one in each, else
    `lengths[key, b]` from `firsts` on, whose rows are those of the other keys."""
    at, other = U64(0), 0
    for key in range(len(one_id)):
        if one_id[key]:
            start = U64(starts[key])
            for place in range(len(rows)):
                out[at + U64(place)] = values[start + U64(rows[place])]
            at += U64(len(rows))
        else:
            for place in range(len(rows)):
                first = U64(firsts[other, place])
                for id_ in range(lengths[key, place]):
                    out[at + U64(id_)] = values[first + U64(id_)]
                at += U64(lengths[key, place])
            other += 1
