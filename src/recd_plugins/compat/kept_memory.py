"""Memory that Arrow keeps for a while once it is free, so that what comes next has it again.

The kernel clears each page that it gives, which was an eighth of a reader's time: Arrow's usual
pool gives back within milliseconds what a window of stripes had, and malloc at once what a batch
had. What is kept here is Arrow's own, and leaves the malloc of the trainer's process as it was.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["decode_into_kept", "kept_empty", "kept_memory"]

KEPT_MS = 10_000
"""How long what is free is kept: longer than a window of stripes takes."""
USUAL = "mimalloc"
"""The pool that Arrow has where nobody chose one."""
LEAST = 1 << 16
"""Bytes below which malloc has memory again by itself."""


def kept_memory() -> pa.MemoryPool | None:
    """The pool; none where somebody chose one for this process, or Arrow was built without."""
    return _pool() if pa.default_memory_pool().backend_name == USUAL else None


@cache
def _pool() -> pa.MemoryPool | None:
    try:
        pool = pa.jemalloc_memory_pool()
        pa.jemalloc_set_decay_ms(KEPT_MS)
    except NotImplementedError:
        return None
    return pool


def kept_empty(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """`np.empty`, of kept memory where so much is asked for that it is worth it."""
    kind = np.dtype(dtype)
    size = int(count) * kind.itemsize
    pool = kept_memory() if size >= LEAST else None
    if pool is None:
        return np.empty(count, kind)
    return np.frombuffer(pa.allocate_buffer(size, memory_pool=pool), kind)


def decode_into_kept(file: pq.ParquetFile, source: Any, **options: Any) -> None:
    """Have an open file decode into kept memory: a ParquetFile itself takes no pool, but its reader
    does, which opens the `source` anew by these `options` of it."""
    pool = kept_memory()
    if pool is not None:
        reader = type(file.reader)(pool)
        reader.open(source, **options)
        file.reader = reader
