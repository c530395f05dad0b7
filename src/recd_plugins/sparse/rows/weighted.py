"""The rows of one feature, weighted or not: selected, joined, and told apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import fbgemm_gpu  # noqa: F401  # registers torch.ops.fbgemm
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.jagged import MAX_INT32
from recd_plugins.sparse.rows.gather import gather_rows
from recd_plugins.sparse.rows.unique import Unique, group_codes, unique_rows

__all__ = ["Weighted", "select_each", "unique_samples", "without"]


@dataclass(frozen=True, eq=False)
class Weighted:
    """B rows of ids, each id with its weight or all without."""

    values: Tensor
    """[lengths.sum()] ids."""
    lengths: Tensor
    """[B]."""
    weights: Tensor | None = None
    """[lengths.sum()]."""

    @classmethod
    def of(cls, features: KeyedJaggedTensor) -> Weighted:
        """The rows of all keys, one key's after another's."""
        return cls(features.values(), features.lengths(), features.weights_or_none())

    @classmethod
    def by_key(cls, features: KeyedJaggedTensor) -> dict[str, Weighted]:
        """Each key's rows, as views."""
        counts, numels = features.stride_per_key(), features.length_per_key()
        every, weights = cls.of(features), [None] * len(counts)
        if every.weights is not None:
            weights = every.weights.split(numels)
        parts = zip(every.values.split(numels), every.lengths.split(counts), weights, strict=True)
        return {key: cls(*part) for key, part in zip(features.keys(), parts, strict=True)}

    @classmethod
    def joined(cls, parts: Sequence[Weighted]) -> Weighted:
        """The rows of the first part, then those of the next."""
        weights = [part.weights for part in parts if part.weights is not None]
        if weights and len(weights) < len(parts):
            raise DataError(
                f"{len(parts) - len(weights)} of {len(parts)} features have no weights, but the "
                "others do. Give all of them weights (1), or none."
            )
        return cls(
            _joined([part.values for part in parts]),
            _joined([part.lengths for part in parts]),
            _joined(weights) if weights else None,
        )

    @cached_property
    def offsets(self) -> Tensor:
        """[B + 1] int64: where each row begins, and the last one ends."""
        if self.lengths.device.type != "cpu":
            return pad(self.lengths.cumsum(0), (1, 0))
        offsets = np.zeros(self.lengths.numel() + 1, dtype=np.int64)  # twice as fast as torch
        np.cumsum(self.lengths.numpy(), out=offsets[1:])
        return torch.from_numpy(offsets)

    def head(self, count: int) -> Weighted:
        """The first `count` rows, as views."""
        numel = int(self.lengths[:count].sum())
        weights = None if self.weights is None else self.weights[:numel]
        return Weighted(self.values[:numel], self.lengths[:count], weights)

    def select(self, rows: Tensor) -> Weighted:
        """Rows `rows` [N], in this order, repeats included."""
        lengths = self.lengths
        if self.values.numel() > MAX_INT32:  # fbgemm adds lengths up in their own type
            lengths = lengths.long()
        lengths, values, weights = torch.ops.fbgemm.permute_1D_sparse_data(
            rows.to(torch.int32), lengths, self.values, self.weights, None
        )
        return Weighted(values, lengths, weights)

    def unique(self) -> Unique:
        """The different rows; a weight is part of its id, and both must agree bit by bit."""
        ids = unique_rows(self.values, self.offsets)
        if self.weights is None:
            return ids
        bits = {4: torch.int32, 8: torch.int64, 2: torch.int16}[self.weights.element_size()]
        weights = unique_rows(self.weights.view(bits), self.offsets)
        return group_codes([ids.inverse_lookup, weights.inverse_lookup])


def unique_samples(features: Sequence[Weighted]) -> Unique:
    """The different samples of a group: two are one where all of its features agree."""
    codes = [feature.unique() for feature in features]
    if len(codes) == 1:
        return codes[0]
    return group_codes([code.inverse_lookup for code in codes])


def select_each(features: Sequence[Weighted], rows: Sequence[Tensor]) -> list[Weighted]:
    """`feature.select(rows)` of each feature and its rows.

    On CPU they lie side by side in one memory, so that to join them costs no second copy.
    """
    given = [feature.weights for feature in features if feature.weights is not None]
    alike = len({feature.values.dtype for feature in features}) == 1
    alike = alike and len(given) in (0, len(features))
    if not alike or any(feature.values.device.type != "cpu" for feature in features):
        return [feature.select(row) for feature, row in zip(features, rows, strict=True)]
    every = [
        feature.lengths.numpy().take(row.numpy())  # half of what an index costs in torch
        for feature, row in zip(features, rows, strict=True)
    ]
    lengths = torch.from_numpy(np.concatenate(every)).split([len(part) for part in every])
    numels = [int(part.sum()) for part in every]

    def gathered(parts: Sequence[Tensor]) -> list[Tensor]:
        out = list(torch.empty(sum(numels), dtype=parts[0].dtype).split(numels))
        for part, feature, row, target in zip(parts, features, rows, out, strict=True):
            gather_rows(part.contiguous(), feature.offsets, row, target)
        return out

    values = gathered([feature.values for feature in features])
    weights = gathered(given) if given else [None] * len(features)
    return [Weighted(*part) for part in zip(values, lengths, weights, strict=True)]


def without(features: KeyedJaggedTensor, keys: Collection[str]) -> KeyedJaggedTensor:
    """The samples of the other keys, in their order; uncopied where these lie side by side."""
    left = {key: rows for key, rows in Weighted.by_key(features).items() if key not in keys}
    rows = Weighted.joined(list(left.values()) or [Weighted.of(features).head(0)])
    return KeyedJaggedTensor(
        keys=list(left),
        values=rows.values,
        lengths=rows.lengths,
        weights=rows.weights,
        stride=features.stride(),
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """[n_i] each, laid end to end; where they lie so in memory already, the same memory."""
    first = parts[0]
    ends = accumulate((part.numel() for part in parts), initial=first.storage_offset())
    storage = first.untyped_storage().data_ptr()
    if all(
        part.untyped_storage().data_ptr() == storage
        and part.storage_offset() == end
        and part.is_contiguous()
        and part.dtype == first.dtype
        for part, end in zip(parts, ends, strict=False)
    ):
        return first.as_strided((sum(part.numel() for part in parts),), (1,))
    return torch.cat(list(parts))
