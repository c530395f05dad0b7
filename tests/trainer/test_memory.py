"""Value tests: a peak is seen though it is past, and later peaks do not know earlier ones."""

from __future__ import annotations

import mmap

import torch

from recd_plugins.trainer.measure.memory import PeakMemory

CPU = torch.device("cpu")
BIG = 64 * 2**20
SLACK = 8 * 2**20
"""What else a process may take or give back meanwhile; the kernel counts pages in batches."""


def touch(size: int) -> int:
    """Hold so many bytes, and let them go: pages of their own, for an allocator might hand out
    some that an earlier test has left it."""
    with mmap.mmap(-1, size) as held:
        for page in range(0, size, mmap.PAGESIZE):
            held[page] = 1
        return held[size - mmap.PAGESIZE]


def test_what_was_held_shows_after_it_is_gone() -> None:
    memory = PeakMemory(CPU)
    assert memory.above() < SLACK
    touch(BIG)
    assert BIG - SLACK < memory.above() < BIG + SLACK
    assert memory.peak() == memory.level + memory.above()


def test_a_later_peak_forgets_an_earlier_one() -> None:
    touch(2 * BIG)
    memory = PeakMemory(CPU)
    touch(BIG)
    assert memory.above() < BIG + SLACK
