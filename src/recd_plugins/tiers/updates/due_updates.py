"""Which updates of replicas are due, and at the end of which backward each is applied."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from recd_plugins.compat.pytorch import at_end_of_backward, running_backward
from recd_plugins.notices import NoticeWarning

if TYPE_CHECKING:
    from recd_plugins.tiers.updates.update import Update

__all__ = ["DueUpdates"]

FAILED = (
    "tiers: a backward failed, or was stopped, once gradients had come to rows that have replicas: "
    "it changed none of these rows, but may have changed others of the same tables. Go back to the "
    "last checkpoint, or go on if a part of a step does no harm."
)


class DueUpdates:
    """The updates of one collection: those whose rows nobody has read yet, those whose backward may
    come, and those that have gradients in a running backward."""

    def __init__(self) -> None:
        self._unread: WeakSet[Update] = WeakSet()
        self._learning: WeakSet[Update] = WeakSet()
        """As long as the graphs of their forwards live."""
        self._backwards: list[_Backward] = []
        self._reported = False

    def add(self, update: Update) -> None:
        self._unread.add(update)
        if update.learns:
            self._learning.add(update)

    def read(self, update: Update) -> None:
        """Somebody has waited for the rows."""
        self._unread.discard(update)

    def keep_unread(self) -> None:
        """Rows are about to change: keep copies for lookups that are read later."""
        for update in self._unread:
            update.keep_rows()

    def to_come(self) -> Iterator[Update]:
        """Those whose backward may come."""
        return (update for update in self._learning if not update.applied)

    def running(self) -> _Backward:
        """The backward that runs."""
        self.drop_failed()
        number = running_backward()
        for backward in self._backwards:
            if backward.number == number:
                return backward
        self._backwards.append(_Backward(number))
        return self._backwards[-1]

    def drop_failed(self) -> None:
        """Leave out the updates of a backward that failed, and say so."""
        for backward in [one for one in self._backwards if one.over]:
            self._backwards.remove(backward)
            for update in backward.updates:
                update.drop()
            if backward.updates and not self._reported:
                self._reported = True
                warnings.warn(FAILED, NoticeWarning, stacklevel=4)


class _Backward:
    """The updates that have gradients in one backward, whose end applies them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.updates: list[Update] = []
        self._ends: WeakSet[_End] = WeakSet()

    @property
    def over(self) -> bool:
        """Whether it has ended, or failed: torch then lets go of what it calls at the end."""
        return not self._ends

    def add(self, update: Update) -> None:
        end = _End(self)
        self._ends.add(end)
        self.updates.append(update)
        at_end_of_backward(end.apply_latest)

    def take_latest(self) -> Update:
        latest = max(self.updates, key=lambda one: one.number)
        self.updates.remove(latest)
        return latest


@dataclass(frozen=True, eq=False)
class _End:
    """Applies an update. Only torch holds a reference to it, until the backward is over."""

    backward: _Backward

    def apply_latest(self) -> None:
        """Apply the update of the latest forward, in the order in which backward calls TorchRec's
        kernels: optimizers with a state depend on the order."""
        self.backward.take_latest().apply()
