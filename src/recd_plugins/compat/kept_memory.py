"""Memory of stripes that Arrow keeps for a while once it is free, so that the next window has it.

The kernel clears each page that it gives, and Arrow's usual pool gives back within milliseconds
what a window of stripes had. The pool is Arrow's own: the malloc of the trainer's process stays as
it was.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["decode_into_kept", "kept_memory"]

KEPT_MS = 10_000
"""How long what is free is kept: longer than a window of stripes takes."""
USUAL = "mimalloc"
"""The pool that Arrow has where nobody chose one."""


def kept_memory() -> pa.MemoryPool | None:
    """The pool; None where somebody chose one for this process, or Arrow was built without."""
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
    """Have an open file decode into kept memory: a ParquetFile itself takes no pool, but its reader
    does, which opens the `source` anew by these `options` of it."""
    pool = kept_memory()
    if pool is not None:
        reader = pq.core.ParquetReader(pool)
        reader.open(source, **_DEFAULTS | options)
        file.reader = reader


def _defaults() -> dict[str, Any]:
    """A ParquetFile's own, of the options that its reader takes: the reader's are others."""
    taken = inspect.signature(pq.core.ParquetReader.open).parameters
    options = inspect.signature(pq.ParquetFile).parameters.values()
    return {one.name: one.default for one in options if one.name in taken and one.name != "source"}


_DEFAULTS = _defaults()
