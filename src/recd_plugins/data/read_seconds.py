"""A reader's time: seconds of each part, which batches bring along.

A part is measured where it is done, in a thread or in a worker, while something else may run: the
seconds of all parts are more than training waits for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from recd_plugins.errors import RecdError

__all__ = [
    "CONVERT",
    "DECODE",
    "GATHER",
    "HAND_OVER",
    "IO",
    "PARTS",
    "HandedOver",
    "ReadSeconds",
]

IO, DECODE, GATHER, CONVERT = "I/O", "decode", "gather", "convert"
HAND_OVER = "hand over"

PARTS = {
    IO: "reading bytes of files",
    DECODE: "columns out of these bytes, checked, and conformed where somebody else wrote them",
    GATHER: "rows in their order, cut into batches",
    CONVERT: "what `dedup` makes of a batch",
    HAND_OVER: "from who has read a batch to who trains on it, while that one waits",
}
"""What each part holds; beside these stands each transform of `preprocess`, by its name."""


@dataclass
class ReadSeconds:
    """Seconds by part."""

    parts: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, seconds: float) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    def add_all(self, others: Mapping[str, float]) -> None:
        for part, seconds in others.items():
            self.add(part, seconds)

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """The time that is spent within goes to this part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(part, time.perf_counter() - began)

    def taken(self) -> dict[str, float]:
        """The seconds that there are; from then on it counts from 0."""
        found, self.parts = self.parts, {}
        return found


@dataclass(frozen=True)
class HandedOver:
    """A batch, or the error in its place, as a worker hands it to its rank."""

    batch: Any
    seconds: Mapping[str, float]
    finished: float
    """When it was; the clock is one for all processes of a machine."""

    def pin_memory(self) -> HandedOver:
        batch = self.batch if isinstance(self.batch, RecdError) else self.batch.pin_memory()
        return HandedOver(batch, self.seconds, self.finished)
