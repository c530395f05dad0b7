"""Rung 1: bodies in a ring of memory, and readers that are late, elsewhere or lied to."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

from recd_dsi.service.shared_memory import PLACE, NotShared, SharedReader, SharedRing
from recd_plugins.errors import DataError

ROOM = 1 << 16


def body(number: int, size: int) -> bytes:
    return np.random.default_rng(number).bytes(size)


def test_bodies_are_read_as_they_were_written_until_they_are_written_over() -> None:
    ring, reader = SharedRing(ROOM), SharedReader()
    sizes = np.random.default_rng(0).integers(0, ROOM // 4, 200).tolist()
    places = []
    for number, size in enumerate(sizes):
        place = ring.put(pa.py_buffer(body(number, size)))
        assert place is not None
        places.append(place)
        there = []
        for earlier in range(number + 1):
            try:
                found = reader.body(places[earlier])
            except NotShared:
                continue
            there.append(earlier)
            assert found.numpy().tobytes() == body(earlier, sizes[earlier])
            assert found.data_ptr() % 8 == 0
        # The latest are there, as many as room holds, and no other.
        assert there == [*range(there[0], number + 1)]
        assert sum(sizes[there[0] :][: len(there)]) <= ROOM
        assert len(there) > 2 or number < 3
    reader.close()
    ring.close()


def test_what_has_no_room_goes_over_the_wire() -> None:
    ring = SharedRing(ROOM)
    assert ring.put(pa.py_buffer(bytes(ROOM // 2))) is None
    assert SharedRing(0).put(pa.py_buffer(b"a")) is None
    ring.close()
    assert ring.put(pa.py_buffer(b"a")) is None


def test_memory_of_another_machine_is_not_read() -> None:
    """Process and descriptor may be there, too, but not what was drawn by lot."""
    ring, other, reader = SharedRing(ROOM), SharedRing(ROOM), SharedReader()
    place, theirs = ring.put(pa.py_buffer(b"ours")), other.put(pa.py_buffer(b"more"))
    assert place is not None
    assert theirs is not None
    lot, pid, fd, *rest = PLACE.unpack(place)
    another = PLACE.unpack(theirs)[2]
    pipe, end = os.pipe()
    for wrong in ((b"x" * 16, pid, fd), (lot, pid, another), (lot, pid, 1 << 40), (lot, 0, fd)):
        with pytest.raises(NotShared):
            reader.body(PLACE.pack(*wrong, *rest))
    assert reader.body(place).numpy().tobytes() == b"ours"
    reader.close()
    ring.close()
    with pytest.raises(NotShared):
        reader.body(place)
    for one in (pipe, end):
        os.close(one)
    reader.close()
    other.close()


@pytest.mark.parametrize(
    ("at", "size", "room"),
    [(0, 1 << 40, 1 << 41), (0, 8, 0), (1, ROOM, ROOM), (1 << 62, 8, ROOM), (0, 8, 1 << 63)],
)
def test_places_that_cannot_be_are_errors(at: int, size: int, room: int) -> None:
    with pytest.raises(DataError, match="a worker says"):
        SharedReader().body(PLACE.pack(b"x" * 16, os.getpid(), 1, at, size, room))
    with pytest.raises(DataError, match="a worker says in 3 bytes"):
        SharedReader().body(b"abc")
