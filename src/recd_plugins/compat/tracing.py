"""Modules that one thread calls while another one traces a model, as TorchRec's pipelines do.

torch.fx replaces the call of every module of the process while it traces. One that a reader's
thread calls then is taken for a part of the model, which it is not: the call fails, "module is not
installed as a submodule". Pipelines trace before their first step, and again after an evaluation.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any, cast

from torch.fx import Tracer

__all__ = ["trace_own_thread_alone"]

THREAD = "_recd_thread"
"""The attribute of a tracer that has the thread which it traces."""


def trace_own_thread_alone() -> None:
    """From now on a module that another thread calls than the one that traces is called as ever,
    and is no part of what is traced."""
    tracer: Any = cast("Any", Tracer)
    trace, call_module = tracer.trace, tracer.call_module
    if hasattr(call_module, THREAD):
        return

    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(self, THREAD, get_ident())
        return trace(self, *args, **kwargs)

    def called(self: Any, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if getattr(self, THREAD, get_ident()) != get_ident():
            return forward(*args, **kwargs)
        return call_module(self, m, forward, args, kwargs)

    setattr(called, THREAD, True)
    tracer.trace, tracer.call_module = traced, called
