"""Rows are summed over bags from where they lie, and gradients of bags become gradients of rows.

No id gets a copy of its row in between: forward reads each row where it came in and writes bags,
and backward writes rows. The rows of ids that missed are summed here too where they come from home
one by one (`row_bags_output`); otherwise TorchRec sums them there (`bag_sums_output`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType

from recd_plugins.tiers.gradients.entries import Entries, add_rows
from recd_plugins.tiers.routed_batch import RoutedBatch, RoutedGroup, begins
from recd_plugins.tiers.updates.update import ReplicaGradients

__all__ = ["Divisor", "GroupBags", "Lookups", "divide", "divided_by", "divisors_of"]

TINY = 1e-6
"""What TorchRec adds to a divisor, so that the mean of an empty bag is 0."""

Divisor = Literal["size", "one"]
"""What TorchRec divides a feature's sums by: the size of each bag, or 1, plus `TINY`."""


@dataclass(frozen=True)
class GroupBags:
    """The bags of one group's ids: bag f · B + b is that of its feature f and sample b."""

    num_bags: int
    like: Tensor
    """[0, D] of the tables' type, on their device."""
    replicated: Lookups
    replicated_rows: Tensor | None
    """[H, D]: the rows of the tier `replicated` on this rank, or copies of those of its ids alone,
    as they were looked up."""
    addresses: Tensor
    """[n] int32 or int64: the addresses of the rows that `replicated` looks up."""
    per_node: Lookups | None
    node_rows: Tensor | None
    """[u, D]: the rows that this rank asked of its node."""
    missed: Lookups | None
    """The ids whose rows come from home one by one; None where TorchRec sums them there."""

    @classmethod
    def of(cls, batch: RoutedBatch, group: RoutedGroup, *, rows_come: bool) -> GroupBags:
        bags = batch.bag_of_id[group.span] - group.first_feature * batch.batch_size
        weights = None if batch.weighing is None else batch.weighing[group.span]

        def lookups(which: Tensor, at: Tensor) -> Lookups:
            if len(at) == len(bags):
                return Lookups(which, bags, weights)
            return Lookups(which, bags[at], None if weights is None else weights[at])

        routed, asked = group.routed, group.asked
        rows, which = group.replicated_source
        if which is None:
            which = torch.arange(len(routed.replicated.at), device=bags.device)
        missed = None
        if rows_come:
            inverse = group.home_ids.result.inverse
            if inverse is None:
                inverse = torch.arange(len(routed.missed), device=bags.device)
            missed = lookups(inverse, routed.missed)
        return cls(
            num_bags=len(group.segments.lengths) * batch.batch_size,
            like=group.replicas.group.like,
            replicated=lookups(which, routed.replicated.at),
            replicated_rows=rows,
            addresses=group.addresses,
            per_node=None if asked is None else lookups(asked.inverse, routed.per_node.at),
            node_rows=None if group.node_rows is None else group.node_rows.wait(),
            missed=missed,
        )

    def sums(self, home: Tensor | None = None) -> Tensor:
        """[F · B, D] float32; `home` [u, D] are the rows that came from home, where rows travel."""
        sources = [
            (lookups, rows)
            for lookups, rows in (
                (self.missed, home),
                (self.replicated, self.replicated_rows),
                (self.per_node, self.node_rows),
            )
            if lookups is not None and rows is not None and len(lookups.which)
        ]
        if not sources:
            return self.like.new_zeros(self.num_bags, self.like.shape[1], dtype=torch.float32)
        first, *others = (lookups.sums(rows, self.num_bags) for lookups, rows in sources)
        for sums in others:
            first += sums
        return first

    def replica_gradients(self, sums: Tensor) -> ReplicaGradients:
        """The gradients of the tiers' rows, from those of the sums [F · B, D] float32."""
        hits = self.replicated
        replicated = Entries(self.addresses, sums, hits.bags, hits.weights)
        if self.per_node is None or self.node_rows is None:
            return ReplicaGradients(replicated, None)
        return ReplicaGradients(replicated, self.per_node.gradients(sums, len(self.node_rows)))


@dataclass(frozen=True)
class Lookups:
    """n ids whose rows are all in one source, each id in a bag."""

    which: Tensor
    """[n] int64: the row of each."""
    bags: Tensor
    """[n] int64, ascending."""
    weights: Tensor | None
    """[n] float32; by default 1."""

    def sums(self, rows: Tensor, num_bags: int) -> Tensor:
        """[num_bags, D] float32, of `rows` [u, D]."""
        if not len(self.which):
            return rows.new_zeros(num_bags, rows.shape[1], dtype=torch.float32)
        which = self.which
        if rows.dtype != torch.float32:  # of smaller types, sums would be rounded too
            rows = rows.index_select(0, which).float()
            which = torch.arange(len(which), device=which.device)
        # A row for each id, and `index_add_` of these, would take 2 to 9 times as long on the CPU.
        sums: Tensor = torch.embedding_bag(
            rows,
            which,
            begins(self.bags, num_bags),
            mode=0,  # the sum
            per_sample_weights=self.weights,
            include_last_offset=True,
        )[0]
        return sums

    def gradients(self, bags: Tensor, num_rows: int) -> Tensor:
        """[num_rows, D] float32, from the gradients of the sums over `bags` [num_bags, D]."""
        if not bags.is_cuda:
            rows = bags.new_zeros(num_rows, bags.shape[1])
            add_rows(rows, self.which, bags, self.bags, self.weights)
            return rows
        return self.turned().sums(bags, num_rows)

    def turned(self) -> Lookups:
        """The lookups turned round: each row becomes a bag of the bags that it is in."""
        order = self.which.argsort(stable=True)
        return Lookups(
            self.bags[order],
            self.which[order],
            None if self.weights is None else self.weights[order],
        )


def divisors_of(
    configs: Iterable[EmbeddingBagConfig], row_wise: Collection[str]
) -> dict[str, Divisor]:
    """The divisors of a collection's `row_wise` tables; sums of others stay as they are.

    Where one of them pools by the mean, TorchRec divides the sums of all of them. It divides those
    that stay sums by 1 plus `TINY`, and so do we.
    """
    found: dict[str, Divisor] = {
        config.name: "size" if config.pooling is PoolingType.MEAN else "one"
        for config in configs
        if config.name in row_wise
    }
    return found if "size" in found.values() else {}


def divided_by(batch: RoutedBatch, divisors: Sequence[Divisor | None]) -> list[Tensor | None]:
    """The numbers [B] that the sums of each feature are divided by."""
    if not any(divisors):
        return [None] * len(divisors)
    sizes = batch.bag_sizes()
    one = torch.ones_like(sizes[0])
    return [
        None if divisor is None else (size if divisor == "size" else one) + TINY
        for size, divisor in zip(sizes, divisors, strict=True)
    ]


def divide(features: Iterable[Tensor], divisors: Sequence[Tensor | None]) -> None:
    """Divide each feature's bags [B, D] in place; those without a divisor stay."""
    for bags, divisor in zip(features, divisors, strict=True):
        if divisor is not None:
            bags /= divisor.unsqueeze(1)
