"""Transforms that keep the names of features: rows in, rows out, for any feature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor, nn

from recd_plugins.api.rows import with_ids

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["IdWise", "InPlace", "InRows"]

InRows = tuple[Tensor, Tensor, Tensor | None]
"""Ids [lengths.sum()] of rows, the rows' lengths [B], and the ids' weights, or None."""


class InPlace(nn.Module, ABC):
    """Rows -> as many rows. The host calls `of_rows` directly if it needs no KJT."""

    @abstractmethod
    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> InRows:
        """The new rows; if they keep their lengths, the result has the same `lengths` object."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        before, weighed = features.lengths(), features.weights_or_none()
        ids, lengths, weights = self.of_rows(features.values(), before, weighed)
        kept = lengths is before and weights is weighed
        return with_ids(features, ids, lengths=None if kept else lengths, weights=weights)


class IdWise(InPlace):
    """Transforms each id by itself: the result depends only on that id."""

    elementwise = True

    @abstractmethod
    def of_ids(self, ids: Tensor) -> Tensor:
        """[N] ids to new ids [N]."""

    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> InRows:
        return self.of_ids(ids), lengths, weights
