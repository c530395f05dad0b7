"""Gradients of a tier's rows as they come out of backward: many a row, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Entries", "HotGradients"]

BLOCK = 1 << 13
"""Gradients that are copied at a time."""


@dataclass(frozen=True)
class Entries:
    """Entry i adds `gradients[sources[i]] * weights[i]` to the row at `places[i]`."""

    places: Tensor
    """[n] int64 or int32."""
    gradients: Tensor
    """[m, D] float32."""
    sources: Tensor | None = None
    """[n] int64; by default entry i has gradient i."""
    weights: Tensor | None = None
    """[n] float32; by default 1."""

    def at(self, places: Tensor) -> Entries:
        """The same entries for rows that are now elsewhere, [n]."""
        return Entries(places, self.gradients, self.sources, self.weights)

    def sorted(self) -> Entries:
        """By their places."""
        places, order = self.places.sort()
        return Entries(
            places,
            self.gradients,
            order if self.sources is None else self.sources[order],
            None if self.weights is None else self.weights[order],
        )

    def between(self, first: int, last: int, start: int) -> Entries:
        """Of sorted entries those of places in [first, last), counted from `start` on."""
        assert self.sources is not None
        ends = torch.tensor([first, last], dtype=self.places.dtype, device=self.places.device)
        low, high = torch.searchsorted(self.places, ends).tolist()
        return Entries(
            self.places[low:high] + (start - first),
            self.gradients,
            self.sources[low:high],
            None if self.weights is None else self.weights[low:high],
        )

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Entries:
        """Entries that have their gradients in common, sorted ones."""
        weights = [part.weights for part in parts if part.weights is not None]
        return cls(
            torch.cat([part.places for part in parts]),
            parts[0].gradients,
            torch.cat([part.sources for part in parts if part.sources is not None]),
            torch.cat(weights) if weights else None,
        )

    def summed(self, num_places: int) -> Tensor:
        """[num_places, D] float32: the sum of what is added to each place."""
        gradients = self.gradients
        sums = gradients.new_zeros(num_places, gradients.shape[1])
        if self.sources is None and self.weights is None:
            return sums.index_add_(0, self.places, gradients)
        for start in range(0, len(self.places), BLOCK):  # bounds the memory of the copies
            block = slice(start, start + BLOCK)
            rows = (
                gradients[block]
                if self.sources is None
                else gradients.index_select(0, self.sources[block])
            )
            if self.weights is not None:
                rows = rows * self.weights[block].unsqueeze(1)
            sums.index_add_(0, self.places[block], rows)
        return sums


@dataclass(frozen=True)
class HotGradients:
    """What the backward of one group of tables leaves for its replicas."""

    replicated: Entries
    """Of rows that every rank has."""
    per_node: Tensor | None
    """[u, D] float32: of the rows that this rank asked of its node."""
