"""The tiers of one sharded collection: which rows are in them, and who holds them now.

Rows are in the replicas while batches are computed. Whoever asks for a state dict may write
into it, so from then on they are at home, in the canonical table, until the next batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.types import ParameterSharding, ShardedModule
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.optim.keyed import CombinedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.torchrec import (
    flush_kernels,
    order_input,
    output_type,
    purge_kernels,
    table_feature_names,
)
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.tier_plan import TierPlan
from recd_plugins.sparse.keyed import mark_of
from recd_plugins.tiers.group import TableFeature, arrange, check_rows
from recd_plugins.tiers.hot import check_hot
from recd_plugins.tiers.ids.departure import DeferredExchange
from recd_plugins.tiers.ids.request import GroupRequest
from recd_plugins.tiers.nodes import Nodes
from recd_plugins.tiers.replicas import Replicas
from recd_plugins.tiers.router import Segments
from recd_plugins.tiers.trip import RoutedBatch, RoutedGroup
from recd_plugins.tiers.updates.optimizer import FlushingOptimizer
from recd_plugins.tiers.updates.reduction import Reduction
from recd_plugins.tiers.updates.update import Update

__all__ = ["CHUNK_ROWS", "Tiers"]

CHUNK_ROWS = 1 << 13
"""Rows under way at a time in an update: a few MB, at no loss of time."""


class Tiers:
    """Replicas in front of the tables of `sharded`, which hands over what TorchRec made of it."""

    def __init__(
        self,
        sharded: ShardedModule[Any, Any, Any, Any],
        configs: Sequence[BaseEmbeddingConfig],
        optimizer: CombinedOptimizer,
        shardings: Mapping[str, ParameterSharding],
        plan: TierPlan,
        nodes: Nodes,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self._sharded = sharded
        self.nodes = nodes
        self._groups, rest = arrange(sharded, configs, optimizer, shardings, plan)
        self.slots: list[TableFeature] = [s for group in self._groups for s in group.slots] + rest
        self.optimizer = FlushingOptimizer(optimizer, self.flush, self._set_learning_rates)
        self._chunk_rows = chunk_rows
        self._keys: list[str] | None = None
        self._take: list[int] = []
        self._routes = Replicas(self._groups, plan, nodes)
        """What new batches are routed by."""
        self._version = plan.version
        self._holds = self._routes
        """What has the rows, or had them last."""
        self._unapplied: WeakSet[Update] = WeakSet()
        self._departures: list[DeferredExchange] = []
        self.alive = torch.empty(0, requires_grad=True)
        names = [slot.name for slot in self.slots]
        order_input(sharded, [names.index(name) for name in table_feature_names(sharded)[1]])

    def depart(self, features: KeyedJaggedTensor) -> RoutedBatch:
        """Route a batch by the latest plan.

        It is hot if it is marked so under this plan. Marked under the one before, it was formed
        before `retier` and departs after it, on all ranks alike: it is a normal one.
        """
        hot = mark_of(features) == self._version
        features = self._by_slot(features)
        lengths, ids = features.length_per_key(), features.values().to(torch.int64)
        groups = []
        slot = start = 0
        for one in self._routes.groups:
            part = tuple(lengths[slot : slot + len(one.group.slots)])
            segments = Segments(part, one.group.table_of_feature)
            own = ids[start : start + sum(part)]
            groups.append(RoutedGroup.of(one, start, own, segments, self.nodes, hot=hot))
            slot, start = slot + len(part), start + sum(part)
        trip = RoutedBatch(
            replicas=self._routes,
            groups=groups,
            ids=ids,
            lengths=features.lengths().view(len(self.slots), -1),
            length_per_feature=lengths,
            weights=features.weights_or_none(),
            hot=hot,
        )
        if hot:
            check_hot(trip, self.slots)
        return trip

    def follow(self, departure: DeferredExchange) -> None:
        """Have `advance` reach it until TorchRec sends its ids."""
        self._departures.append(departure)

    def advance(self) -> None:
        """While a batch is computed: a turn of those that are still to depart."""
        for departure in self._departures:
            departure.advance()
        self._departures = [one for one in self._departures if not one.begun]

    def requests(self, trip: RoutedBatch) -> list[GroupRequest]:
        """Of each group, in their order."""
        return [group.request(self.nodes) for group in trip.groups]

    def arrive(self, trip: RoutedBatch, answers: Sequence[Any]) -> Update:
        """Have the rows where the batch looks for them, and send the node what it asked."""
        self._hold(trip.replicas)
        for group, answer in zip(trip.groups, answers, strict=True):
            group.arrive(answer, self.nodes)
        scale = 1 / self.nodes.world.size if get_gradient_division() else 1.0
        return Update(trip, Reduction(self.nodes, scale, self._chunk_rows, trip.hot))

    def expect(self, update: Update) -> None:
        """A forward whose backward will update the replicas."""
        self._unapplied.add(update)

    def flush(self) -> None:
        """Bring all rows and optimizer states home. Every rank must call it."""
        if self._holds.filled:
            flush_kernels(self._sharded)
            self._holds.flush()
            purge_kernels(self._sharded)

    @property
    def tables(self) -> set[str]:
        """Those that have tiers."""
        return {name for group in self._groups for name in group.tables}

    def check(self, plan: TierPlan) -> None:
        """`RegistryError` unless `retier` can take the plan, which is for these nodes."""
        for group in self._groups:
            check_rows(group, plan)
            for name in group.tables:
                if name in plan.tables and plan.tables[name].coalesce != group.coalesce:
                    raise RegistryError(
                        f"tier plan of table {name!r}: coalesce is {group.coalesce} since the "
                        f"model was sharded and cannot become {plan.tables[name].coalesce}."
                    )

    def retier(self, plan: TierPlan) -> None:
        """Route batches from now on by another plan of the same tables and way to them.

        The rows move once the first of these batches is computed: until then batches under
        way find them where they were routed to. Every rank calls it between the same batches,
        with a plan that `check` lets pass.
        """
        self._routes = Replicas(self._groups, plan, self.nodes)
        self._version = plan.version

    def _hold(self, replicas: Replicas) -> None:
        if self._holds is not replicas:
            owing = (update for update in self._unapplied if not update.applied)
            if any(update.trip.replicas is self._holds for update in owing):
                raise CapabilityError(
                    "tiers: a batch of the new plan is computed between a forward of the old one "
                    "and its backward. Call retier after the backward."
                )
            self.flush()
            self._holds.left = True
            self._holds = replicas
            replicas.left = False
        if not replicas.filled:
            flush_kernels(self._sharded)
            replicas.fill()

    @property
    def output_type(self) -> torch.dtype:
        """Of the embeddings that TorchRec yields."""
        return output_type(self._groups[0].optimizer) if self._groups else torch.float32

    def _set_learning_rates(self, rate: float | None) -> None:
        for group in self._groups:
            group.take_learning_rate(rate)

    def _by_slot(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """A key for each slot, in the order of the slots."""
        if features.variable_stride_per_key():
            raise CapabilityError(
                "tiers: the KJT's keys differ in batch size (variable batch per feature), which "
                "replicas do not take. Pass the unique samples of an IKJT, or a plain KJT."
            )
        keys = features.keys()
        if keys != self._keys:
            self._keys = list(keys)
            self._take = [self._keys.index(slot.feature) for slot in self.slots]
        if self._take == list(range(len(keys))):
            return features
        return features.permute(self._take)
