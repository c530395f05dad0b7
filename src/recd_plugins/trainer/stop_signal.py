"""An early end of a run, on which all ranks agree after the same step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist

from recd_plugins.launch.environment import stops_here

__all__ = ["StopSignal", "Stopped", "answers_as_before"]


@contextmanager
def answers_as_before() -> Iterator[None]:
    """At its end the answers to the signals that stop a job are those of its start."""
    before = {number: signal.getsignal(number) for number in stops_here()}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)


class Stopped(Exception):
    """A rank was asked to stop while all of them waited for data."""


class StopSignal:
    """A flag that a signal (Ctrl-C, SIGTERM, SIGHUP), a callback or a loss that is not finite
    raises on any rank, and that all ranks see after the same step.

    Each step starts an all-reduce of three numbers and reads the result of the previous one, so
    that no rank waits for the agreement.
    """

    def __init__(self) -> None:
        self._asked = False
        self.by_callback = False
        """Whether a callback asked for the stop that was agreed on."""
        self.diverged = False
        """Whether a rank's loss was not finite."""
        self._group = dist.new_group(backend="gloo")
        self._flag = torch.zeros(3, device="cpu")
        self._work: dist.Work | None = None
        self._before = {number: signal.signal(number, self._ask) for number in stops_here()}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def agreed(self, by_callback: bool = False, diverged: bool = False) -> bool:
        """Whether any rank had been asked to stop one call ago, by a signal, by a callback or by a
        loss that is not finite.

        Every rank must call it.
        """
        stop = False
        if self._work is not None:
            self._work.wait()
            stop = bool(self._flag.any())
            self.by_callback, self.diverged = bool(self._flag[1]), bool(self._flag[2])
        self._flag = torch.tensor(
            [float(self._asked), float(by_callback), float(diverged)], device="cpu"
        )
        self._work = dist.all_reduce(
            self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return stop

    def callback_is_next(self) -> bool:
        """Whether a callback asked for the stop that the next call of `agreed` says; it is known
        once each rank has called that for the step before."""
        if self._work is not None:
            self._work.wait()
        return bool(self._flag[1])

    def together(self, there: bool) -> bool:
        """Whether the data that this rank waits for are there on all ranks; raises `Stopped` on all
        of them if a signal asked one to stop.

        Every rank must call it, as often as the others.
        """
        flags = torch.tensor([float(self._asked), float(not there)], device="cpu")
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        if flags[0]:
            raise Stopped
        return not flags[1]

    def close(self, *, saved: bool = False) -> None:
        """Wait for the last agreement and restore the signal handlers. Once all is `saved` they
        stay, so that a signal that comes late ends nothing, until `answers_as_before` ends."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        if saved:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
