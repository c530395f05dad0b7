"""What a row of a step takes longer in a mapped file than in memory, measured on a disk.

Measured are rows of which nothing is in memory: the disk reads the page of each, and that of its
optimizer state, and writes both. So it is with a table many times as large as memory; of a
smaller one memory has some pages, and a row takes less. What the disk itself or its host keeps,
counts as read from the disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recd_plugins.errors import CapabilityError

__all__ = ["mapped_row_ns"]

Numbers = NDArray[np.float32]

PAGE = mmap.PAGESIZE
PAGES = (1 << 25) // PAGE
"""Pages of the file, of 32 MiB: few enough to be written in a second."""
ROWS = PAGES // 16
"""Rows that are stepped at most. They and their states have an eighth of the pages, at random
places: a disk reads and writes pages side by side as one."""
AT_ONCE = ROWS // 8
"""Rows of a step, whose pages the disk is asked for all at once."""
LONG_ENOUGH = 0.5
"""Seconds after which no other step begins."""
DIM = 64
RESIDENT = 0.05
"""The share of pages that may be in memory all the same."""


def mapped_row_ns(folder: Path) -> float:
    """Nanoseconds that a row of a step takes longer in a mapped file in the folder than in memory.

    It takes a second, or two on a slow disk, and 32 MiB there. `CapabilityError` where no file can
    be written, or where the system keeps what is written in memory.
    """
    numbers = np.random.default_rng(0).random((PAGES, PAGE // 4), np.float32)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(numbers.data)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            mapping = mmap.mmap(file.fileno(), numbers.nbytes)
        mapping.madvise(mmap.MADV_RANDOM)
        if _resident(mapping) > RESIDENT * PAGES:
            raise CapabilityError(
                f"{folder}: the system keeps the pages of files there in memory, so its disk "
                "cannot be measured. Name a folder on a disk of this machine, or set "
                "topology.mapped_ns yourself."
            )
        return _measured(mapping, numbers)
    except OSError as error:
        raise CapabilityError(
            f"{folder}: no file of {numbers.nbytes >> 20} MiB can be written and read there "
            f"({error.strerror}). Name a folder on a disk that has room for one such file of each "
            "rank."
        ) from error


def _measured(mapping: mmap.mmap, memory: Numbers) -> float:
    """Rows of the file and of memory, stepped in turns; then the file is written back.

    Training waits for no write until memory is short of pages, and then for as many as it needs. So
    what the system takes to write a single page, for it waits for the disk's own cache and for the
    file system's journal, is not counted.
    """
    table = np.frombuffer(mapping, np.float32).reshape(memory.shape)
    places = np.random.default_rng(1).permutation(PAGES)[: 2 * ROWS].reshape(-1, 2, AT_ONCE)
    longer: list[float] = []
    begun = time.perf_counter()
    for rows, states in places:
        read = time.perf_counter()
        for page in (*rows.tolist(), *states.tolist()):
            mapping.madvise(mmap.MADV_WILLNEED, page * PAGE, PAGE)
        _step(table, rows, states)
        ended = time.perf_counter()
        _step(memory, rows, states)
        longer.append(2 * ended - read - time.perf_counter())
        if ended - begun > LONG_ENOUGH:
            break
    written = _flushed(mapping)
    table[0, 0] += 1
    written -= _flushed(mapping)
    # One step may wait for what else the machine does; the median does not.
    took = statistics.median(longer) + max(written, 0.0) / len(longer)
    return max(took, 0.0) / AT_ONCE * 1e9


def _step(table: Numbers, rows: Any, states: Any) -> None:
    """Row-wise Adagrad of rows [n] that begin pages, by states [n] that begin others."""
    sums = table[states, 0] + 1
    table[states, 0] = sums
    table[rows, :DIM] -= 0.01 / np.sqrt(sums)[:, None]


def _flushed(mapping: mmap.mmap) -> float:
    """Seconds until the disk has what was written."""
    begun = time.perf_counter()
    mapping.flush()
    return time.perf_counter() - begun


def _resident(mapping: mmap.mmap) -> int:
    """The pages of a file that are in memory, whether this process has read them or not."""
    found = np.empty(PAGES, np.uint8)
    first = np.frombuffer(mapping, np.uint8).ctypes.data
    system = ctypes.CDLL(None, use_errno=True)
    place = ctypes.c_void_p(first), ctypes.c_size_t(PAGES * PAGE)
    if system.mincore(*place, found.ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte))):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(np.count_nonzero(found & 1))
