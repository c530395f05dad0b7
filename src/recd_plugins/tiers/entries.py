"""Gradients of a tier's rows as they come out of backward: many a row, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Entries", "HotGradients"]


@dataclass(frozen=True)
class Entries:
    """Entry i adds `gradients[sources[i]] * weights[i]` to the row at `places[i]`."""

    places: Tensor
    """[n] int64."""
    gradients: Tensor
    """[m, D] float32."""
    sources: Tensor | None = None
    """[n] int64; by default entry i has gradient i."""
    weights: Tensor | None = None
    """[n] float32; by default 1."""

    def touched(self, num_places: int) -> Tensor:
        """[num_places] bool: the places that any entry adds to."""
        touched = torch.zeros(num_places, dtype=torch.bool, device=self.places.device)
        touched[self.places] = True
        return touched

    def take(self, which: Tensor) -> Entries:
        """Some of the entries."""
        return Entries(
            self.places[which],
            self.gradients,
            which if self.sources is None else self.sources[which],
            None if self.weights is None else self.weights[which],
        )

    def at(self, places: Tensor) -> Entries:
        """The same entries for rows that are now elsewhere, [n]."""
        return Entries(places, self.gradients, self.sources, self.weights)

    def add_to(self, rows: Tensor) -> None:
        """Add all entries to `rows` [num_places, D] float32."""
        gradients = self.gradients
        if self.sources is not None:
            gradients = gradients.index_select(0, self.sources)
        if self.weights is not None:
            gradients = gradients * self.weights.unsqueeze(1)
        rows.index_add_(0, self.places, gradients)

    def by_chunk(self, chunks: Tensor, num_chunks: int) -> Iterator[Entries]:
        """The entries of each chunk, where entry i is of chunk `chunks[i]` [n]."""
        if num_chunks == 1:
            yield self
            return
        order = chunks.argsort(stable=True)
        ends = torch.bincount(chunks, minlength=num_chunks).cumsum(0).tolist()
        for start, end in zip([0, *ends], ends, strict=False):
            yield self.take(order[start:end])


@dataclass(frozen=True)
class HotGradients:
    """What the backward of one group of tables leaves for its replicas."""

    all_ranks: Entries
    """Of rows that every rank has."""
    per_node: Tensor | None
    """[u, D] float32: of the rows that this rank asked of its node."""
