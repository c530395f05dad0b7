"""How many workers there should be to keep clients' buffers between two marks, and why."""

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
"""The marks: how full a client's buffer is, as a share."""
SPAN = 5.0
"""Seconds over which shares are averaged."""
PAUSE = {1: 10.0, -1: 30.0}
"""Seconds after a change before more (1) or fewer (-1) workers are asked for, so that it can take
effect."""
LOOK = 1.0
"""Seconds between two looks."""
MOST_CHANGES = 100
"""How many changes are remembered."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The fewest and the most workers that a service may have."""

    fewest: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise RegistryError(
                f"a service has from {self.fewest} to {self.most} workers: name at least 1, and a "
                "largest number that is not below the smallest."
            )


class Scaling:
    """Decides on the number of workers, only by what clients report and the time passed in."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.wanted = bounds.fewest
        self.why = "the fewest, to begin with"
        self.ups = self.downs = 0
        self.changes: deque[dict[str, Any]] = deque(maxlen=MOST_CHANGES)
        """The latest changes: when (in seconds since the first look), how many workers, and why."""
        self._began: float | None = None
        self._changed = 0.0
        self._notes: deque[tuple[float, float, float]] = deque()
        """The time, the emptiest client's share, and the mean seconds that a client stalled."""

    def look(self, clients: Sequence[Mapping[str, Any]], now: float) -> int:
        """The number of workers that there should be, by what clients report now."""
        if self._began is None:
            self._began = self._changed = now
        shares = [float(one["filled"]) for one in clients if _number(one.get("filled"))]
        if not shares:  # no client asks for batches
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
        """The facts for a page."""
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
        """Change the number of workers if needed; `most` is what bounds and clients allow."""
        share = sum(share for _, share, _ in self._notes) / len(self._notes)
        (began, _, before), (_, _, after) = self._notes[0], self._notes[-1]
        reason = f"the emptiest client's buffer is {share:.0%} full over {SPAN:g} s"
        if share < LOW and self.wanted < most:
            # Half as many more, so that a fleet that is far too small grows in few steps.
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
    """Starts and ends workers."""

    def resize(self, workers: int) -> None:
        """Run this many workers from now on."""
        ...


class Scaler:
    """Looks every second in a thread, and resizes a backend."""

    def __init__(
        self,
        scaling: Scaling,
        clients: Callable[[], Sequence[Mapping[str, Any]]],
        backend: Resizable | None,
    ) -> None:
        """Without a backend, it only says how many workers there should be."""
        self.scaling = scaling
        self._clients, self._backend = clients, backend
        self._closed = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="recd-scaler").start()

    def close(self) -> None:
        """Change nothing more."""
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
