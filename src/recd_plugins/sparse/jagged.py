"""Jagged rows: of one feature as values and lengths, of many features as a KeyedJaggedTensor.

Ids are gathered by `permute_1D_sparse_data`, which is fbgemm's fastest way on CPU, feature by
feature, since the rows of one feature fit the cache even if those of all do not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import fbgemm_gpu  # noqa: F401  # registers torch.ops.fbgemm
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError

__all__ = [
    "MAX_INT32",
    "HeldOnce",
    "Jagged",
    "WeightedJagged",
    "as_bits",
    "numels_of",
    "slice_rows",
    "without",
]

MAX_INT32 = 2**31 - 1


class Jagged(NamedTuple):
    """B rows of one feature."""

    values: Tensor
    """[lengths.sum()] ids."""
    lengths: Tensor
    """[B]."""


class HeldOnce(NamedTuple):
    """B rows of one feature; a row that equals the previous one is not held again."""

    held: Jagged
    """The rows that are held, on CPU."""
    which: Tensor
    """[B] int32, ascending: which row of `held` each row is."""

    @property
    def values(self) -> Tensor:
        """The ids that are held."""
        return self.held.values

    @property
    def lengths(self) -> Tensor:
        """[B]: the lengths of all rows."""
        return torch.from_numpy(self.held.lengths.numpy().take(self.which.numpy()))


def slice_rows(features: KeyedJaggedTensor, start: int, stop: int) -> KeyedJaggedTensor:
    """Rows [start, stop) of every feature, with one copy of their values and one of their
    weights."""
    keys, stride = features.keys(), features.stride()
    firsts = torch.arange(len(keys), device="cpu")[:, None] * stride
    bounds = features.offsets()[firsts + torch.tensor([[start, stop]], device="cpu")]
    spans, weights = bounds.tolist(), features.weights_or_none()

    def sliced(numbers: Tensor) -> Tensor:
        return torch.cat([numbers[first:last] for first, last in spans]) if spans else numbers

    return KeyedJaggedTensor(
        keys=keys,
        values=sliced(features.values()),
        weights=None if weights is None else sliced(weights),
        lengths=features.lengths().view(len(keys), stride)[:, start:stop].contiguous().view(-1),
        stride=stop - start,
    )


PERMUTED = (torch.float32, torch.float64)
"""The types of weights that fbgemm gathers on the CPU."""
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class WeightedJagged:
    """B rows of ids; either every id has a weight, or none has."""

    values: Tensor
    """[lengths.sum()] ids."""
    lengths: Tensor
    """[B]."""
    weights: Tensor | None = None
    """[lengths.sum()]."""

    @classmethod
    def of(cls, features: KeyedJaggedTensor) -> WeightedJagged:
        """The rows of all keys, key after key; TorchRec also accepts lengths of [K, B]."""
        lengths = features.lengths()
        if lengths.dim() > 1:
            lengths = lengths.reshape(-1)
        return cls(features.values(), lengths, features.weights_or_none())

    @classmethod
    def by_key(cls, features: KeyedJaggedTensor) -> dict[str, WeightedJagged]:
        """Each key's rows, as views."""
        counts, numels = features.stride_per_key(), numels_of(features)
        every, weights = cls.of(features), [None] * len(counts)
        if every.weights is not None:
            weights = every.weights.split(numels)
        parts = zip(every.values.split(numels), every.lengths.split(counts), weights, strict=True)
        return {key: cls(*part) for key, part in zip(features.keys(), parts, strict=True)}

    @classmethod
    def joined(cls, parts: Sequence[WeightedJagged], *, padded: bool = False) -> WeightedJagged:
        """The rows of the first part, then those of the next.

        `padded`: each part ends in rows of length 0, so that it has as many as the largest. If some
        parts have weights, the ids of the others get weight 1.
        """
        given = [part.weights for part in parts if part.weights is not None]
        weights = [part.weighing(given[0].dtype) for part in parts] if given else []
        return cls(
            _joined([part.values for part in parts]),
            (_padded if padded else _joined)([part.lengths for part in parts]),
            _joined(weights) if weights else None,
        )

    @property
    def offsets(self) -> Tensor:
        """[B + 1]: where each row begins, and the last one ends."""
        return pad(self.lengths.cumsum(0), (1, 0))

    def weighing(self, dtype: torch.dtype) -> Tensor:
        """[lengths.sum()]: the weight of each id, 1 if none is given."""
        if self.weights is not None:
            return self.weights
        return torch.ones_like(self.values, dtype=dtype)

    def head(self, count: int) -> WeightedJagged:
        """The first `count` rows, as views."""
        numel = int(self.lengths[:count].sum())
        weights = None if self.weights is None else self.weights[:numel]
        return WeightedJagged(self.values[:numel], self.lengths[:count], weights)

    def select(self, rows: Tensor, num_values: int | None = None) -> WeightedJagged:
        """The rows at `rows` [N], in this order, repeats included. Unless the number of their ids
        is given, the CPU waits for CUDA."""
        lengths = self.lengths
        if self.values.numel() > MAX_INT32:  # fbgemm sums lengths in their own type
            lengths = lengths.long()
        permute, rows = torch.ops.fbgemm.permute_1D_sparse_data, rows.to(torch.int32)
        if self.weights is None or self.weights.dtype in PERMUTED or self.weights.is_cuda:
            chosen, values, weights = permute(rows, lengths, self.values, self.weights, num_values)
        else:  # it takes ids of any type
            chosen, values, _ = permute(rows, lengths, self.values, None, num_values)
            _, weights, _ = permute(rows, lengths, self.weights, None, num_values)
        return WeightedJagged(values, chosen, weights)

    def columns(self) -> list[Tensor]:
        """The columns that must agree, bit by bit, for two rows to be one: ids, and weights if
        there are any."""
        if self.weights is None:
            return [self.values]
        return [self.values, as_bits(self.weights)]


def numels_of(features: KeyedJaggedTensor) -> list[int]:
    """[K]: the number of ids of each key; raises `DataError` unless they add up to all ids."""
    numels: list[int] = features.length_per_key()
    if features.values().numel() != sum(numels):
        raise DataError(
            f"the KeyedJaggedTensor's lengths add up to {sum(numels)}, but it has "
            f"{features.values().numel()} values. Cut them, or correct the lengths."
        )
    return numels


def as_bits(numbers: Tensor) -> Tensor:
    """The same memory as integers."""
    return numbers.view(BITS[numbers.element_size()])


def without(features: KeyedJaggedTensor, keys: Collection[str]) -> KeyedJaggedTensor:
    """The samples of the other keys, in order; without a copy if these lie side by side."""
    left = {key: rows for key, rows in WeightedJagged.by_key(features).items() if key not in keys}
    rows = WeightedJagged.joined(list(left.values()) or [WeightedJagged.of(features).head(0)])
    return KeyedJaggedTensor(
        keys=list(left),
        values=rows.values,
        lengths=rows.lengths,
        weights=rows.weights,
        stride=features.stride(),
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """[n_i] each, laid end to end; without a copy if they already lie so in memory."""
    first = parts[0]
    ends = accumulate((part.numel() for part in parts), initial=first.storage_offset())
    storage, size = first.untyped_storage().data_ptr(), first.untyped_storage().nbytes()
    if all(
        part.untyped_storage().data_ptr() == storage
        and part.untyped_storage().nbytes() == size  # else it is a part of numpy's memory
        and part.storage_offset() == end
        and part.is_contiguous()
        and part.dtype == first.dtype
        for part, end in zip(parts, ends, strict=False)
    ):
        return first.as_strided((sum(part.numel() for part in parts),), (1,))
    return torch.cat(list(parts))


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """[n_i] each, laid end to end, each padded with zeros to the largest n_i."""
    if len({part.numel() for part in parts}) == 1:
        return _joined(parts)
    if len({part.dtype for part in parts}) > 1:
        parts = [part.long() for part in parts]
    return pad_sequence(list(parts), batch_first=True).view(-1)
