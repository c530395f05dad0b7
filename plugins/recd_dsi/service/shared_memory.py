"""Batches handed over through memory, if a worker and its client are on one machine.

A worker writes bodies one after another into an anonymous file in memory, as a ring, and sends the
place of each. A client opens the file under /proc, and reads the body once, into its own memory.
The file begins with 16 random bytes, which the worker also sends in its authenticated answer. If a
client does not find them, the two are not on one machine or not in one container, and batches go
over the wire. Next in the file is the number of bytes whose writing has begun: so a client that was
too slow sees that its batch was overwritten, and asks for it again.

Nothing has a name in a folder. The memory is bounded, and is freed when the processes that hold it
end, however they end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import struct
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from recd_dsi.service.calls import LARGEST_ANSWER
from recd_dsi.service.job import ONE_VERSION
from recd_plugins.api import DataError

__all__ = ["NotShared", "SharedReader", "SharedRing", "WrittenOver"]

HEAD = struct.Struct("<16sQ")
"""The random bytes, and the number of bytes whose writing has begun."""
PLACE = struct.Struct("<16s5Q")
"""Where a body lies: the random bytes, process, descriptor, number of bytes written before it, its
size, and the room for all bodies."""
FIRST = 4096
"""Where bodies begin in the file."""
ALIGNED = 64
MOST = 1 << 60
"""The largest number of bytes."""


class NotShared(Exception):
    """A batch is not there for this process: it is on another machine, or was overwritten."""


class WrittenOver(NotShared):
    """A batch was there, but the worker has overwritten it since."""


class SharedRing:
    """A worker's ring: the latest bodies that it handed over, within `room` bytes."""

    def __init__(self, room: int) -> None:
        self._room = room // ALIGNED * ALIGNED
        self._lock = Lock()
        self._lot = secrets.token_bytes(16)
        self._fd: int | None = None
        self._at = 0
        """The number of bytes written so far, including gaps at the end of a round."""

    def put_all(self, bodies: Sequence[pa.Buffer]) -> bytes | None:
        """Write all bodies, one after another; returns their places for a `SharedReader`, or None
        if there is no room."""
        size = sum(_aligned(body.size) for body in bodies)
        with self._lock:
            largest = max(body.size for body in bodies)
            if largest * 4 > self._room or size * 2 > self._room or not self._opened():
                return None
            if self._at % self._room + size > self._room:
                self._at += self._room - self._at % self._room
            first, self._at = self._at, self._at + size
            assert self._fd is not None
            try:
                # Mark what is overwritten before overwriting it.
                os.pwrite(self._fd, HEAD.pack(self._lot, self._at), 0)
                _write(self._fd, bodies, FIRST + first % self._room)
            except OSError:  # no memory: these batches go over the wire
                return None
            here = (self._lot, os.getpid(), self._fd)
        places = []
        for body in bodies:
            places.append(PLACE.pack(*here, first, body.size, self._room))
            first += _aligned(body.size)
        return b"".join(places)

    def close(self) -> None:
        """Hand over nothing more."""
        with self._lock:
            fd, self._fd, self._room = self._fd, None, 0
            if fd is not None:
                os.close(fd)

    def _opened(self) -> bool:
        if self._fd is None:
            with contextlib.suppress(OSError, AttributeError):  # only Linux has it
                self._fd = os.memfd_create("recd-batches", os.MFD_CLOEXEC)
        return self._fd is not None


class SharedReader:
    """A client's view of one worker's ring; it belongs to one thread, which closes it."""

    def __init__(self) -> None:
        self._place: tuple[int, int, bytes] | None = None
        self._fd = -1

    def bodies(self, found: bytes) -> list[Tensor]:
        """The bodies that `SharedRing.put_all` wrote, as uint8, in one block of this process's
        memory; raises `NotShared` if they are not there."""
        places = _places(found)
        first, last = places[0], places[-1]
        if self._place != (first.pid, first.fd, first.lot):
            self.close()
            try:
                path = f"/proc/{first.pid}/fd/{first.fd}"
                # The place may be of another file, such as a pipe, whose opening could hang.
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError:
                raise NotShared from None
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.close(self._fd)
                raise NotShared
            self._place = (first.pid, first.fd, first.lot)
        self._hold(first)
        # One call for all: each call gives up Python's lock, and must wait for it again.
        whole = torch.empty(last.at + last.size - first.at, dtype=torch.uint8, device="cpu")
        _read(self._fd, whole.numpy().data, FIRST + first.at % first.room)
        self._hold(first)
        begins = [place.at - first.at for place in places]
        return [
            whole[begin : begin + place.size] for begin, place in zip(begins, places, strict=True)
        ]

    def close(self) -> None:
        """Read nothing more."""
        if self._place is not None:
            os.close(self._fd)
        self._place = None

    def _hold(self, first: _Place) -> None:
        """Raise `NotShared` if this is not the expected file, and `WrittenOver` if the bodies are
        no longer there."""
        try:
            head = os.pread(self._fd, HEAD.size, 0)
        except OSError:
            raise NotShared from None
        if len(head) < HEAD.size:
            raise NotShared
        theirs, begun = HEAD.unpack(head)
        if not secrets.compare_digest(theirs, first.lot):
            raise NotShared
        if begun - first.at > first.room:
            raise WrittenOver


class _Place(NamedTuple):
    """The place of a body, with the fields of `PLACE`."""

    lot: bytes
    pid: int
    fd: int
    at: int
    size: int
    room: int


def _places(found: bytes) -> list[_Place]:
    """The places of bodies that lie one after another, with every number within bounds; raises
    `DataError` for anything else."""
    if not found or len(found) % PLACE.size:
        raise DataError(
            f"a worker describes in {len(found)} bytes where batches are, which cannot be read. "
            f"{ONE_VERSION}"
        )
    places = [_Place(*one) for one in PLACE.iter_unpack(found)]
    first, last = places[0], places[-1]
    behind = first.at
    for one in places:
        if (one.lot, one.pid, one.fd, one.at, one.room) != (*first[:3], behind, first.room):
            raise DataError(
                "a worker reports that the batches of one answer are not next to each other. "
                f"{ONE_VERSION}"
            )
        behind += _aligned(min(one.size, MOST))
    room, size = first.room, behind - first.at
    if not 0 < room <= MOST or size > LARGEST_ANSWER or first.at > MOST:
        raise DataError(
            f"a worker says that batches of {size} bytes lie in {room} bytes of memory, which "
            f"cannot be. {ONE_VERSION}"
        )
    if first.at % room + last.at + last.size - first.at > room:
        raise DataError(
            f"a worker says that batches reach beyond the {room} bytes where they lie. "
            f"{ONE_VERSION}"
        )
    return places


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _write(fd: int, bodies: Sequence[pa.Buffer], at: int) -> None:
    """Write each body at a multiple of `ALIGNED`; one call gives up Python's lock only once."""
    parts = []
    for body in bodies:
        parts += [memoryview(body), memoryview(bytes(_aligned(body.size) - body.size))]
    while parts:
        written = os.pwritev(fd, parts, at)
        at += written
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][written:]


def _read(fd: int, data: memoryview, at: int) -> None:
    while data:
        read = os.preadv(fd, [data], at)
        if not read:
            raise NotShared
        data, at = data[read:], at + read
