"""Rows summed over bags straight from where they are, and the gradients of rows from those of bags.

No id has a row of its own in between: rows are read where they came in once, and what is written
is bags forward and rows backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function

from recd_plugins.tiers.updates.entries import Entries, HotGradients

__all__ = ["Lookups", "RowPool", "pool_rows"]


@dataclass(frozen=True)
class Lookups:
    """n ids that are rows of one source, each in a bag."""

    which: Tensor
    """[n] int64: the row of each."""
    bags: Tensor
    """[n] int64, ascending."""
    weights: Tensor | None
    """[n] float32; by default 1."""

    def sums(self, rows: Tensor, num_bags: int) -> Tensor:
        """[num_bags, D] float32, of `rows` [u, D]."""
        if not len(self.which):
            return torch.zeros(num_bags, rows.shape[1], device=rows.device)
        which = self.which
        if rows.dtype != torch.float32:  # of smaller types, sums would be rounded too
            rows = rows.index_select(0, which).float()
            which = torch.arange(len(which), device=which.device)
        ends = torch.bincount(self.bags, minlength=num_bags).cumsum(0)
        sums: Tensor = torch.embedding_bag(
            rows,
            which,
            torch.cat([ends.new_zeros(1), ends]),
            mode=0,  # the sum
            per_sample_weights=self.weights,
            include_last_offset=True,
        )[0]
        return sums

    def gradients(self, bags: Tensor, num_rows: int) -> Tensor:
        """[num_rows, D] float32, from those of the sums over `bags` [num_bags, D] float32."""
        if not bags.is_cuda:
            rows = bags.new_zeros(num_rows, bags.shape[1])
            weights = bags.new_empty(0) if self.weights is None else self.weights
            given = (each.contiguous().numpy() for each in (bags, self.which, self.bags, weights))
            _scatter(*given, rows.numpy())
            return rows
        return self.turned().sums(bags, num_rows)

    def turned(self) -> Lookups:
        """Each row as a bag of the bags that it is in."""
        order = self.which.argsort(stable=True)
        return Lookups(
            self.bags[order],
            self.which[order],
            None if self.weights is None else self.weights[order],
        )


@dataclass(frozen=True)
class RowPool:
    """The bags of one group's ids, bag s · B + b being that of slot s and sample b."""

    num_bags: int
    passed: Lookups
    """Of the rows from the canonical table."""
    replicated: Lookups
    """Of the replica on this rank."""
    replica: Tensor | None
    """[H, D]"""
    place: Callable[[Tensor], Tensor]
    """Of a position in the replica."""
    per_node: Lookups | None
    node_rows: Tensor | None
    """[u, D]: the rows that this rank asked of its node."""
    divisors: Sequence[Tensor | None]
    """By slot [B]: what mean pooling divides the sums by; none where it sums."""

    def sums(self, canonical: Tensor) -> Tensor:
        """[S · B, D] float32."""
        sources = [(self.passed, canonical)]
        if self.replica is not None:
            sources.append((self.replicated, self.replica))
        if self.per_node is not None and self.node_rows is not None:
            sources.append((self.per_node, self.node_rows))
        found = [each for each in sources if len(each[0].which)] or sources[:1]
        first, *others = (lookups.sums(rows, self.num_bags) for lookups, rows in found)
        for sums in others:
            first += sums
        return self._divide(first)

    def hot_gradients(self, bags: Tensor) -> HotGradients:
        """Of the tiers' rows, from those that `divided` makes of the bags'."""
        hot = self.replicated
        everywhere = Entries(self.place(hot.which), bags, hot.bags, hot.weights)
        if self.per_node is None or self.node_rows is None:
            return HotGradients(everywhere, None)
        return HotGradients(everywhere, self.per_node.gradients(bags, len(self.node_rows)))

    def divided(self, gradient: Tensor) -> Tensor:
        """The gradients of sums [S · B, D] float32, from those of the pooled bags."""
        if all(divisor is None for divisor in self.divisors):
            return gradient.float().contiguous()
        return self._divide(gradient.to(torch.float32, copy=True))

    def _divide(self, bags: Tensor) -> Tensor:
        batch_size = self.num_bags // len(self.divisors)
        slots = bags.unflatten(0, (len(self.divisors), batch_size))
        for slot, divisor in zip(slots, self.divisors, strict=True):
            if divisor is not None:
                slot /= divisor.unsqueeze(1)
        return bags


class _PoolRows(Function):
    @staticmethod
    def forward(
        ctx: Any,
        canonical: Tensor,
        alive: Tensor,
        pool: RowPool,
        keep: Callable[[HotGradients], None],
    ) -> Tensor:
        ctx.pool, ctx.keep, ctx.like = pool, keep, canonical.new_empty(0)
        ctx.num_rows = len(canonical)
        return pool.sums(canonical).to(canonical.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        pool: RowPool = ctx.pool
        bags = pool.divided(gradient)
        ctx.keep(pool.hot_gradients(bags))
        return pool.passed.gradients(bags, ctx.num_rows).to(ctx.like.dtype), None, None, None


def pool_rows(
    canonical: Tensor, alive: Tensor, pool: RowPool, keep: Callable[[HotGradients], None]
) -> Tensor:
    """[S · B, D]: the bags. Backward yields the gradient of `canonical` [u, D] to TorchRec, and
    hands that of the replicas to `keep`.

    `alive` requires a gradient (that never comes), so that backward gets here on every rank.
    """
    bags: Tensor = _PoolRows.apply(canonical, alive, pool, keep)
    return bags


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _scatter(
    gradients: npt.NDArray[np.float32],
    which: npt.NDArray[np.int64],
    bags: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float32],
    rows: npt.NDArray[np.float32],
) -> None:
    """Add the gradient of each id's bag to that of its row; without `weights`, each weighs 1."""
    for i in range(which.size):
        row, bag = which[i], bags[i]
        weight = weights[i] if weights.size else np.float32(1)
        for column in range(rows.shape[1]):
            rows[row, column] += weight * gradients[bag, column]
