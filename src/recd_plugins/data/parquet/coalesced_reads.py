"""Coalesced reads of a file: chunks near each other are read in one request, and several requests
run at a time.

A request takes as long as reading some number of bytes, so a gap between two columns that is
smaller than that is read too. Arrow reads from what was fetched.
"""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from recd_plugins.storage.uri import Location, Uri

__all__ = ["FetchedFile", "coalesced_ios"]

HOLE, MOST = 1 << 20, 16 << 20
"""The largest gap that is read over, and the largest I/O, in bytes. 20 ms a request at 50 to 100
MB/s are worth 1 to 2 MiB; the limit of an I/O lets several run at a time."""
LOCAL_HOLE = 8 << 10
"""The same for a file on disk, where reading a gap only costs a useless copy."""
AT_ONCE = 16
"""Requests that a process runs at a time."""


class FetchedFile(io.RawIOBase):
    """A file that reads from the spans that `fetch` brought, and anything else from the file behind
    it."""

    def __init__(self, file: Location, source: Any) -> None:
        super().__init__()
        self._uri = file if isinstance(file, Uri) else None
        self._source = source
        self._size: int = source.size()
        self._at = 0
        self._starts: list[int] = []
        self._spans: list[bytes] = []

    @property
    def is_on_disk(self) -> bool:
        """Whether it lies on a disk of this machine, and not in a store."""
        return self._uri is None

    def fetch(self, spans: Iterable[tuple[int, int]]) -> None:
        """Fetch spans of (first byte, size), and drop those fetched before."""
        ios = coalesced_ios(spans, hole=LOCAL_HOLE if self._uri is None else HOLE, most=MOST)
        self._starts, self._spans = [], []
        asked = map if self._uri is None else _requests(os.getpid()).map
        found = list(asked(lambda one: self._ask(*one), ios))
        self._starts = [first for first, _ in ios]
        self._spans = found

    def _ask(self, first: int, end: int) -> bytes:
        def read() -> bytes:
            found: bytes = self._source.read_at(end - first, first)
            if len(found) < end - first:
                raise ConnectionError(f"{len(found)} of {end - first} bytes came")
            return found

        return read() if self._uri is None else self._uri.reading(read)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1, /) -> Any:
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        first, self._at = self._at, max(self._at, end)
        return self._found(first, end) if first < end else b""

    def span(self, first: int, size: int) -> memoryview:
        """`size` bytes from a place on; several threads may ask at a time."""
        return memoryview(self._found(first, first + size)).cast("B")  # Arrow's are signed

    def _found(self, first: int, end: int) -> bytes | memoryview:
        at = bisect_right(self._starts, first) - 1
        if at >= 0 and end <= self._starts[at] + len(self._spans[at]):
            start = first - self._starts[at]
            return memoryview(self._spans[at])[start : start + end - first]
        return self._ask(first, end)

    def readall(self) -> bytes:
        return bytes(self.read())

    def close(self) -> None:
        self._starts, self._spans = [], []
        if not self.closed:
            self._source.close()
        super().close()


def coalesced_ios(
    spans: Iterable[tuple[int, int]], *, hole: int, most: int
) -> list[tuple[int, int]]:
    """I/Os [first, end) for spans of (first byte, size): spans within `hole` of each other share
    one, as long as it has at most `most` bytes."""
    ios: list[tuple[int, int]] = []
    for first, size in sorted(spans):
        end = first + size
        if ios and first - ios[-1][1] <= hole and end - ios[-1][0] <= most:
            ios[-1] = (ios[-1][0], max(ios[-1][1], end))
        else:
            ios.append((first, end))
    return ios


@lru_cache(maxsize=1)
def _requests(process: int) -> ThreadPoolExecutor:
    """The threads for this process's requests: a forked process has none of its parent's
    threads."""
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="recd-requests")
