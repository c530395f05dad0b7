"""The state of the process that a plugin is imported into: it is the job's, and stays as it was.

A module that changes it on import does so for whatever else runs there: relative paths lead
elsewhere, a model has other numbers, or no gradients.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from recd_plugins.notices import keep_notices_shown

__all__ = ["put_back"]


class _State(NamedTuple):
    """What a process has once, for all modules in it."""

    folder: str
    dtype: Any
    """Torch's default; None where torch is not imported yet."""
    gradients: bool = True
    device: Any = None
    """Torch's default, where it is another one than the CPU."""


@contextlib.contextmanager
def put_back() -> Iterator[list[str]]:
    """What is changed inside, each with the call that changes it; at the end it is as before.

    Notices are shown, too, whatever filters of warnings are set inside.
    """
    before, changed = _now(), list[str]()
    try:
        yield changed
    finally:
        changed += _restored(before, _now())
        keep_notices_shown()


def _restored(before: _State, after: _State) -> Iterator[str]:
    if before.folder and after.folder != before.folder:
        os.chdir(before.folder)
        yield "the folder that the process works in (os.chdir)"
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


def _now() -> _State:
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        folder = ""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):  # not imported, or not wholly
        return _State(folder, None)
    device = torch.get_default_device()
    return _State(
        folder,
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        None if device.type == "cpu" else device,
    )
