"""What one forward owes the replicas: its backward says how much, at its end it is paid."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from recd_plugins.compat.autograd import at_end_of_backward
from recd_plugins.errors import CapabilityError
from recd_plugins.tiers.errand import Collectives, CollectiveSequence
from recd_plugins.tiers.replica import PerNodeTier
from recd_plugins.tiers.trip import RoutedBatch, RoutedGroup
from recd_plugins.tiers.updates.entries import Entries, HotGradients
from recd_plugins.tiers.updates.reduction import Reduction
from recd_plugins.tiers.updates.side_stream import side_stream

__all__ = ["Update"]


class Update:
    """The update of the replicas by one forward; two forwards make two, as with TorchRec.

    Gradients are on their way as soon as backward has them, beside the rest of it: on CUDA on a
    stream of their own. Rows change at its end, one update after another.
    """

    def __init__(self, trip: RoutedBatch, reduction: Reduction) -> None:
        self.trip = trip
        self._reduction = reduction
        self._rates = [one.replicas.group.learning_rate for one in trip.groups]
        """Of the forward, as fbgemm's: backward steps by them, whatever was set since."""
        self._stream = side_stream(trip.ids.device)
        self._under_way: dict[int, list[CollectiveSequence[None]]] = {}
        self.applied = False
        """Whether its backward has run: its graph may live on, but owes nothing."""

    def accumulate(self, group: int, gradients: HotGradients) -> None:
        """In backward: the gradients of one group's rows."""
        if not self._under_way:
            if self.trip.replicas.left:
                raise CapabilityError(
                    "tiers: a second backward of a batch (retain_graph) whose tier plan has been "
                    "left since its first. Call retier after the last backward."
                )
            if not self.trip.replicas.filled:  # someone had the state dict since
                self.trip.replicas.fill()
            at_end_of_backward(self._apply)
        entries = gradients.replicated
        made = entries.places, entries.gradients, entries.sources, entries.weights
        with self._stream.after(*made, gradients.per_node):
            self._under_way[group] = list(self._errands(group, gradients))

    def _apply(self) -> None:
        """Every rank pays for every group, be it with nothing."""
        for number, trip in enumerate(self.trip.groups):
            if number not in self._under_way:
                self.accumulate(number, trip.no_gradients())
        under_way, self._under_way = self._under_way, {}
        with self._stream.after():
            for errands in under_way.values():
                for errand in errands:
                    errand.finish()
        self._stream.join()
        self.applied = True

    @torch.no_grad()
    def _errands(self, group: int, gradients: HotGradients) -> Iterator[CollectiveSequence[None]]:
        trip, rate = self.trip.groups[group], self._rates[group]
        answer = trip.answer
        assert answer is not None
        if (everywhere := trip.replicas.replicated_tier) is not None:
            assert answer.touched is not None
            touched = answer.touched.finish()
            self._stream.keep(*touched)
            entries = gradients.replicated
            yield CollectiveSequence(self._reduction.replicated(everywhere, entries, touched, rate))
        shared = trip.replicas.per_node_tier
        if shared is not None and not trip.hot:
            yield CollectiveSequence(self._per_node(shared, trip, gradients, rate))

    def _per_node(
        self, replica: PerNodeTier, trip: RoutedGroup, gradients: HotGradients, rate: float
    ) -> Collectives[None]:
        """First to the ranks of the node that the rows were asked of."""
        assert trip.answer is not None
        ids, touched = trip.answer.ids, trip.answer.touched_in_nodes
        assert ids is not None
        assert touched is not None
        assert gradients.per_node is not None
        arrived = yield ids.send_there(gradients.per_node, self._reduction.nodes.node)
        entries = Entries(ids.ids, arrived)
        yield from self._reduction.per_node(replica, entries, touched.finish(), rate)
