"""Rung 1 (values): rows in slots, wherever they lie, and their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from recd_plugins.sparse.rows.slot_sizes import SLOT_BYTES
from recd_plugins.sparse.rows.slots import numbers_in, slots_of


@pytest.mark.parametrize("step", [1, 2**20, 2**32, 2**40 + 1])
def test_rows_at_equal_distances_find_slots(step: int) -> None:
    """Ids are often such, as those that begin with a number of their kind."""
    rows = np.arange(7, 20_000) * step
    slots = slots_of(rows)
    assert slots.nbytes < 1.01 * SLOT_BYTES * len(rows)
    assert set(slots.tolist()) == set(rows.tolist())
    numbers = numbers_in(slots, rows)
    taken = np.flatnonzero(rows[numbers] == slots.astype(np.int64))
    assert len(taken) == len(slots)  # free slots repeat the first row, and its number


def test_few_rows_find_slots_too() -> None:
    for rows in ([0], [2**63 - 1], [3, 5], list(range(9))):
        assert set(slots_of(np.array(rows)).tolist()) == set(rows)
