"""How far long work is: bars on a terminal, and lines in a log or a file, where nobody sees a bar
move."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from recd_plugins.errors import so_many

if TYPE_CHECKING:
    from recd_plugins.data.progress import Progress

__all__ = ["ProgressLines", "progress"]

FIRST, EVERY = 10.0, 60.0
"""Work that takes less than so many seconds has no line; all other work has one every minute."""


@contextmanager
def progress() -> Iterator[Progress]:
    """Show the progress of long work on standard error: how much is done, how fast, and how long
    it will take; by bars on a terminal, by a line every minute elsewhere. What plugins or a trainer
    print meanwhile goes there too, not into the command's output."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars
    from rich.text import Text

    from recd_plugins.report.drawing import number

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{number(task.speed)}/s" if task.speed else "")

    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    tasks: dict[str, TaskID] = {}
    lines = None if bars.console.is_terminal else ProgressLines()

    def show(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            bars.start()
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total)
        if lines is not None:
            lines(what, done, total)

    with redirect_stdout(sys.stderr):
        try:
            yield show
        finally:
            if tasks:
                bars.stop()


class ProgressLines:
    """Prints a line about each piece of work that lasts, by the work's own reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}
        self._next: dict[str, float] = {}
        self._done: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = self._clock()
        if done < self._done.get(what, 0):  # it begins again, with other data
            del self._began[what], self._next[what]
        self._done[what] = done
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
