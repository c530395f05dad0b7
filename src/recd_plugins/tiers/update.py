"""What one forward owes the replicas: its backward says how much, at its end it is paid."""

from __future__ import annotations

import torch

from recd_plugins.compat.autograd import at_end_of_backward
from recd_plugins.tiers.entries import Entries, HotGradients
from recd_plugins.tiers.reduction import Reduction
from recd_plugins.tiers.trip import GroupTrip, Trip

__all__ = ["Update"]


class Update:
    """The update of the replicas by one forward; two forwards make two, as with TorchRec."""

    def __init__(self, trip: Trip, reduction: Reduction) -> None:
        self.trip = trip
        self._reduction = reduction
        self._owed: dict[int, HotGradients] = {}

    def owe(self, group: int, gradients: HotGradients) -> None:
        """In backward: the gradients of one group's rows."""
        if not self._owed:
            at_end_of_backward(self._pay)
        self._owed[group] = gradients

    @torch.no_grad()
    def _pay(self) -> None:
        """Every rank pays for every group, be it with nothing."""
        if not self.trip.replicas.filled:  # someone had the state dict since
            self.trip.replicas.fill()
        for number, trip in enumerate(self.trip.groups):
            self._update(trip, self._owed.pop(number, None))

    def _update(self, trip: GroupTrip, gradients: HotGradients | None) -> None:
        rate = trip.replicas.group.learning_rate
        if gradients is None:
            gradients = trip.no_gradients()
        if (everywhere := trip.replicas.all_ranks_replica) is not None:
            self._reduction.all_ranks(everywhere, gradients.all_ranks, rate)
        if (shared := trip.replicas.per_node_replica) is not None:
            assert trip.answered is not None
            assert gradients.per_node is not None
            arriving = trip.answered.send_there(gradients.per_node, self._reduction.nodes.node)
            self._reduction.per_node(shared, Entries(trip.answered.ids, arriving.wait()), rate)
