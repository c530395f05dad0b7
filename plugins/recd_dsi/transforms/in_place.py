"""Transforms whose features keep their names: rows in, rows out, whichever feature they are of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor, nn

from recd_plugins.api.rows import with_ids

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["InPlace", "InRows", "OfIds"]

InRows = tuple[Tensor, Tensor, Tensor | None]
"""Ids [lengths.sum()] of rows, their lengths [B], and the weights of the ids, if they have some."""


class InPlace(nn.Module, ABC):
    """Rows -> as many rows. The host runs `of_rows` without a KJT where it needs none."""

    @abstractmethod
    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> InRows:
        """What becomes of the rows; `lengths` itself where they keep their lengths."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        before, weighed = features.lengths(), features.weights_or_none()
        ids, lengths, weights = self.of_rows(features.values(), before, weighed)
        kept = lengths is before and weights is weighed
        return with_ids(features, ids, lengths=None if kept else lengths, weights=weights)


class OfIds(InPlace):
    """An id's result depends on that id alone."""

    elementwise = True

    @abstractmethod
    def of_ids(self, ids: Tensor) -> Tensor:
        """[N] ids to as many."""

    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> InRows:
        return self.of_ids(ids), lengths, weights
