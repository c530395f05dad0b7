"""torch's autograd engine, where it offers no public name; as of torch 2.13."""

from __future__ import annotations

from collections.abc import Callable

from torch.autograd import Variable

__all__ = ["at_end_of_backward"]


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call it once the running backward is done, before `backward()` returns. DDP does likewise."""
    Variable._execution_engine.queue_callback(function)
