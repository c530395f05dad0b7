"""Streams that wait for nothing, by which TorchRec's pipelines for CUDA run on the CPU: it makes
their calls in their order, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from foreign import CPU, Job
from torch import Tensor

__all__ = ["streams", "through_streams"]

STREAMS = ("memcpy", "data_dist", "prefetch", "default", "emb_lookup")


class Stream:
    """A stream of the CPU, whose work is done when it is launched."""

    device = CPU

    def wait_stream(self, other: object) -> None:
        pass


class Event:
    """What happened on such a stream."""

    def record(self, *_: object) -> None:
        pass

    def wait(self, *_: object) -> None:
        pass


@contextmanager
def streams() -> Iterator[Any]:
    """Inside, the CPU has such a stream, its only one."""
    stream = Stream()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "record_stream", lambda *_: None)
        patch.setattr(torch.cpu, "current_stream", lambda *_: stream)
        patch.setattr(torch.cpu, "Event", Event, raising=False)
        yield stream


def through_streams(
    kind: Callable[..., Any],
    own: Job,
    steps: int,
    behind: Callable[[Job], None] = lambda own: None,
    **options: Any,
) -> None:
    """Train as many steps by a pipeline that has streams; the trainer does what it does `behind`
    each."""
    with streams() as stream:
        pipeline = kind(own.model, own.optimizer, CPU, **options)
        for name in STREAMS:
            if hasattr(pipeline, f"_{name}_stream"):
                setattr(pipeline, f"_{name}_stream", stream)
        batches = own.batches(steps)
        for _ in range(steps):
            pipeline.progress(batches)
            behind(own)
