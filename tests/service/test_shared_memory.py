"""Rung 1: bodies in a ring of memory, and readers that are late, elsewhere or lied to."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

from recd_dsi.service.shared_memory import PLACE, NotShared, SharedReader, SharedRing, WrittenOver
from recd_plugins.errors import DataError

ROOM = 1 << 16


def body(number: int, size: int) -> bytes:
    return np.random.default_rng(number).bytes(size)


def put(ring: SharedRing, *bodies: bytes) -> bytes | None:
    return ring.put_all([pa.py_buffer(one) for one in bodies])


def read(reader: SharedReader, places: bytes) -> list[bytes]:
    found = reader.bodies(places)
    assert not any(one.data_ptr() % 64 for one in found)
    return [one.numpy().tobytes() for one in found]


def test_bodies_are_read_as_they_were_written_until_they_are_written_over() -> None:
    """One by one, and some in an answer."""
    ring, reader, draw = SharedRing(ROOM), SharedReader(), np.random.default_rng(0)
    answers, written = [], []
    for number in range(200):
        sizes = draw.integers(0, ROOM // 5 // (1 + number % 3), 1 + number % 3)
        answers.append([body(number + n, size) for n, size in enumerate(sizes.tolist())])
        places = put(ring, *answers[-1])
        assert places is not None
        written.append(places)
        there = []
        for earlier in range(number + 1):
            try:
                found = read(reader, written[earlier])
            except WrittenOver:
                continue
            there.append(earlier)
            assert found == answers[earlier]
        # The latest are there, as many as room holds, and no other.
        assert there == [*range(there[0], number + 1)]
        assert sum(len(one) for answer in answers[there[0] :] for one in answer) <= ROOM
        assert len(there) > 2 or number < 3
    reader.close()
    ring.close()


def test_what_has_no_room_goes_over_the_wire() -> None:
    ring = SharedRing(ROOM)
    assert put(ring, bytes(ROOM // 2)) is None
    assert put(ring, *[bytes(ROOM // 8)] * 5) is None
    assert put(SharedRing(0), b"a") is None
    ring.close()
    assert put(ring, b"a") is None


def test_memory_of_another_machine_is_not_read() -> None:
    """Process and descriptor may be there, too, but not what was drawn by lot."""
    ring, other, reader = SharedRing(ROOM), SharedRing(ROOM), SharedReader()
    place, theirs = put(ring, b"ours"), put(other, b"more")
    assert place is not None
    assert theirs is not None
    lot, pid, fd, *rest = PLACE.unpack(place)
    another = PLACE.unpack(theirs)[2]
    pipe, end = os.pipe()
    for wrong in ((b"x" * 16, pid, fd), (lot, pid, another), (lot, pid, 1 << 40), (lot, 0, fd)):
        with pytest.raises(NotShared):
            reader.bodies(PLACE.pack(*wrong, *rest))
    assert read(reader, place) == [b"ours"]
    reader.close()
    ring.close()
    with pytest.raises(NotShared):
        reader.bodies(place)
    for one in (pipe, end):
        os.close(one)
    reader.close()
    other.close()


@pytest.mark.parametrize(
    ("at", "size", "room"),
    [(0, 1 << 40, 1 << 41), (0, 8, 0), (1, ROOM, ROOM), (1 << 62, 8, ROOM), (0, 8, 1 << 63)],
)
def test_places_that_cannot_be_are_errors(at: int, size: int, room: int) -> None:
    here = (b"x" * 16, os.getpid(), 1)
    for places in (
        PLACE.pack(*here, at, size, room),
        PLACE.pack(*here, 0, 8, ROOM) + PLACE.pack(*here, at, size, room),
        b"abc",
        b"",
    ):
        with pytest.raises(DataError, match=r"a worker (says|describes|reports)"):
            SharedReader().bodies(places)
