"""Ladder: a small table is judged, whose truth is known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from benchmarks.honesty.coverage import figures, judge
from benchmarks.honesty.profile_cost import profile_cost
from benchmarks.honesty.tables import Generated


def test_a_drifting_table_is_judged_by_the_rest_of_its_epoch(tmp_path: Path) -> None:
    table = Generated(
        name="small",
        exponent=1.05,
        samples_per_session=4,
        swapped=0.02,
        samples=16_384,
        rows=4_000,
        shuffled=False,
        batch_size=128,
    )
    stack = table.stack(tmp_path)
    (counted,) = table.counted(stack).values()
    lookups = table.lookups(stack, counted)
    assert stack.prepare().train.num_rows == table.samples
    assert len(lookups) == 4_000
    assert 6 * table.samples < lookups.sum() < 8 * table.samples  # histories of 6 ids, and an item
    found = judge(table, tmp_path)
    assert len(found) >= 3
    assert all(one.own > one.forecast for one in found)  # what was picked by its luck
    assert np.median([one.error for one in found]) < 2
    rows = {one.name: one for one in figures(found)}
    json.dumps([dataclasses.asdict(one) | {"met": one.met} for one in rows.values()])
    assert "coverage, forecast against served, drifting: worst" in rows
    assert rows["coverage, forecast against served, drifting: median"].met


def test_a_profile_is_timed_beside_an_epoch(tmp_path: Path) -> None:
    (cost,) = profile_cost(tmp_path, 8_192)
    assert cost.met
    assert "were counted" in cost.note
