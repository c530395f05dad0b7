"""Ctrl-C and SIGTERM: all ranks stop after the same step."""

from __future__ import annotations

import signal
from types import FrameType

import torch
import torch.distributed as dist

__all__ = ["StopSignal"]


class StopSignal:
    """A flag that any rank's signal raises and that all ranks read alike.

    Each step starts an all-reduce of one number and reads that of the step before, so the
    agreement is never waited for.
    """

    def __init__(self) -> None:
        self._asked = False
        self._group = dist.new_group(backend="gloo")
        self._flag = torch.zeros(1)
        self._work: dist.Work | None = None
        self._before = {
            number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def agreed(self) -> bool:
        """Whether any rank had been asked to stop one call ago; every rank must call it."""
        stop = False
        if self._work is not None:
            self._work.wait()
            stop = bool(self._flag)
        self._flag = torch.tensor([float(self._asked)])
        self._work = dist.all_reduce(
            self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return stop

    def close(self) -> None:
        """Wait for the last agreement and give the signals back."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
