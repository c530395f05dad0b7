"""Value tests: a peak is seen though it is past, and later peaks do not know earlier ones."""

from __future__ import annotations

import torch

from recd_plugins.trainer.memory import PeakMemory

CPU = torch.device("cpu")
BIG = 64 * 2**20
SLACK = 8 * 2**20
"""What else a process may take or give back meanwhile; the kernel counts pages in batches."""


def touch(size: int) -> int:
    """Hold so many bytes, and let them go."""
    return int(torch.ones(size, dtype=torch.uint8)[-1])


def test_what_was_held_shows_after_it_is_gone() -> None:
    touch(BIG)  # the first time also loads code
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
