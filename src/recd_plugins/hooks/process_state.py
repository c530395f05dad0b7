"""The state of the process that a plugin is imported into: it is the job's, and stays as it was.

A module that changes it on import does so for whatever else runs there: relative paths lead
elsewhere, a model has other numbers, or no gradients.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from recd_plugins.notices import Ended, Notices, NoticeWarning, action_on_notices

__all__ = ["GROUP_OF_RANKS", "in_one_process", "put_back"]

GROUP_OF_RANKS = "the group of ranks (torch.distributed.init_process_group)"
"""Taken back as all else is, but what gloo has started is not: ranks that are forked later hang."""

ANSWERED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""The signals by which a job is stopped, and by which it learns that a process of it has ended."""

OF_RANKS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""The variables by which a launcher says which rank a process is, and where ranks meet."""


@contextlib.contextmanager
def in_one_process(who: str, when: str) -> Iterator[None]:
    """What is called inside comes back in this process alone. If it comes back in a child, too, as
    after os.fork(), the child ends, with a notice: it would do the whole job a second time."""
    parent = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != parent:
            _end_child(who, when)


def _end_child(who: str, when: str) -> NoReturn:
    notice = Ended(
        what=f"process {os.getpid()}",
        why=f"{who} forks it {when} and lets it run on, so that it would do the whole job a second "
        "time",
        cure="Have the child end by os._exit, or start a program by `subprocess`.",
    )
    try:
        Notices().give([notice], 0)
    finally:
        os._exit(1)


class _State(NamedTuple):
    """What a process has once, for all modules in it."""

    folder: str
    of_ranks: Mapping[str, str | None]
    """The value of each variable that says which rank it is."""
    recursion: int
    """How deep Python's calls may be."""
    answers: Mapping[signal.Signals, Any]
    """What is called at each signal."""
    on_notices: Any
    """What filters of warnings do with a notice."""
    ranks_met: bool
    """Whether there is a process group of all ranks."""
    dtype: Any = None
    """Torch's default; None where torch is not imported yet."""
    gradients: bool = True
    device: Any = None
    """Torch's default, where it is another one than the CPU."""


@contextlib.contextmanager
def put_back() -> Iterator[list[str]]:
    """What is changed inside, each with the call that changes it; at the end it is as before.

    Notices are shown, or not, as before, too, whatever filters of warnings are set inside.
    """
    before, changed = _now(), list[str]()
    try:
        yield changed
    finally:
        changed += _restored(before, _now())


def _restored(before: _State, after: _State) -> Iterator[str]:
    """Undo each change; yields it in words."""
    if before.folder and after.folder != before.folder:
        os.chdir(before.folder)
        yield "the folder that the process works in (os.chdir)"
    for name, value in before.of_ranks.items():
        if after.of_ranks[name] != value:
            _set(name, value)
            yield f"the rank that this process is (os.environ[{name!r}])"
    if after.recursion != before.recursion:
        sys.setrecursionlimit(before.recursion)
        yield "how deep calls may be (sys.setrecursionlimit)"
    for one, answer in before.answers.items():
        if answer is not None and after.answers[one] != answer:  # None: of another language
            signal.signal(one, answer)
            yield f"the answer to {one.name} (signal.signal)"
    if after.on_notices != before.on_notices:  # filters are for modules to set: nothing to name
        warnings.simplefilter(before.on_notices, NoticeWarning)
    if after.ranks_met and not before.ranks_met:
        import torch.distributed as dist

        dist.destroy_process_group()
        yield GROUP_OF_RANKS
    if after.dtype is None:
        return
    import torch

    dtype = before.dtype or torch.float32
    if after.dtype != dtype:
        torch.set_default_dtype(dtype)
        yield "torch's default dtype (torch.set_default_dtype)"
    if after.gradients != before.gradients:
        torch.set_grad_enabled(before.gradients)
        yield "whether torch computes gradients (torch.set_grad_enabled)"
    if after.device != before.device:
        torch.set_default_device(before.device)
        yield "torch's default device (torch.set_default_device)"


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _now() -> _State:
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        folder = ""
    torch: Any = sys.modules.get("torch")
    state = _State(
        folder=folder,
        of_ranks={name: os.environ.get(name) for name in OF_RANKS},
        recursion=sys.getrecursionlimit(),
        answers={one: signal.getsignal(one) for one in ANSWERED},
        on_notices=action_on_notices(),
        ranks_met=getattr(sys.modules.get("torch.distributed"), "is_initialized", bool)(),
    )
    if torch is None or not hasattr(torch, "get_default_device"):  # not imported, or not wholly
        return state
    device = torch.get_default_device()
    return state._replace(
        dtype=torch.get_default_dtype(),
        gradients=torch.is_grad_enabled(),
        device=None if device.type == "cpu" else device,
    )
