"""Lines that say how far long work is, for a log or a file, where nobody sees a bar move."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from recd_plugins.errors import so_many

__all__ = ["ProgressLines"]

FIRST, EVERY = 10.0, 60.0
"""Work that takes less than so many seconds has no line; all other work has one every minute."""


class ProgressLines:
    """Prints a line about each piece of work that lasts, by the work's own reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}
        self._next: dict[str, float] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = self._clock()
        since = now - self._began.setdefault(what, now)
        if since < self._next.setdefault(what, FIRST) or done == total:
            return
        self._next[what] = since + EVERY
        so_far = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        left = f", about {_in_words(since * (total / done - 1))} to go" if total and done else ""
        print(f"{what}: {so_far} after {_in_words(since)}{left}", file=sys.stderr, flush=True)


def _in_words(seconds: float) -> str:
    """A duration to two digits or so: 14 minutes, 36 hours, 88 days."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * size:
            return so_many(round(seconds / size), unit)
    return so_many(round(seconds), "second")
