"""What happens to a batch between the table and the trainer: transforms, then dedup."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch

if TYPE_CHECKING:
    from recd_plugins.slots import DedupConverter, Preprocess

__all__ = ["BatchTransform"]


class BatchTransform:
    """Applies each `preprocess` transform to its features, then the `dedup` converter."""

    def __init__(
        self,
        steps: Sequence[tuple[Sequence[str], Preprocess]],
        dedup: Sequence[DedupConverter] = (),
    ) -> None:
        self._steps = steps
        self._dedup = dedup

    def __call__(self, batch: Batch) -> Batch:
        features = batch.features
        for names, transform in self._steps:
            features = _apply(transform, features, names)
        batch = dataclasses.replace(batch, features=features)
        for converter in self._dedup:
            batch = converter.convert(batch)
        return batch


def _apply(
    transform: Preprocess, features: KeyedJaggedTensor, names: Sequence[str]
) -> KeyedJaggedTensor:
    """The transform on `names` alone; the other features and the keys' order stay."""
    keys = features.keys()
    chosen = [index for index, key in enumerate(keys) if key in names]
    if len(chosen) == len(keys):
        return transform(features)
    rest = [index for index, key in enumerate(keys) if key not in names]
    parts = [transform(features.permute(chosen)), features.permute(rest)]
    joined = KeyedJaggedTensor.concat(parts)
    position = {key: index for index, key in enumerate(joined.keys())}
    return joined.permute([position[key] for key in keys])
