"""What a collection yields of unique samples: the same dict or KeyedTensor, not yet expanded."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.compat.torchrec import LazyKeyedTensor
from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor

__all__ = ["Samples", "pooled", "sequences"]


class Samples:
    """Which rows of a feature's output are the batch's, and which samples have them."""

    def __init__(
        self, features: SparseFeatures | KeyedJaggedTensor, *, sequences: bool = False
    ) -> None:
        """For `sequences`, values are counted here, before anybody waits for them."""
        self.dedup: InverseKeyedJaggedTensor | None = None
        self.num_values: Mapping[str, int] = {}
        self._group_of: Mapping[str, int] = {}
        if isinstance(features, SparseFeatures):
            self.dedup, self._group_of = features.dedup, features.group_of
            if sequences:
                self.num_values = features.num_values
            features = features.plain
        self.batch_size: int = features.stride()

    def of(self, key: str) -> tuple[int, Tensor | None]:
        """Of a feature: its rows, and the inverse lookup [B] if they are unique samples."""
        group = self._group_of.get(key)
        if group is None or self.dedup is None:
            return self.batch_size, None
        return self.dedup.unique_counts[group], self.dedup.inverse_lookup[group]

    def record_stream(self, stream: torch.Stream) -> None:
        if self.dedup is not None:
            self.dedup.inverse_lookup.record_stream(stream)


def sequences(
    embedded: Mapping[str, JaggedTensor], key_of: Mapping[str, str], samples: Samples
) -> dict[str, JaggedTensor]:
    """Each embedding's values and lengths, those of unique samples as `Unexpanded`.

    `key_of` is the feature of each embedding.
    """
    every = {}
    for name, jagged in embedded.items():
        key = key_of[name]
        rows, lookup = samples.of(key)
        lengths, ids = jagged.lengths()[:rows], jagged.weights_or_none()
        if lookup is None:
            every[name] = JaggedTensor(jagged.values(), lengths=lengths, weights=ids)
            continue
        count = samples.num_values[key]
        values = Unexpanded.values(jagged.values(), lengths, lookup, count)
        every[name] = JaggedTensor(
            values,
            lengths=Unexpanded.row_lengths(lengths, lookup),
            weights=None if ids is None else Unexpanded.values(ids, lengths, lookup, count),
        )
    return every


def pooled(found: Mapping[str, Tensor], key_of: Mapping[str, str], samples: Samples) -> KeyedTensor:
    """Each embedding's rows, those of unique samples as `Unexpanded`; in the order of `key_of`."""
    tensors = {}
    for name, key in key_of.items():
        rows, lookup = samples.of(key)
        tensor = found[name]
        if len(tensor) > rows:  # else the slice would cost its gradient a copy
            tensor = tensor[:rows]
        tensors[name] = tensor if lookup is None else Unexpanded.rows(tensor, lookup)
    return LazyKeyedTensor(tensors)
