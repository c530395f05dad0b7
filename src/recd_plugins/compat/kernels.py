"""Kernels: functions that numba compiles, once for all processes of a machine.

numba keeps them beside their source, or in the user's cache. If neither can be written to, as in a
container with a read-only installation and no home, they go into a folder of the temporary one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock

from recd_plugins.notices import NoticeWarning
from recd_plugins.storage.own_folder import own_folder

__all__ = ["kernel"]

PATIENCE = 120.0
"""Seconds that a process waits for another one to compile; after that it compiles by itself."""
LOOK = 0.02
"""Seconds between two looks at whether the other is done."""

_held: set[Path] = set()
"""The locks that this process holds. numba compiles one function at a time in a process, and the
functions which that one calls."""


def kernel(function: Callable[..., Any]) -> Any:
    """The function, compiled when it is first called and kept on disk. It runs without the GIL.

    The ranks of a machine call it at the same moment. One of them compiles it; the others wait and
    load it from disk. If the disk is full, it is compiled all the same, but not kept.
    """
    compiled = _to_be_compiled(function)
    _hold_to_its_calls(compiled, function)
    compile_it = compiled.compile

    def compile_alone(signature: Any) -> Any:
        # numba's own lock first: a function compiled inside holds it, and then asks for ours.
        with global_compiler_lock, _alone(compiled.stats.cache_path, function):
            try:
                return compile_it(signature)
            except OSError as error:
                _say_once(f"what is compiled cannot be kept ({error.strerror or error})")
                return compile_it(signature)  # already compiled: numba keeps it as the last step

    compiled.compile = compile_alone
    return compiled


def _to_be_compiled(function: Callable[..., Any]) -> Any:
    """numba's dispatcher, which now knows where to keep what it compiles."""
    with contextlib.suppress(RuntimeError):  # there is no folder that numba may write to
        return numba.njit(cache=True, nogil=True)(function)
    folder = own_folder("recd-kernels")  # numba unpickles what lies there
    if folder is None:
        _say_once("no folder can be written to")
        return numba.njit(nogil=True)(function)
    # numba reads this only here; other packages of the process keep their own folders.
    chosen, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
    try:
        return numba.njit(cache=True, nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = chosen


def _hold_to_its_calls(compiled: Any, function: Callable[..., Any]) -> None:
    """Have a kept kernel depend also on the files of the kernels that are compiled into it: numba
    compares only the kernel's own file, and would run old versions of the others."""
    files = _files_of_calls(function) - {function.__code__.co_filename}
    kept: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if files and hasattr(kept, "_source_stamp"):
        stats = [os.stat(file) for file in sorted(files)]
        written = tuple((one.st_mtime_ns, one.st_size) for one in stats)
        kept._source_stamp = kept._source_stamp, written


def _files_of_calls(function: Callable[..., Any]) -> set[str]:
    """The files of the kernels that a function calls by name, directly or through other kernels."""
    found: set[str] = set()
    seen: set[object] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        for name in one.__code__.co_names:
            called = getattr(one.__globals__.get(name), "py_func", None)
            if called is not None and called not in seen:
                seen.add(called)
                found.add(called.__code__.co_filename)
                waiting.append(called)
    return found


@cache
def _say_once(why: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        warnings.warn(
            f"kernels: {why}, so each process compiles them again, which takes seconds. Set the "
            "variable NUMBA_CACHE_DIR to a folder to which only this user may write.",
            NoticeWarning,
            stacklevel=2,
        )


@contextlib.contextmanager
def _alone(kept: str | None, function: Callable[..., Any]) -> Iterator[None]:
    """Inside, no other process compiles the function. Without a folder to keep it in, or if that
    folder cannot be locked, others may."""
    if kept is None:
        yield
        return
    folder = Path(kept)
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
