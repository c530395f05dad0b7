"""Numbers of a loader's parts that lie in memory of several processes, such as the epoch that a
dataset counts for its workers too."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any

import numpy as np

__all__ = ["long_shared", "restoring_properties", "restoring_shared"]

MOST = 32
"""The most numbers of an array: longer ones are data, which others may be writing."""
LOOKED_AT = 4096
"""The numbers of a longer array that are looked at, whether it has changed."""
OF_PROCESSES: tuple[type[Any], ...] = (SynchronizedBase, ctypes.Array, ctypes.c_int.__mro__[1])
"""The numbers of multiprocessing, with a lock and without; the last is what all numbers of ctypes
inherit from."""


def restoring_shared(part: object) -> Iterator[Callable[[], None]]:
    """Functions that put the numbers that an object shares back to what they are now."""
    for held in vars(part).values():
        if (read := _reader(held)) is not None:
            yield partial(_put_back, read, partial(_write, held), read())


def long_shared(part: object) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The names of the arrays that an object shares and that are not put back, for their length;
    and functions that read some numbers of each."""
    for name, held in vars(part).items():
        if (read := _reader_of_some(held)) is not None:
            yield f"{type(part).__name__}.{name}", read


def restoring_properties(part: object) -> Iterator[Callable[[], None]]:
    """Functions that put the numbers and words that an object has as properties which may be set
    back to what they are now: where they lie, its class alone knows."""
    for name in {name for kind in type(part).__mro__ for name in vars(kind)}:
        found = getattr(type(part), name, None)
        if not isinstance(found, property) or found.fset is None:
            continue
        read = partial(getattr, part, name)
        try:
            before = read()
        except Exception:  # it has none yet, and nothing to put back
            continue
        if isinstance(before, int | float | str):
            yield partial(_put_back, read, partial(setattr, part, name), before)


def _reader(held: Any) -> Callable[[], Any] | None:
    """A function that reads numbers which processes share; None for anything else."""
    import torch

    if isinstance(held, OF_PROCESSES):
        if hasattr(held, "value"):
            return lambda: held.value
        return (lambda: held[:]) if hasattr(held, "__len__") and len(held) <= MOST else None
    if type(held) is torch.Tensor:
        shared = held.device.type == "cpu" and held.is_shared() and not held.is_inference()
        return held.tolist if shared and held.numel() <= MOST else None
    if type(held) is np.ndarray and held.flags.writeable and not held.flags.owndata:
        return held.tolist if held.size <= MOST and held.dtype.kind in "biuf" else None
    return None


def _reader_of_some(held: Any) -> Callable[[], Any] | None:
    """A function that reads some numbers of an array that processes share and that is longer than
    `MOST`; None for anything else."""
    import torch

    if isinstance(held, OF_PROCESSES):
        if hasattr(held, "value") or not hasattr(held, "__len__") or len(held) <= MOST:
            return None
        step = -(-len(held) // LOOKED_AT)
        return lambda: held[::step]
    if type(held) is torch.Tensor:
        shared = held.device.type == "cpu" and held.is_shared() and held.is_contiguous()
        if not shared or held.numel() <= MOST:
            return None
        step = -(-held.numel() // LOOKED_AT)
        return lambda: held.detach().view(-1)[::step].tolist()
    return None


def _put_back(read: Callable[[], Any], write: Callable[[Any], Any], before: Any) -> None:
    if read() != before:
        write(before)


def _write(held: Any, before: Any) -> None:
    import torch

    if isinstance(held, torch.Tensor):
        with torch.no_grad():
            held.copy_(torch.tensor(before, device="cpu"))
    elif isinstance(held, np.ndarray):
        held[...] = before
    elif hasattr(held, "value"):
        held.value = before
    else:
        held[:] = before
