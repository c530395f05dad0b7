"""Freed memory of stripes that Arrow keeps for a while, so that the next window can use it.

The operating system clears each page that it hands out, and Arrow's usual pool returns the memory
of a window of stripes within milliseconds. The pool here is Arrow's own: the malloc of the
trainer's process stays as it was.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["decode_into_kept", "kept_memory"]

KEPT_MS = 10_000
"""How long freed memory is kept: longer than a window of stripes takes."""
USUAL = "mimalloc"
"""The pool that Arrow uses if nobody chose one."""


def kept_memory() -> pa.MemoryPool | None:
    """The pool; None if somebody chose another one for this process, or Arrow was built without
    it."""
    return _pool() if pa.default_memory_pool().backend_name == USUAL else None


@cache
def _pool() -> pa.MemoryPool | None:
    try:
        pool = pa.jemalloc_memory_pool()
        pa.jemalloc_set_decay_ms(KEPT_MS)
    except NotImplementedError:
        return None
    return pool


def decode_into_kept(file: pq.ParquetFile, source: Any, **options: Any) -> None:
    """Have an open file decode into kept memory.

    A ParquetFile itself accepts no pool, but its reader does: a new reader opens the `source` again
    with the same `options`.
    """
    pool = kept_memory()
    if pool is not None:
        reader = pq.core.ParquetReader(pool)
        reader.open(source, **_DEFAULTS | options)
        file.reader = reader


def _defaults() -> dict[str, Any]:
    """A ParquetFile's defaults of the options that its reader takes: the reader's own defaults
    differ."""
    taken = inspect.signature(pq.core.ParquetReader.open).parameters
    options = inspect.signature(pq.ParquetFile).parameters.values()
    return {one.name: one.default for one in options if one.name in taken and one.name != "source"}


_DEFAULTS = _defaults()
