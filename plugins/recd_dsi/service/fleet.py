"""The workers that a client knows: which of them answer, and which turns each has."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Protocol
from weakref import WeakSet

import pyarrow as pa

from recd_dsi.service.calls import Caller, reason
from recd_dsi.service.credentials import Credentials
from recd_dsi.service.scaling import Scaler

__all__ = ["Backend", "Fleet", "Remote"]

BACK_OFF = (0.1, 2.0)
"""Seconds until a worker that failed is tried again: at first, and at most."""
PING = 1.0
"""Seconds within which a worker answers if it is there, however busy."""


class Backend(Protocol):
    """Starts workers, and starts them again if they end."""

    @property
    def pids(self) -> list[int | None]:
        """Their processes, by seat."""
        ...

    def wait(self) -> None:
        """Return once a worker serves; raises an error if none can."""
        ...

    def resize(self, workers: int) -> None:
        """Run this many workers from now on."""
        ...

    def close(self) -> None:
        """End them all."""
        ...


class CountedLoader(Protocol):
    """A loader, as a page shows it."""

    def about(self) -> dict[str, float]:
        """The work that it has done, by counter."""
        ...


class Remote:
    """One worker, as a client sees it."""

    def __init__(self, seat: int, address: str, credentials: Credentials) -> None:
        self.seat, self.address = seat, address
        self._credentials = credentials
        self.caller = Caller(address, credentials)
        self.failures = 0
        self.has_answered = False
        self.down_until = 0.0
        self.trouble = ""
        """Why the latest call to it failed."""

    @property
    def up(self) -> bool:
        """Whether it may be asked."""
        return time.monotonic() >= self.down_until

    def failed(self, why: str = "") -> None:
        """Note that it did not answer: it is left alone for a while."""
        self.trouble = why
        first, most = BACK_OFF
        self.down_until = time.monotonic() + min(most, first * 2**self.failures)
        self.failures = min(self.failures + 1, 16)

    def answers(self) -> bool:
        """Whether it answers at all; if so, it counts as up.

        If not, its connection may be half open, which gRPC would not notice: a new one is made.
        """
        try:
            self.caller.act("ping", {}, PING)
        except (pa.ArrowException, OSError, ValueError) as error:
            self.caller = Caller(self.address, self._credentials)
            self.failed(reason(error))
            return False
        self.worked()
        return True

    def worked(self) -> None:
        """It answered."""
        self.has_answered = True
        self.failures, self.down_until, self.trouble = 0, 0.0, ""


class Fleet:
    """Workers by seat; a seat keeps its turns while workers come and go in it."""

    def __init__(self, credentials: Credentials, seats: int) -> None:
        """`seats` is how many workers there are when all are there."""
        self._credentials, self.seats = credentials, seats
        self.scaler: Scaler | None = None
        """What says how many that is, if anything does."""
        self.closed = False
        self.id = uuid.uuid4().hex[:12]
        self.readers: WeakSet[CountedLoader] = WeakSet()
        """Loaders of this process that ask these workers."""
        self._lock = threading.Lock()
        self._remotes: dict[int, Remote] = {}
        self.backend: Backend | None = None
        """What started them, if this process did."""
        self.unknown = ""
        """Why the workers are unknown, or may be others by now, if a coordinator should name
        them."""

    @property
    def trouble(self) -> str:
        """Why no worker can be asked, as far as that is known."""
        each = (f"{one.address}: {one.trouble}" for one in self.remotes() if one.trouble)
        return "; ".join(filter(None, (self.unknown, next(each, ""))))

    def set_workers(self, addresses: Mapping[int, str]) -> None:
        """Note which workers are there from now on, by seat."""
        with self._lock:
            for seat in [*self._remotes.keys() - addresses.keys()]:
                self._drop(seat)
            for seat, address in addresses.items():
                known = self._remotes.get(seat)
                if known is None or known.address != address:
                    self._drop(seat)
                    self._remotes[seat] = Remote(seat, address, self._credentials)

    def remotes(self) -> list[Remote]:
        """All of them, by seat."""
        with self._lock:
            return [self._remotes[seat] for seat in sorted(self._remotes)]

    def of_turn(self, turn: int, refused: Collection[Remote]) -> Remote | None:
        """The worker whose turn it is: round robin over seats, or over those that are up if one is
        not; never one that has refused. None if there is none."""
        remotes = [remote for remote in self.remotes() if remote not in refused]
        # In the order of seats, so that all clients have a turn made by the same worker.
        first = next((one for one in remotes if one.seat % self.seats == turn % self.seats), None)
        if first is not None and first.up:
            return first
        up = [remote for remote in remotes if remote.up]
        return up[turn % len(up)] if up else None

    def about(self) -> dict[str, Any]:
        """This client, what its loaders have done together, and how full the emptiest one is."""
        counts: Counter[str] = Counter()
        filled = 1.0
        for reader in [*self.readers]:
            about = reader.about()
            filled = min(filled, about.pop("filled", 1.0))
            counts.update(about)
        return {"id": self.id, **counts, **({"filled": filled} if self.readers else {})}

    def resize(self, workers: int) -> None:
        """Run this many workers from now on, if this process starts them."""
        self.seats = workers
        if self.backend is not None:
            self.backend.resize(workers)

    def close(self) -> None:
        """Make no more calls, and end the workers that this process started."""
        self.closed = True
        if self.scaler is not None:
            self.scaler.close()
        if self.backend is not None:
            self.backend.close()
        with self._lock:
            for seat in [*self._remotes]:
                self._drop(seat)

    def _drop(self, seat: int) -> None:
        remote = self._remotes.pop(seat, None)
        if remote is not None:
            remote.down_until = float("inf")
