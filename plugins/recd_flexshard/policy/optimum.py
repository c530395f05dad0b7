"""The least time for every amount of memory: FlexShard's frontier (figure 5), over all tiers.

Each row takes one of its tiers' offers. This is a multiple-choice knapsack, and a greedy search
over the convex hulls of the offers solves its relaxation exactly. Only one band is cut, at a whole
row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recd_flexshard.policy.offers import PER_NODE, REPLICATED, ROW_WISE, Offers
from recd_plugins.api import CapabilityError
from recd_plugins.api.planning import GB, Floats, Integers, MergedRows

__all__ = ["Optimum", "too_little"]

Tiers = NDArray[np.int8]

SLACK = 1e-3
"""Bytes: sums of floats are not exact."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Optimum:
    """The plans from the least memory to the least time: each step saves less per byte than the
    last."""

    merged: MergedRows
    start: Tiers
    """[R] the tier of each band where memory is least."""
    bands: Integers
    """[S] the band that each step moves."""
    tiers: Tiers
    """[S] the tier that it moves to."""
    memory: Floats
    """[S + 1] bytes a rank after each step, over all rows at home without coalescing."""
    ms: Floats
    """[S + 1] milliseconds, latencies aside."""

    @classmethod
    def of(
        cls, merged: MergedRows, offers: Offers, allowed: tuple[int, ...], base: float
    ) -> Optimum:
        """`allowed` are one or both tiers of replicas; `base` is the memory that counts as 0."""
        counts = merged.rows.counts
        tiers = np.array([ROW_WISE, *allowed])
        memory, ms = offers.memory[tiers], offers.ms[tiers]
        band = np.arange(memory.shape[1])
        # The fastest of the tiers that take the least memory.
        at = start = np.where(memory == memory.min(axis=0), ms, np.inf).argmin(axis=0)
        steps: list[tuple[Integers, Integers, Floats, Floats]] = []
        for _ in allowed:
            more = memory - memory[at, band]
            less = ms[at, band] - ms
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = np.where((less > 0) & (more > 0), less / more, 0.0)
            to = gain.argmax(axis=0)
            moved = np.flatnonzero(gain[to, band] > 0)
            steps.append((moved, to[moved], more[to, band][moved], less[to, band][moved]))
            at = np.where(gain[to, band] > 0, to, at)
        bands, to, more, less = (np.concatenate(part) for part in zip(*steps, strict=True))
        order = np.argsort(-less / more, kind="stable")
        bands, to = bands[order], to[order]
        rows = counts[bands]
        return cls(
            merged=merged,
            start=tiers[start].astype(np.int8),
            bands=bands,
            tiers=tiers[to].astype(np.int8),
            memory=_summed(counts @ memory[start, band] - base, rows * more[order]),
            ms=_summed(counts @ ms[start, band], -rows * less[order]),
        )

    def at(self, budget: float | None, multiple: int) -> tuple[Integers, Integers]:
        """[T] rows of each table in `replicated`, and in `per_node`, within `budget` extra bytes
        (none: any).

        Counts are rounded down to a multiple of the world size.
        """
        if budget is not None and budget < self.memory[0] - SLACK:
            raise too_little(float(self.memory[0]), budget)
        steps = len(self.bands)
        if budget is not None:
            budget = max(budget, float(self.memory[0]))
            steps = int(np.searchsorted(self.memory, budget, side="right")) - 1
        counts = self.merged.rows.counts
        # A band ends up where its last step takes it, whichever tiers it went through.
        final = self.start.copy()
        final[self.bands[:steps]] = self.tiers[:steps]
        taken = {tier: counts * (final == tier) for tier in (REPLICATED, PER_NODE)}
        if steps < len(self.bands):
            self._cut(taken, final, steps, float(budget or 0.0))
        rounded = [
            self.merged.per_table(taken[tier]) // multiple * multiple
            for tier in (REPLICATED, PER_NODE)
        ]
        return rounded[0], rounded[1]

    def _cut(self, taken: dict[int, Integers], final: Tiers, steps: int, budget: float) -> None:
        """Move as many rows of the next step's band as the rest of the budget allows."""
        band, to = int(self.bands[steps]), int(self.tiers[steps])
        rows = int(self.merged.rows.counts[band])
        more = (self.memory[steps + 1] - self.memory[steps]) / rows
        some = min(int((budget - self.memory[steps]) // more), rows)
        for tier, change in ((to, some), (int(final[band]), -some)):
            if tier in taken:
                taken[tier][band] += change


def _summed(first: float, changes: Floats) -> Floats:
    """[S + 1] the first amount, and what it is after each change."""
    return np.cumsum(np.concatenate([[first], changes]))


def too_little(least: float, budget: float) -> CapabilityError:
    """Plans take `least` extra bytes a rank or more; `budget` is below that."""
    return CapabilityError(
        f"flexshard: budget_gb asks for {-budget:,.0f} bytes ({-budget / GB:.3g} GB) a rank to be "
        f"saved, but {-least:,.0f} ({-least / GB:.3g} GB) can be at most. Raise "
        "sharding.budget_gb."
    )
