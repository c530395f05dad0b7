"""How many workers there should be, so that clients' buffers stay between two marks, and why."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from recd_plugins.api import RegistryError

__all__ = ["Bounds", "Resizable", "Scaler", "Scaling"]

LOG = logging.getLogger(__name__)
LOW, HIGH = 0.25, 0.9
"""The marks: shares of what may wait in a client, of which so much does."""
SPAN = 5.0
"""Seconds over which shares are means."""
PAUSE = {1: 10.0, -1: 30.0}
"""Seconds after a change in which no more, or no fewer, are asked for: it has to show."""
LOOK = 1.0
"""Seconds between two looks."""
MOST_CHANGES = 100
"""Changes that are remembered."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Between how many workers a service may have."""

    fewest: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise RegistryError(
                f"a service has from {self.fewest} to {self.most} workers: name at least 1, and "
                "no fewer at most than at least."
            )


class Scaling:
    """A pure function of what clients say, by a clock that is handed in."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.wanted = bounds.fewest
        self.why = "the fewest, to begin with"
        self.ups = self.downs = 0
        self.changes: deque[dict[str, Any]] = deque(maxlen=MOST_CHANGES)
        """The latest: when (seconds since the first look), how many, and why."""
        self._began: float | None = None
        self._changed = 0.0
        self._notes: deque[tuple[float, float, float]] = deque()
        """When, the emptiest client's share, and the seconds stalled of one on average."""

    def look(self, clients: Sequence[Mapping[str, Any]], now: float) -> int:
        """The number of workers that there should be, after what clients say by now."""
        if self._began is None:
            self._began = self._changed = now
        shares = [float(one["filled"]) for one in clients if _number(one.get("filled"))]
        if not shares:  # nobody asks for batches
            self._notes.clear()
            return self.wanted
        stalled = [float(one["stalled"]) for one in clients if _number(one.get("stalled"))]
        self._notes.append((now, min(shares), sum(stalled) / max(1, len(stalled))))
        while self._notes[0][0] < now - SPAN:
            self._notes.popleft()
        asked = sum(int(one.get("most", self.bounds.most)) for one in clients)
        if now - self._notes[0][0] >= SPAN - LOOK:
            self._decide(now, max(self.bounds.fewest, min(self.bounds.most, asked)))
        return self.wanted

    def about(self) -> dict[str, Any]:
        """The facts that a page shows."""
        return {
            "wanted": self.wanted,
            "fewest": self.bounds.fewest,
            "most": self.bounds.most,
            "ups": self.ups,
            "downs": self.downs,
            "why": self.why,
            "changes": [*self.changes],
        }

    def _decide(self, now: float, most: int) -> None:
        """`most`: as many as the bounds allow, and as clients ask."""
        share = sum(share for _, share, _ in self._notes) / len(self._notes)
        (began, _, before), (_, _, after) = self._notes[0], self._notes[-1]
        reason = f"the emptiest client's buffer is {share:.0%} full over {SPAN:g} s"
        if share < LOW and self.wanted < most:
            # By half as many more: a fleet that is far too small is there in few steps.
            step, mark = max(1, self.wanted // 2), f"below {LOW:.0%}"
            stalls = max(0.0, after - before) / (now - began)
            reason += f", and clients stalled {stalls:.0%} of the time"
        elif share > HIGH and self.wanted > self.bounds.fewest:
            step, mark = -1, f"above {HIGH:.0%}"
        else:
            return
        if now - self._changed < PAUSE[1 if step > 0 else -1]:
            return
        self.wanted = min(most, self.wanted + step)
        self.ups, self.downs = self.ups + (step > 0), self.downs + (step < 0)
        self.why = f"{reason}: {mark}"
        assert self._began is not None
        self.changes.append(
            {"after": round(now - self._began, 1), "wanted": self.wanted, "why": self.why}
        )
        self._changed = now
        self._notes.clear()


class Resizable(Protocol):
    """Who starts and ends workers."""

    def resize(self, workers: int) -> None:
        """Have so many from now on."""
        ...


class Scaler:
    """Looks every second in a thread, and has a backend follow."""

    def __init__(
        self,
        scaling: Scaling,
        clients: Callable[[], Sequence[Mapping[str, Any]]],
        backend: Resizable | None,
    ) -> None:
        """Without a backend it says how many there should be, and somebody else follows."""
        self.scaling = scaling
        self._clients, self._backend = clients, backend
        self._closed = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="recd-scaler").start()

    def close(self) -> None:
        """Change nothing any more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK):
            before = self.scaling.wanted
            wanted = self.scaling.look(self._clients(), time.monotonic())
            if wanted != before:
                LOG.info("%d workers, not %d: %s", wanted, before, self.scaling.why)
                if self._backend is not None:
                    self._backend.resize(wanted)


def _number(found: Any) -> bool:
    return isinstance(found, int | float)
