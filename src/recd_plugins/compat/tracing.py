"""What TorchRec's pipelines touch beside a graph as they trace a model: modules that other threads
call, and what modules hold.

While torch.fx traces, it replaces the call of every module in the process. A module that a reader's
thread calls then is mistaken for a part of the model, and the call fails: "module is not installed
as a submodule". Pipelines trace before their first step, and again after an evaluation. Meanwhile
a function compiled by torch.compile refuses calls from any thread: "Detected that you are using
FX". An option of torch._dynamo lets it run uncompiled. It has a value for each thread, or in older
versions of torch, as 2.11, one for all.

A model that keeps something of its batch, as a count in a buffer, would then have a proxy there: a
name in the graph, which stands for no number, and of which no checkpoint can be made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock, get_ident
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.fx import Proxy, Tracer

__all__ = ["autograd_is_compiled", "keep_traces_apart", "outside_of_graphs"]

F = TypeVar("F", bound=Callable[..., Any])


def outside_of_graphs(function: F) -> F:
    """A function that torch.compile does not compile when a compiled function calls it. In compiled
    code torch turns numpy arrays into tensors, which numba's kernels do not take."""
    disable: Any = torch.compiler.disable
    return cast("F", disable(function))


def autograd_is_compiled() -> bool:
    """Whether torch compiles the backward of what is computed now (compiled autograd)."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


THREAD = "_recd_thread"
"""The attribute of a tracer that holds the thread it traces."""
REFUSES = "error_on_nested_fx_trace"
"""The option of torch._dynamo that makes compiled functions refuse to be traced."""


class _Traces:
    """The traces that are running now."""

    lock = Lock()
    running = 0
    refuses = True
    """Whether compiled functions refuse by default while no trace runs."""


def keep_traces_apart() -> None:
    """From now on a module, compiled or not, that is called by another thread than the tracing one
    runs as usual, and is not part of the trace; and a trace leaves in modules what they held."""
    tracer: Any = cast("Any", Tracer)
    trace, call_module = tracer.trace, tracer.call_module
    if hasattr(call_module, THREAD):
        return

    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(self, THREAD, get_ident())
        root = kwargs.get("root", args[0] if args else None)
        with _refused_here_alone(), _left_as_it_was(root):
            return trace(self, *args, **kwargs)

    def called(self: Any, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if getattr(self, THREAD, get_ident()) != get_ident():
            return forward(*args, **kwargs)
        return call_module(self, m, forward, args, kwargs)

    # From torch 2.14 on another thread compiles meanwhile, and meets it in modules.
    outside = outside_of_graphs(called)
    setattr(outside, THREAD, True)
    tracer.trace, tracer.call_module = traced, outside


@contextmanager
def _left_as_it_was(root: Any) -> Iterator[None]:
    """Attributes and buffers of a model's modules that become proxies inside are afterwards what
    they were before."""
    modules = [*root.modules()] if isinstance(root, nn.Module) else []
    held = [part for module in modules for part in (vars(module), module._buffers)]
    before = [dict(part) for part in held]
    try:
        yield
    finally:
        for part, was in zip(held, before, strict=True):
            for name in [name for name, value in part.items() if isinstance(value, Proxy)]:
                if name in was:
                    part[name] = was[name]
                else:
                    del part[name]


@contextmanager
def _refused_here_alone() -> Iterator[None]:
    """Compiled functions refuse to be traced in this thread, and run uncompiled in others; in this
    one too, where the option has one value for all threads."""
    config: Any = sys.modules.get("torch._dynamo.config")
    option = getattr(config, "_config", {}).get(REFUSES)
    if option is None:  # nobody has compiled anything yet
        yield
        return
    with _Traces.lock:
        if not _Traces.running:
            _Traces.refuses = option.default
        here = getattr(config, REFUSES) or (_Traces.running > 0 and _Traces.refuses)
        _Traces.running += 1
        option.default = False
    try:
        with _in_this_thread(option.user_override, here):
            yield
    finally:
        with _Traces.lock:
            _Traces.running -= 1
            if not _Traces.running:
                option.default = _Traces.refuses


@contextmanager
def _in_this_thread(override: Any, value: bool) -> Iterator[None]:
    """An option's override has a value in this thread, where it can have one."""
    if not isinstance(override, ContextVar):
        yield
        return
    before = override.set(value)  # `config.patch` would leave a value behind
    try:
        yield
    finally:
        override.reset(before)
