"""Rows from the canonical table and from both tiers, put together in the order of the ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd import Function

from recd_plugins.tiers.router import RoutedIds
from recd_plugins.tiers.updates.entries import Entries, HotGradients
from recd_plugins.tiers.updates.share import Layout

__all__ = ["Sources", "merge_sequences"]


@dataclass(frozen=True)
class Sources:
    """Where the N rows of a group's ids come from."""

    routed: RoutedIds
    missed_inverse: Tensor | None
    """[n] int64: which of the canonical rows each id that passed has; by default its own."""
    replicated: Tensor | None
    """[H, D]: the replica on this rank."""
    layout: Layout
    """Of that replica."""
    per_node: Tensor | None
    """[u, D]: the rows that this rank asked of its node."""
    per_node_inverse: Tensor | None
    """[m] int64: which of the u each id of the per-node tier has."""


class _MergeSequences(Function):
    @staticmethod
    def forward(
        ctx: Any,
        canonical: Tensor,
        alive: Tensor,
        sources: Sources,
        keep: Callable[[HotGradients], None],
    ) -> Tensor:
        ctx.sources, ctx.keep, ctx.canonical_shape = sources, keep, canonical.shape
        routed = sources.routed
        passed = _chosen(canonical, sources.missed_inverse)
        parts = [(routed.passed, passed)]
        if sources.replicated is not None:
            rows = sources.replicated.index_select(0, routed.replicated.positions)
            parts.append((routed.replicated.at, rows))
        if sources.per_node is not None:
            parts.append((routed.per_node.at, _chosen(sources.per_node, sources.per_node_inverse)))
        count = sum(len(at) for at, _ in parts)
        for at, rows in parts:
            if len(at) == count:
                return rows.to(canonical.dtype, copy=rows is canonical)
        merged = canonical.new_empty(count, canonical.shape[1])
        for at, rows in parts:
            merged.index_copy_(0, at, rows.to(canonical.dtype))
        return merged

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        sources: Sources = ctx.sources
        routed = sources.routed
        shared = None
        if sources.per_node is not None:
            shared = _summed(
                gradient, routed.per_node.at, sources.per_node_inverse, len(sources.per_node)
            ).float()
        places = sources.layout.place(routed.replicated.positions)
        # Where all ids are in the tier, each has the gradient of its own number.
        at = None if len(places) == len(gradient) else routed.replicated.at
        ctx.keep(HotGradients(Entries(places, gradient.float(), at), shared))
        passed = _summed(gradient, routed.passed, sources.missed_inverse, ctx.canonical_shape[0])
        return passed, None, None, None


def merge_sequences(
    canonical: Tensor, alive: Tensor, sources: Sources, keep: Callable[[HotGradients], None]
) -> Tensor:
    """[N, D], in the order of the ids. Backward yields the gradient of `canonical` [u, D] to
    TorchRec, and hands that of the replicas to `keep`.

    `alive` requires a gradient (that never comes), so that backward gets here on every rank.
    """
    merged: Tensor = _MergeSequences.apply(canonical, alive, sources, keep)
    return merged


def _chosen(rows: Tensor, which: Tensor | None) -> Tensor:
    return rows if which is None else rows.index_select(0, which)


def _summed(gradient: Tensor, at: Tensor, inverse: Tensor | None, count: int) -> Tensor:
    """The gradient of `count` rows, of which those `at` have one each, or `inverse` says whose."""
    own = gradient if len(at) == len(gradient) else gradient.index_select(0, at)
    if inverse is None:
        return own
    return own.new_zeros(count, own.shape[1]).index_add_(0, inverse, own)
