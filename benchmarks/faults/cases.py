"""What a fault is: a case is what is done, and finds out which promises were broken."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.faults.programs import Ended, Place

__all__ = ["PROMISES", "Breach", "Case", "Kind", "Promise", "breaches_of"]

Promise = Literal["traceback", "hang", "silent change", "unclear", "left behind", "untried"]

PROMISES: dict[Promise, str] = {
    "traceback": "tracebacks, where what a user did can be answered with a message",
    "hang": "programs that were still running at their deadline",
    "silent change": "files or results that changed, or work that was not done, without a word",
    "unclear": "messages too long to read, without what it is about, or with the wrong exit code",
    "left behind": "processes and temporary files that outlived their program",
    "untried": "cases that the suite itself could not try",
}
"""What each kind of breach counts: none is promised of all of them."""

LONGEST = 1_500
"""Characters of a message about one thing that a user typed."""


@dataclass(frozen=True)
class Breach:
    """A promise that a case found broken."""

    promise: Promise
    what: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing that is done, and what is found out by it."""

    what: str
    """What is done, as a person would do it again."""
    run: Callable[[Place], Iterable[Breach]]
    """Does it in a folder of its own, and yields what was broken."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Cases alike, drawn one after the other from a seed."""

    name: str
    draw: Callable[[random.Random], Iterator[Case]]
    """The same cases in the same order of the same generator, as many as are asked for."""
    quick: int
    """How many of them a quick run takes; at most all there are."""
    full: int
    """How many of them a full run takes."""
    lacks: Callable[[], str] = str
    """Why its cases cannot be tried here; nothing where they can."""


def breaches_of(
    ended: Ended, *, codes: Iterable[int] = (0, 2), mentions: Iterable[str] = ()
) -> Iterator[Breach]:
    """What any program broke: 0 and 2 are how `recd` ends, and a refusal (2) mentions what it is
    about."""
    if ended.late:
        yield Breach("hang", f"still running after {ended.seconds:.0f} s: {ended.output[-500:]}")
        return
    if "Traceback (most recent call last)" in ended.output:
        yield Breach("traceback", ended.output[-1_000:])
        return
    if ended.code not in codes:
        yield Breach("unclear", f"exit code {ended.code}: {ended.output[-500:]}")
    elif ended.code == 2:
        message = ended.errors.strip() or ended.output  # recd doctor prints what it found
        if not message.strip():
            yield Breach("unclear", "refused without a word")
        if len(message) > LONGEST:
            yield Breach("unclear", f"a message of {len(message):,} characters: {message[:300]}")
        if missing := [word for word in mentions if word not in message]:
            yield Breach("unclear", f"no word of {', '.join(missing)}: {message[:500]}")
    for what in ended.left:
        yield Breach("left behind", what)
