"""A reader's time: seconds of each part, which batches carry.

A part is measured where it runs, in a thread or a worker, while something else may run: the seconds
of all parts add up to more than training waits for.
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
    HAND_OVER: "from the reader of a batch to its trainer, while the trainer waits",
}
"""What each part covers; each transform of `preprocess` is a further part, by its name."""


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
        """Count the time that is spent inside it for this part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(part, time.perf_counter() - began)

    def taken(self) -> dict[str, float]:
        """The seconds so far; counting restarts at 0."""
        found, self.parts = self.parts, {}
        return found


@dataclass(frozen=True)
class HandedOver:
    """A batch, or the error in its place, as a worker hands it over to its rank."""

    batch: Any
    seconds: Mapping[str, float]
    finished: float
    """When it was handed over; all processes of a machine share this clock."""

    def pin_memory(self) -> HandedOver:
        batch = self.batch if isinstance(self.batch, RecdError) else self.batch.pin_memory()
        return HandedOver(batch, self.seconds, self.finished)
