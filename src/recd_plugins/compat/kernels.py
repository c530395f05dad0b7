"""Kernels: functions that numba compiles, once for all processes of a machine."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock

__all__ = ["kernel"]

PATIENCE = 120.0
"""Seconds that a process waits for another one to compile; then it compiles by itself."""
LOOK = 0.02
"""Seconds between two looks at whether the other is done."""

_held: set[Path] = set()
"""Locks of this process, which numba lets compile one thing at a time, and what that calls."""


def kernel(function: Callable[..., Any]) -> Any:
    """The function, compiled where it is first called and kept on disk; it holds no lock of Python.

    The ranks of a machine call it at the same moment. One of them compiles; the others wait, and
    have it from the disk.
    """
    compiled = numba.njit(cache=True, nogil=True)(function)
    compile_it = compiled.compile

    def compile_alone(signature: Any) -> Any:
        # numba's own lock first: what is compiled within holds it, and then asks for ours.
        with global_compiler_lock, _alone(Path(compiled.stats.cache_path), function):
            return compile_it(signature)

    compiled.compile = compile_alone
    return compiled


@contextlib.contextmanager
def _alone(folder: Path, function: Callable[..., Any]) -> Iterator[None]:
    """While no other process compiles the function; any may where the folder cannot be locked."""
    lock = folder / f"{function.__module__}.{function.__qualname__}.lock"
    if lock in _held:  # it calls itself, with other types
        yield
        return
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(lock.open("w"))
            ends = time.monotonic() + PATIENCE
            while time.monotonic() < ends:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(LOOK)
        _held.add(lock)
        try:
            yield
        finally:
            _held.discard(lock)
