"""Coalesced reads of a file: what lies near is read in one request, several requests at a time.

A request costs the same time as many bytes do, so a gap between two columns is read over where it
is smaller than that. Arrow reads from what was fetched.
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
"""Bytes: 20 ms a request at 50 to 100 MB/s are as much as 1 to 2 MiB; an I/O has no more than the
second, so that several go on at a time."""
LOCAL_HOLE = 8 << 10
"""The same of a file on disk, whose gaps are copied in vain."""
AT_ONCE = 16
"""Requests that go on at a time, of a process."""


class FetchedFile(io.RawIOBase):
    """A file that answers from the spans that `fetch` brought, and else asks for what it is."""

    def __init__(self, file: Location, source: Any) -> None:
        super().__init__()
        self._uri = file if isinstance(file, Uri) else None
        self._source = source
        self._size: int = source.size()
        self._at = 0
        self._starts: list[int] = []
        self._spans: list[bytes] = []

    def fetch(self, spans: Iterable[tuple[int, int]]) -> None:
        """Bring spans of (first byte, size); those of before are given up."""
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
        at = bisect_right(self._starts, first) - 1
        if at >= 0 and end <= self._starts[at] + len(self._spans[at]):
            start = first - self._starts[at]
            return memoryview(self._spans[at])[start : start + end - first]
        return self._ask(first, end) if first < end else b""

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
    """I/Os [first, end) for spans of (first byte, size): those within `hole` of each other are one,
    as long as it has at most `most` bytes."""
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
    """The requests of this process: a fork has no thread of them."""
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="recd-requests")
