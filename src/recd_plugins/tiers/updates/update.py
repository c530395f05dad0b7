"""The update of replicas by one forward's backward: when gradients are handed on, and when rows
change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor
from torch.nn import Parameter

from recd_plugins.compat.pytorch import unseen_by_checkpoints
from recd_plugins.errors import CapabilityError
from recd_plugins.tiers.collectives import Collectives, CollectiveSequence
from recd_plugins.tiers.gradients.entries import Entries
from recd_plugins.tiers.gradients.reduction import Reduction
from recd_plugins.tiers.replicas.tier_rows import PerNodeTier
from recd_plugins.tiers.routed_batch import RoutedBatch, RoutedGroup
from recd_plugins.tiers.row_optimizer import RowOptimizer
from recd_plugins.tiers.updates.due_updates import DueUpdates
from recd_plugins.tiers.updates.side_stream import side_stream

__all__ = ["GroupUpdate", "ReplicaGradients", "Update"]

_NUMBERS = count()


class Update:
    """The update of the replicas by one forward; two forwards make two, as with TorchRec.

    Gradients are on their way as soon as backward has them, beside the rest of it: on CUDA on a
    stream of their own. Rows change at its end, one update after another.
    """

    def __init__(
        self,
        batch: RoutedBatch,
        reduction: Reduction,
        updates: DueUpdates,
        skipped: Sequence[Parameter],
    ) -> None:
        """`updates` are all those of the same collection. `skipped` are parameters of an optimizer
        outside TorchRec: the forward left out their lookups, since no id looks them up."""
        self.batch = batch
        self._skipped = skipped
        self.learns = torch.is_grad_enabled()
        """Whether its rows are looked up with gradients, as TorchRec's kernels see it."""
        self.number = next(_NUMBERS)
        self._updates = updates
        self._reduction = reduction
        self._optimizers = [one.replicas.group.row_optimizer() for one in batch.groups]
        """The optimizers as they are at the time of the forward: backward steps by these, as fbgemm
        does."""
        self._stream = side_stream(batch.ids.device)
        self._under_way: dict[int, list[CollectiveSequence[None]]] = {}
        self.applied = False
        """Whether its backward has run, or failed. Its graph may live on, but no update is due."""
        updates.add(self)

    def accumulate(self, group: int, gradients: ReplicaGradients) -> None:
        """Backward has the gradients of one group's rows: begin to sum them over ranks."""
        backward = self._updates.running()
        if self not in backward.updates:
            if self.batch.replicas.replaced:
                raise CapabilityError(
                    "tiers: a second backward of a batch (retain_graph) whose tier plan was "
                    "replaced after the first backward. Call retier after the last backward."
                )
            if not self.batch.replicas.filled:  # someone had the state dict since
                self.batch.replicas.fill()
            backward.add(self)
        self._begin(group, gradients)

    def _begin(self, group: int, gradients: ReplicaGradients) -> None:
        entries = gradients.replicated
        made = entries.targets, entries.gradients, entries.sources, entries.weights
        with self._stream.after(*made, gradients.per_node):
            self._under_way[group] = list(self._reductions(group, gradients))

    def clipped(self, gradient: Tensor, most: float | None) -> Tensor:
        """The gradient of an output, its numbers clipped as TorchRec's kernel clips them after
        their division."""
        if most is None:
            return gradient
        reduction = self._reduction
        bound = most / reduction.division.scale(reduction.nodes.world.size)
        return gradient.clamp(-bound, bound)

    @contextmanager
    def at_lookup(self) -> Iterator[None]:
        """Compute as when the rows were looked up, not as when somebody waits for them: without a
        gradient if they were looked up without one, and unseen by an activation checkpoint around
        the wait, whose second run would find the rows already there."""
        with torch.set_grad_enabled(self.learns and torch.is_grad_enabled()):
            if torch.compiler.is_compiling():
                yield
            else:
                with unseen_by_checkpoints():
                    yield
        self._updates.read(self)

    def keep_rows(self) -> None:
        """Rows are about to change: keep copies of those that are looked up."""
        for group in self.batch.groups:
            group.keep_rows()

    def apply(self) -> None:
        """Finish the sums and step the rows. Every rank does so for every group, even if it has no
        gradients for it."""
        for number, group in enumerate(self.batch.groups):
            if number not in self._under_way:
                self._begin(number, _no_gradients(group))
        self._updates.keep_unread()
        under_way, self._under_way = self._under_way, {}
        with self._stream.after():
            for sequences in under_way.values():
                for sequence in sequences:
                    sequence.finish()
        self._stream.join()
        for parameter in self._skipped:
            if parameter.grad is None:  # a lookup of nothing has zeros, by which Adam steps
                parameter.grad = torch.zeros_like(parameter)
        self.applied = True

    def drop(self) -> None:
        """Its backward failed: step no row by the gradients that came."""
        self._under_way.clear()
        self.applied = True

    @torch.no_grad()
    def _reductions(
        self, number: int, gradients: ReplicaGradients
    ) -> Iterator[CollectiveSequence[None]]:
        group, optimizer = self.batch.groups[number], self._optimizers[number]
        answer = group.answer
        assert answer is not None
        if (replicated := group.replicas.replicated_tier) is not None:
            assert answer.touched is not None
            touched = answer.touched.finish()
            self._stream.keep(*touched.tensors)
            entries = gradients.replicated
            yield CollectiveSequence(
                self._reduction.replicated(replicated, entries, touched, optimizer)
            )
        per_node = group.replicas.per_node_tier
        if per_node is not None and not group.hot:
            yield CollectiveSequence(self._per_node(per_node, group, gradients, optimizer))

    def _per_node(
        self,
        tier: PerNodeTier,
        group: RoutedGroup,
        gradients: ReplicaGradients,
        optimizer: RowOptimizer,
    ) -> Collectives[None]:
        """Send gradients to the ranks of the node that the rows were asked of, and sum there."""
        assert group.answer is not None
        exchange, by_node = group.answer.exchange, group.answer.touched_by_node
        assert exchange is not None
        assert by_node is not None
        assert gradients.per_node is not None
        theirs = yield exchange.gradients_to_asked(gradients.per_node, self._reduction.nodes.node)
        touched = by_node.finish()
        self._stream.keep(touched.rows, touched.by_node)
        entries = Entries(exchange.ids, theirs)
        yield from self._reduction.per_node(tier, entries, touched, optimizer)


class GroupUpdate:
    """An update as the backward of one group of tables sees it."""

    def __init__(self, update: Update, number: int) -> None:
        self._update = update
        self._number = number

    def clipped(self, gradient: Tensor) -> Tensor:
        """The gradient of the group's outputs, clipped if its tables' are."""
        group = self._update.batch.groups[self._number].replicas.group
        return self._update.clipped(gradient, group.max_gradient)

    def accumulate(self, gradients: ReplicaGradients) -> None:
        self._update.accumulate(self._number, gradients)


@dataclass(frozen=True)
class ReplicaGradients:
    """The gradients that the backward of one group of tables has for its replicas."""

    replicated: Entries
    """Gradients of rows of the tier `replicated`, whose targets are addresses."""
    per_node: Tensor | None
    """[u, D] float32: gradients of the rows that this rank asked of its node."""


def _no_gradients(group: RoutedGroup) -> ReplicaGradients:
    """The gradients of an output that no loss depends on."""
    like = group.replicas.group.like.float()
    asked = None if group.asked is None else like.new_zeros(len(group.asked.ids), like.shape[1])
    return ReplicaGradients(Entries(group.addresses[:0], like), asked)
