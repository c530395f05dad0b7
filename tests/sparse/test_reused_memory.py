"""Rung 1 (values): memory is handed out anew once nobody holds it, and never before."""

from __future__ import annotations

import numpy as np
import torch

from recd_plugins.sparse.rows.reused import SMALL, ReusedMemory

COUNT = SMALL // 8
"""Numbers of 8 bytes that are just enough for a block."""


def test_a_block_comes_again_once_nobody_holds_it() -> None:
    memory = ReusedMemory()
    first = memory.empty(COUNT, np.int64)
    place = first.ctypes.data
    second = memory.empty(COUNT, np.int64)
    assert second.ctypes.data != place
    del first
    third = memory.empty(COUNT + COUNT // 10, np.int64)
    assert third.ctypes.data == place  # as much as an eighth more fits
    assert len(third) == COUNT + COUNT // 10
    assert third.dtype == np.int64


def test_who_holds_a_tensor_a_part_or_a_view_holds_the_block() -> None:
    memory = ReusedMemory()

    def place_of_next() -> int:
        return memory.empty(COUNT, np.int64).ctypes.data

    whole = memory.empty(COUNT, np.int64)
    place = whole.ctypes.data
    held: list[object] = [torch.from_numpy(whole)[3:5].view(-1)]
    del whole
    assert place_of_next() != place
    held[0] = held[0].numpy()[:1]  # type: ignore[attr-defined]
    assert place_of_next() != place
    held[0] = memoryview(held[0])[:0]  # type: ignore[arg-type]
    assert place_of_next() != place
    held.clear()
    assert place in {place_of_next(), place_of_next()}


def test_what_is_smaller_than_asked_makes_room_for_larger() -> None:
    memory = ReusedMemory()
    for times in (1, 3, 3, 1, 3):
        array = memory.empty(times * COUNT, np.int64)
        array[:] = times
        place = array.ctypes.data
        del array
    assert memory.empty(2 * COUNT, np.int64).ctypes.data == place
    assert len(memory._blocks) == 1  # each that was too small went


def test_little_is_memory_of_its_own() -> None:
    memory = ReusedMemory()
    assert memory.empty(COUNT - 1, np.int64).base is None
    assert not len(memory.empty(0, np.int64))
    assert not memory._blocks
