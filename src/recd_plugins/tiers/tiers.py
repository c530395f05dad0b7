"""The tiers of one sharded collection: which rows are in them, and who holds them now.

Rows are in the replicas while batches are computed. Whoever asks for a state dict may write
into it, so from then on they are at home until the next batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torchrec.distributed.types import LazyAwaitable, ShardedModule
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.fused_kernels import (
    count_forward,
    flush_kernels,
    output_type,
    purge_kernels,
)
from recd_plugins.compat.home_weights import report_reads_of_shards
from recd_plugins.compat.torchrec import (
    device_of,
    is_tracked,
    optimizer_of,
    order_input,
    table_feature_names,
)
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.notices import NoticeWarning, noticed_if_long
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.sparse.keyed import mark_of
from recd_plugins.tiers.exchange.deferred_exchange import DeferredExchange
from recd_plugins.tiers.exchange.group_request import GroupAnswer, GroupRequest
from recd_plugins.tiers.gradients.reduction import GradientDivision, Reduction
from recd_plugins.tiers.peers import Nodes
from recd_plugins.tiers.replicas.group_replicas import Replicas
from recd_plugins.tiers.routed_batch import GroupIds, RoutedBatch, RoutedGroup, check_hot
from recd_plugins.tiers.routing.input_ids import InputIds
from recd_plugins.tiers.routing.routed_ids import Segments
from recd_plugins.tiers.tables import TableFeature, check_rows, group_tables
from recd_plugins.tiers.updates.due_updates import DueUpdates
from recd_plugins.tiers.updates.update import Update

__all__ = ["FlushingOptimizer", "Tiers"]

LONG = 60.0
"""Seconds after which a rank says that it waits for others to exchange replicas."""


class Tiers:
    """Routes the batches of a collection, and has the rows where each batch looks for them."""

    def __init__(
        self,
        sharded: ShardedModule[Any, Any, Any, Any],
        configs: Sequence[BaseEmbeddingConfig],
        plan: TierPlan,
        nodes: Nodes,
        chunk_rows: int,
    ) -> None:
        """`sharded` is as TorchRec made it, and its tables' optimizer is wrapped here."""
        self._sharded = sharded
        self.nodes = nodes
        self._groups, others = group_tables(sharded, configs, plan)
        tiered = [feature for group in self._groups for feature in group.features]
        self.features: list[TableFeature] = tiered + others
        """Features of tables with tiers come first, group by group."""
        self.optimizer = FlushingOptimizer(optimizer_of(sharded).optimizers, self)
        own = in_backward_optimizer_filter(sharded.named_parameters())
        self._dense = [name for name, weight in own if weight.requires_grad]
        """The parameters of tables that the trainer's dense optimizer steps."""
        self._chunk_rows = chunk_rows
        self._input = InputIds(self.features, nodes.world.size)
        self._newest = Replicas(self._groups, plan, nodes)
        """The replicas that new batches are routed by."""
        self._holder = self._newest
        """The replicas that have the rows, or had them last."""
        self._updates = DueUpdates()
        self._deferred: list[DeferredExchange] = []
        self._reported_read = False
        self.met_hot = False
        """Whether any batch was a hot one."""
        self.anchor = torch.empty(0, dtype=torch.float32, requires_grad=True, device="cpu")
        """An input of each autograd function of the tiers. It requires a gradient, though none
        comes, so that backward gets to the tiers on every rank."""
        names = [feature.name for feature in self.features]
        order_input(sharded, [names.index(name) for name in table_feature_names(sharded)[1]])

    def route(self, features: KeyedJaggedTensor) -> RoutedBatch:
        """Route a batch by the latest plan.

        The batch is hot if it is marked so under this plan. A batch that is marked under an earlier
        plan was formed before `retier` and is routed after it, on all ranks alike: it counts as a
        normal one.
        """
        hot = mark_of(features) == self._newest.version
        self.met_hot |= hot
        arranged = self._input.arranged(features)
        lengths, given = arranged.length_per_key(), arranged.values()
        ids, groups = self._routed(given, lengths, hot=hot)
        bag_lengths, weights = arranged.lengths(), arranged.weights_or_none()
        if arranged is features:
            # A pipeline may free the trainer's own once all ids are on their way.
            bag_lengths = bag_lengths.clone()
            weights = None if weights is None else weights.clone()
        batch = RoutedBatch(
            replicas=self._newest,
            groups=groups,
            given=given,
            ids=ids,
            lengths=bag_lengths.view(len(self.features), -1),
            length_per_feature=lengths,
            weights=weights,
            hot=hot,
        )
        if hot:
            check_hot(batch, self.features)
        return batch

    def _routed(
        self, given: Tensor, lengths: Sequence[int], *, hot: bool
    ) -> tuple[Tensor, list[RoutedGroup]]:
        """The ids [N] int64 that are looked up for those that are `given`, and those of each group
        as they are routed."""
        ids = given.to(torch.int64)
        group_ids = list(self._group_ids(lengths))
        routed = [one.route(ids) for one in group_ids]
        if any(found.outside for found in routed):
            ids = self._input.looked_up(given, group_ids)
            routed = [one.route(ids) for one in group_ids]
        groups = [
            RoutedGroup.of(one, ids, found, self.nodes, hot=hot)
            for one, found in zip(group_ids, routed, strict=True)
        ]
        return ids, groups

    def _group_ids(self, lengths: Sequence[int]) -> Iterator[GroupIds]:
        """The ids of each group, of a batch with so many ids of each feature."""
        first = start = 0
        for one in self._newest.groups:
            own = tuple(lengths[first : first + len(one.group.features)])
            yield GroupIds(one, start, first, Segments(own, one.group.table_of_feature))
            first, start = first + len(own), start + sum(own)

    def begin_requests(self, batch: RoutedBatch) -> list[GroupRequest]:
        """Begin each group's request, in their order."""
        return [group.request(self.nodes) for group in batch.groups]

    def look_up(self, batch: RoutedBatch, answers: Sequence[GroupAnswer]) -> Update:
        """Look the batch up in the replicas that it is routed by, and send the node the rows that
        it asked for. Replicas that are empty are filled first.

        The update is the one that the batch's backward will make.
        """
        self._updates.drop_failed()
        self._move_rows_to(batch.replicas)
        before_backward = any(True for _ in self._updates.to_come())
        if torch.is_grad_enabled():
            for answer in answers:
                answer.count_touched()
        for group, answer in zip(batch.groups, answers, strict=True):
            group.look_up(answer, self.nodes, before_backward=before_backward)
        division = GradientDivision.of_forward()
        reduction = Reduction(self.nodes, division, self._chunk_rows, batch.hot)
        skipped: list[Parameter] = []
        if batch.hot:
            count_forward(self._sharded)
            skipped = [self._sharded.get_parameter(name) for name in self._dense]
        return Update(batch, reduction, self._updates, skipped)

    def _move_rows_to(self, replicas: Replicas) -> None:
        """Have these replicas hold the rows; those of another plan first bring their rows home."""
        if self._holder is not replicas:
            to_come = self._updates.to_come()
            if any(update.batch.replicas is self._holder for update in to_come):
                raise CapabilityError(
                    "tiers: a batch of the new plan is computed between a forward of the old one "
                    "and its backward. Call retier after the backward; if a loss has no backward, "
                    "keep `loss.detach()`."
                )
            self.flush()
            self._holder.replaced = True
            self._holder = replicas
            replicas.replaced = False
        if replicas.filled:
            replicas.check_not_written()
            return
        flush_kernels(self._sharded)
        with _explains_waiting(self.nodes.world.rank):
            replicas.fill()

    def wait(self, home: LazyAwaitable[Any]) -> Any:
        """The rows, or sums of rows, that TorchRec brings from home for a forward."""
        found = home.wait()
        self.advance_deferred()
        return found

    def defer(self, exchange: DeferredExchange) -> None:
        """Have `advance_deferred` advance it until TorchRec sends its ids."""
        self._deferred.append(exchange)

    def advance_deferred(self) -> None:
        """Advance the exchanges of batches to come; called while a batch is computed."""
        for exchange in self._deferred:
            exchange.advance()
        self._deferred = [one for one in self._deferred if not one.begun]

    def no_rows(self, width: int) -> Tensor:
        """[0, width], of the type and on the device of the embeddings that TorchRec yields."""
        kind = output_type(self._groups[0].optimizer) if self._groups else torch.float32
        return torch.empty(0, width, dtype=kind, device=device_of(self._sharded))

    def flush(self) -> None:
        """Bring all rows and optimizer states home. Every rank must call it."""
        self._updates.drop_failed()
        if self._holder.filled:
            flush_kernels(self._sharded)
            with _explains_waiting(self.nodes.world.rank):
                self._holder.flush()
            purge_kernels(self._sharded)

    def flushing(self, optimizer: KeyedOptimizer) -> FlushingOptimizer:
        """A fused optimizer of some of these tables, whose state is at home for whoever asks."""
        return FlushingOptimizer([("", optimizer)], self)

    def report_read(self, table: str) -> bool:
        """Warn, once, that somebody reads a table at home while replicas have rows of it; whether
        they do."""
        held = self._holder.hold(table)
        if self._reported_read or not held:
            return held
        self._reported_read = True
        warnings.warn(
            f"tiers: the weights of table {table!r}, or their optimizer's state, are read while "
            "rows of it are in replicas: what is read of these rows is as old as the last state "
            "dict. Call model.state_dict() on every rank each time before you read or write "
            "weights, and do so before the next batch: until then all rows are at home.",
            NoticeWarning,
            stacklevel=4,
        )
        return held

    def copies(self) -> Iterator[Tensor]:
        """The tensors that hold rows and optimizer state outside of their home at present."""
        return self._holder.copies()

    @property
    def tables(self) -> set[str]:
        """The tables that have tiers."""
        return {name for group in self._groups for name in group.tables}

    @property
    def exchanges_back(self) -> bool:
        """Whether waiting for rows runs an exchange within the node, since the node coalesced the
        ids."""
        several = self.nodes.ranks_per_node > 1
        return several and any(group.coalesce == "node" for group in self._groups)

    @property
    def has_replicas(self) -> bool:
        """Whether any row has a replica; tables may be coalesced and have none."""
        layouts = ((one.replicated_layout, one.per_node_layout) for one in self._newest.groups)
        return any(layout.count for both in layouts for layout in both)

    def tracker_error(self) -> CapabilityError:
        """The error of a tracker of TorchRec's beside replicas: it does not see lookups that no
        kernel makes."""
        tables = ", ".join(sorted(self.tables))
        return CapabilityError(
            f"tiers: TorchRec's delta tracker would miss the rows of {tables} that have replicas. "
            "Leave these tables to TorchRec (`tables` of the planner in registry.yaml names those "
            "that may have any), or leave out the tracker."
        )

    def check(self, plan: TierPlan) -> None:
        """`RegistryError` unless `retier` can take the plan, which is for these nodes; and
        `CapabilityError` where it gives rows their first replicas, and a tracker is there."""
        planned = [plan.tables[name] for name in self.tables & plan.tables.keys()]
        if is_tracked(self._sharded) and any(len(o.replicated) + len(o.per_node) for o in planned):
            raise self.tracker_error()
        for group in self._groups:
            check_rows(group, plan)
            for name in group.tables:
                if name in plan.tables and plan.tables[name].coalesce != group.coalesce:
                    raise RegistryError(
                        f"tier plan of table {name!r}: coalesce is {group.coalesce} since the "
                        f"model was sharded and cannot become {plan.tables[name].coalesce}."
                    )

    def retier(self, plan: TierPlan) -> None:
        """Route batches from now on by another plan, of the same tables with the same coalescing.

        The rows move when the first of these batches is computed; until then batches under way find
        them where they were routed to. Every rank calls it between the same batches, with a plan
        that `check` accepts.
        """
        self._newest = Replicas(self._groups, plan, self.nodes)


def _explains_waiting(rank: int) -> AbstractContextManager[None]:
    """Warn if it takes long until all ranks have exchanged the rows of replicas: other ranks may
    not come, and the process group would say so much later, and not why."""
    return noticed_if_long(
        LONG,
        f"tiers: for {LONG:g} s rank {rank} has exchanged the rows of replicas with the other "
        "ranks, as all do together when the state of model or optimizer is asked for, and in the "
        "first batch after that. If one of them asked alone, the others never come: call "
        "state_dict() on every rank, and write on one.",
    )


class FlushingOptimizer(CombinedOptimizer):
    """TorchRec's fused optimizers of tables, whose state is partly with replicas.

    Whoever asks for the state gets it whole: the tiers first bring it home, so every rank must ask.
    Learning rates and other numbers that are changed reach the replicas too: each forward reads
    them from TorchRec's kernels.
    """

    def __init__(self, optimizers: Iterable[tuple[str, KeyedOptimizer]], tiers: Tiers) -> None:
        super().__init__([*optimizers])
        self._tiers = tiers

    @property
    def state(self) -> Any:
        self._tiers.flush()
        found = super().state
        for states in found.values():
            for key, one in states.items():  # TABLE.STATE
                table = key.rpartition(".")[0]
                report_reads_of_shards(one, table, self._tiers.report_read)
        return found
