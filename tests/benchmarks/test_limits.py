"""Rung 1 (values): the limits of figures, by hand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from benchmarks.harness import Figure, Limit
from benchmarks.limits import entropy, least_step, link_seconds, without_repeats
from benchmarks.suites import SUITES

STEP = {"pooling": 800.0, "lookup": 100.0, "exchange": 50.0, "exposed": 50.0, "dense": 200.0}


@pytest.mark.parametrize(
    ("deduplicated", "factor", "least"),
    [
        (1.0, 1.0, 1.0),
        (0.0, 8.0, 500 / 1200),  # pooling is of deduplicated features alone
        (1.0, 8.0, (1000 / 8 + 200) / 1200),
        (0.75, 8.0, (100 + 200 * (1 / 4 + 3 / 32) + 200) / 1200),
    ],
)
def test_a_step_does_its_deduplicated_work_once(
    deduplicated: float, factor: float, least: float
) -> None:
    assert least_step(STEP, deduplicated, factor) == pytest.approx(least)


def test_a_share_is_1_at_the_limit_from_either_side() -> None:
    limit = Limit(value=8.0, of="something")
    gain = Figure(name="gain", value=6.0, unit="x faster", limit=limit)
    time = Figure(name="time", value=16.0, unit="ns", limit=limit, at_most=True)
    assert (gain.share, time.share) == (0.75, 0.5)
    assert Figure(name="free", value=6.0, unit="x").share is None
    assert Figure(name="none", value=0.0, unit="%", limit=limit).share is None


def test_links_and_bits() -> None:
    assert link_seconds(25e6, 200) == 1.0
    assert entropy(0.5) == 1.0
    assert entropy(1 / 12) == pytest.approx(0.4138, abs=1e-4)
    assert entropy(0) == entropy(1) == 0.0


def test_values_that_repeat_are_left_out() -> None:
    assert without_repeats(pa.array([1, 1, 2, 1, 1])).to_pylist() == [1, 2, 1]
    rows = [[1, 2], [1, 2], [1, 3], [], [], [3], [1, 2], [1, 2], [1, 2, 2]]
    left = [[1, 2], [1, 3], [], [3], [1, 2], [1, 2, 2]]
    assert without_repeats(pa.array(rows)).to_pylist() == left
    sliced = pa.array([[9], *rows], pa.list_(pa.int64())).slice(1)
    assert without_repeats(sliced).to_pylist() == left
    assert without_repeats(pa.array([[4]])).to_pylist() == [[4]]


def test_suites_with_limits_are_named() -> None:
    assert {suite.name for suite in SUITES if suite.limits} >= {"recd_train", "recd_data", "reader"}
