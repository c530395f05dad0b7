"""Batches handed over by memory, where a worker and its client share a machine.

A worker writes bodies one after another into an anonymous file in memory, round and round, and
says where each lies; a client opens the file under /proc and reads the body once, into memory of
its own. The file begins with 16 bytes drawn by lot, which the worker names in its
authenticated answer: where they are not found, both are not on one machine, or not in one
container, and batches go over the wire. Behind them is how many bytes were begun to be written:
so a client that was too slow sees that its batch was written over, and asks for it again.

Nothing has a name in a folder: the memory is bounded, and ends with the processes that hold it,
however those end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Iterable
from threading import Lock

import pyarrow as pa
import torch
from torch import Tensor

from recd_dsi.service.calls import LARGEST_ANSWER
from recd_plugins.api import DataError

__all__ = ["NotShared", "SharedReader", "SharedRing"]

HEAD = struct.Struct("<16sQ")
"""What was drawn by lot, and how many bytes were begun to be written."""
PLACE = struct.Struct("<16s5Q")
"""Where a body lies: what was drawn by lot, process, descriptor, bytes that were written before
it, its size, and the room for all."""
FIRST = 4096
"""Where bodies begin."""
ALIGNED = 64
MOST = 1 << 60
"""The largest number of bytes."""


class NotShared(Exception):
    """A batch is not there for this process: not this machine, or it was written over."""


class SharedRing:
    """A worker's: the latest bodies that it handed over, within `room` bytes."""

    def __init__(self, room: int) -> None:
        self._room = room // ALIGNED * ALIGNED
        self._lock = Lock()
        self._lot = secrets.token_bytes(16)
        self._fd: int | None = None
        self._at = 0
        """Bytes written in all, those left out at the end of a round included."""

    def put(self, body: pa.Buffer) -> bytes | None:
        """The place of the body, for a `SharedReader`; None where there is no room for it."""
        with self._lock:
            if body.size * 4 > self._room or not self._opened():
                return None
            if self._at % self._room + body.size > self._room:
                self._at += self._room - self._at % self._room
            at, self._at = self._at, self._at + -(-body.size // ALIGNED) * ALIGNED
            assert self._fd is not None
            try:
                # First that it is written over, then over it.
                os.pwrite(self._fd, HEAD.pack(self._lot, self._at), 0)
                _write(self._fd, memoryview(body), FIRST + at % self._room)
            except OSError:  # no memory: the wire carries what shared memory cannot
                return None
            return PLACE.pack(self._lot, os.getpid(), self._fd, at, body.size, self._room)

    def put_all(self, bodies: Iterable[pa.Buffer]) -> bytes | None:
        """The places of all of them, one behind the other; None where there is no room for one."""
        places = [self.put(body) for body in bodies]
        return None if None in places else b"".join(filter(None, places))

    def close(self) -> None:
        """Hand over nothing any more."""
        with self._lock:
            fd, self._fd, self._room = self._fd, None, 0
            if fd is not None:
                os.close(fd)

    def _opened(self) -> bool:
        if self._fd is None:
            with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
                self._fd = os.memfd_create("recd-batches", os.MFD_CLOEXEC)
        return self._fd is not None


class SharedReader:
    """A client's view of one worker's ring; of one thread, which closes it."""

    def __init__(self) -> None:
        self._place: tuple[int, int, bytes] | None = None
        self._fd = -1

    def body(self, found: bytes) -> Tensor:
        """The body, uint8, on memory of its own; `NotShared` where it is not there."""
        pid, fd, lot, at, size, room = _place(found)
        if self._place != (pid, fd, lot):
            self.close()
            try:
                self._fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                raise NotShared from None
            self._place = (pid, fd, lot)
        self._hold(lot, at, room)
        body = torch.empty(size, dtype=torch.uint8)
        _read(self._fd, body.numpy().data, FIRST + at % room)
        self._hold(lot, at, room)
        return body

    def bodies(self, places: bytes) -> list[Tensor]:
        """The bodies of `SharedRing.put_all`."""
        size = PLACE.size
        return [self.body(places[at : at + size]) for at in range(0, len(places), size)]

    def close(self) -> None:
        """Read nothing any more."""
        if self._place is not None:
            os.close(self._fd)
        self._place = None

    def _hold(self, lot: bytes, at: int, room: int) -> None:
        """`NotShared` unless the file is the one that is meant, and the body is still there."""
        try:
            head = os.pread(self._fd, HEAD.size, 0)
        except OSError:
            raise NotShared from None
        if len(head) < HEAD.size:
            raise NotShared
        theirs, begun = HEAD.unpack(head)
        if not secrets.compare_digest(theirs, lot) or begun - at > room:
            raise NotShared


def _place(found: bytes) -> tuple[int, int, bytes, int, int, int]:
    """The place of a body, every number within bounds; `DataError` for anything else."""
    if len(found) != PLACE.size:
        raise DataError(f"a worker says in {len(found)} bytes where a batch lies. Send it again.")
    lot, pid, fd, at, size, room = PLACE.unpack(found)
    if not 0 < room <= MOST or size > LARGEST_ANSWER or at > MOST or at % room + size > room:
        raise DataError(f"a worker says that a batch of {size} bytes lies in {room} bytes.")
    return pid, fd, lot, at, size, room


def _write(fd: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def _read(fd: int, data: memoryview, at: int) -> None:
    while data:
        read = os.preadv(fd, [data], at)
        if not read:
            raise NotShared
        data, at = data[read:], at + read
