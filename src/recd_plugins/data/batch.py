"""The batch: the one argument of a model's forward."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from recd_plugins.sparse.bundle import counted
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.keyed import marked

__all__ = ["Batch"]


@dataclass
class Batch(Pipelineable):
    """B samples. TorchRec's pipeline follows its KJTs by attribute (`batch.features`)."""

    dense: Tensor
    """[B, n_dense] float32."""
    features: KeyedJaggedTensor
    """The sparse features that are not deduplicated, B rows each."""
    labels: Tensor
    """[B] float32; [B, T] if there are T labels. A label that a sample lacks is NaN."""
    weights: Tensor
    """[B] float32: what each sample counts in loss and metrics; 0 marks a padding row."""
    dedup: Any = None
    """The deduplicated features: what the `dedup` slot's converter made of them."""
    hot_under: str | None = None
    """The version of the tier plan under which all ids of this step's batches, on every rank, are
    replicated; None for a normal batch. The KJTs of a hot batch carry it as a mark
    (`sparse.keyed`)."""

    def __post_init__(self) -> None:
        self.features = marked(self.features, self.hot_under)
        if isinstance(self.dedup, DeduplicatedFeatures):
            kjt = marked(self.dedup.kjt, self.hot_under)
            if kjt is not self.dedup.kjt:
                self.dedup = dataclasses.replace(self.dedup, kjt=kjt)

    @property
    def hot(self) -> bool:
        """Whether all ids of this step's batches, on every rank, are replicated."""
        return self.hot_under is not None

    @cached_property
    def sparse(self) -> KeyedJaggedTensor | SparseFeatures:
        """All sparse features, the keys of `features` before those of `dedup`: what an adapted
        model is given in place of `features`.

        An attribute, so that TorchRec's pipeline can follow it from the batch.
        """
        if self.dedup is None:
            return self.features
        return SparseFeatures.of(self.features, self.dedup)

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return Batch(
            dense=self.dense.to(device, non_blocking=non_blocking),
            features=counted(self.features).to(device, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
            weights=self.weights.to(device, non_blocking=non_blocking),
            dedup=None if self.dedup is None else self.dedup.to(device, non_blocking=non_blocking),
            hot_under=self.hot_under,
        )

    def record_stream(self, stream: torch.Stream) -> None:
        # For `sparse` a partial IKJT is converted, so the result has tensors of its own.
        sparse = vars(self).get("sparse")
        for part in (self.dense, self.features, self.labels, self.weights, self.dedup, sparse):
            if part is not None:
                part.record_stream(stream)

    def pin_memory(self) -> Batch:
        return Batch(
            dense=self.dense.pin_memory(),
            features=counted(self.features).pin_memory(),
            labels=self.labels.pin_memory(),
            weights=self.weights.pin_memory(),
            dedup=None if self.dedup is None else self.dedup.pin_memory(),
            hot_under=self.hot_under,
        )
