"""Batches that follow each other, and their samples in other batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from operator import is_
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api import CapabilityError, so_many
from recd_plugins.api.batch import JoinedFeatures, SparseFeatures, parts_of, with_parts

__all__ = ["WindowSamples"]

I64: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]
Column: TypeAlias = Callable[[I64], Any]
"""A function from places of samples to one part of a batch of them."""

PLAIN = (str, bytes, int, float, bool, Enum)
"""Types of values that may be the same for all batches."""


class WindowSamples:
    """The samples of some batches, by their place in all of them. It works on the CPU in numpy:
    torch's operations would wake threads that belong to the model."""

    def __init__(
        self,
        batches: Sequence[Any],
        sizes: Sequence[int],
        joined: Sequence[JoinedFeatures] = (),
    ) -> None:
        """`sizes` are the numbers of samples of the batches, which may be of any type; `joined` are
        those of their KJTs that are joined already."""
        self._pinned = any(_is_pinned(batches[0]))
        self._column = _column(batches, sizes, "batch", joined)

    def batch(self, samples: I64) -> Any:
        """The batch of the samples at these places [B], in this order."""
        batch = self._column(samples)
        return batch.pin_memory() if self._pinned and hasattr(batch, "pin_memory") else batch


def _column(
    values: Sequence[Any], sizes: Sequence[int], path: str, joined: Sequence[JoinedFeatures]
) -> Column:
    """The column of one part of the batches: rows of samples, something made of such, or the same
    thing for all. KJTs that are `joined` are not joined again."""
    first = values[0]
    if first is None and all(value is None for value in values):
        return lambda samples: None
    if len({type(value) for value in values}) > 1:
        raise _refusal(path, f"is a {' and a '.join(sorted({type(v).__name__ for v in values}))}")
    if isinstance(first, SparseFeatures):
        rows = _column([value.plain for value in values], sizes, f"{path}.plain", joined)
        unique = _column([value.dedup for value in values], sizes, f"{path}.dedup", joined)
        return lambda samples: dataclasses.replace(
            first, plain=rows(samples), dedup=unique(samples)
        )
    if isinstance(first, KeyedJaggedTensor):
        return _ids(values, sizes, path, joined)
    if isinstance(first, Tensor | np.ndarray) and first.ndim:
        if [len(value) for value in values] == list(sizes):
            return _rows(values)
        raise _refusal(
            path, f"has {so_many(len(first), 'row')} in a batch of {so_many(sizes[0], 'sample')}"
        )
    if hasattr(first, "concat") and hasattr(first, "select"):  # an IKJT, or what is like one
        every = type(first).concat(values)
        return lambda samples: every.select(torch.from_numpy(samples))
    if _is_list_of_samples(values, sizes):
        ones = [one for value in values for one in value]
        return lambda samples: type(first)(ones[i] for i in samples)
    parts = [parts_of(value) for value in values]
    if parts[0] is not None:
        columns = {
            name: _column(
                [_part(each, name, path) for each in parts], sizes, f"{path}.{name}", joined
            )
            for name in parts[0]
        }
        return lambda samples: with_parts(
            first, {name: column(samples) for name, column in columns.items()}
        )
    if all(_same(first, value) for value in values):
        return lambda samples: first
    raise _refusal(path, f"is a {type(first).__name__} that differs from batch to batch")


def _ids(
    kjts: Sequence[KeyedJaggedTensor],
    sizes: Sequence[int],
    path: str,
    joined: Sequence[JoinedFeatures],
) -> Column:
    """Rows of ids, of KJTs that have the same keys and a row for each sample."""
    if len({kjt.weights_or_none() is None for kjt in kjts}) > 1:
        raise _refusal(path, "is a KeyedJaggedTensor that has weights in some batches alone")
    if [kjt.stride() for kjt in kjts] != list(sizes) or not _alike(kjt.keys() for kjt in kjts):
        raise _refusal(path, "is a KeyedJaggedTensor of other keys or samples than the batch")
    known = (one for one in joined if all(map(is_, kjts, one.kjts)))
    found = next(known, None) or JoinedFeatures(kjts)
    _ = found.rows  # found where there is time for it
    return found.take


def _refusal(path: str, what: str) -> CapabilityError:
    return CapabilityError(
        f"cache.hot_batches: {path} {what}, so it is unknown which part of it belongs to which "
        "sample. Say how samples become a batch, stack.order(loader, select=...), or set "
        "hot_batches to false."
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
    given = (value.detach() if value.requires_grad else value for value in values)
    joined: Numbers = np.concatenate([value.numpy() for value in given])
    return lambda samples: torch.from_numpy(joined.take(samples, axis=0))


def _is_list_of_samples(values: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Whether each is a plain list with a value for each sample, such as a text."""
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
    return isinstance(one, PLAIN) and one == other


def _is_pinned(batch: Any) -> Iterator[bool]:
    parts = parts_of(batch)
    for part in (parts or {}).values():
        if isinstance(part, Tensor):
            yield part.is_pinned()
        else:
            yield from _is_pinned(part)
