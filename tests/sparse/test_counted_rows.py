"""Rung 1 (values): what is kept beside lengths is of these lengths alone, as they were."""

from __future__ import annotations

import torch

from recd_plugins.sparse.rows.counted import CountedRows, counted_rows, note_counted


def test_what_was_counted_holds_until_lengths_change() -> None:
    lengths = torch.tensor([2, 0, 3])
    assert counted_rows(lengths) is None
    note_counted(lengths, CountedRows(longest=3, filled=2))
    assert counted_rows(lengths) == (3, 2)
    assert counted_rows(lengths[:2]) is None
    lengths[1] = 5
    assert counted_rows(lengths) is None
