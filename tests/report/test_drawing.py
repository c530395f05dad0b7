"""Value tests: numbers in words, scales, places; no drawing leaves its frame."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.report.drawing import Plot, Scale, apart, number, quantity, share

FINITE = st.floats(-1e12, 1e12).filter(lambda value: value == 0 or abs(value) > 1e-9)


def test_numbers_are_as_short_as_what_counts() -> None:
    assert [number(value) for value in (0, 120.0, 0.012345, 1234.5678, 12.345)] == [
        *("0", "120", "0.0123", "1,235", "12.3")
    ]
    assert number(None) == number(math.nan) == "\N{EN DASH}"
    assert [quantity(value) for value in (999, 1_234_567, 45_600, 2e12)] == [
        *("999 B", "1.23 MB", "45.6 kB", "2 TB")
    ]
    assert share(0.1234) == "12.3%"


@given(st.lists(FINITE, min_size=1, max_size=8), st.booleans())
def test_a_scale_has_all_of_its_values_and_few_round_ticks(values: list[float], zero: bool) -> None:
    scale = Scale.over(values, zero=zero)
    assert all(-1e-9 <= scale.at(value) <= 1 + 1e-9 for value in values)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 6
    assert all(-1e-6 <= scale.at(value) <= 1 + 1e-6 for value, _ in ticks)
    assert len({words for _, words in ticks}) == len(ticks)


def test_a_scale_of_ratios_has_powers_of_ten() -> None:
    scale = Scale(low=1, high=3000, log=True)
    assert [words for _, words in scale.ticks()] == ["1", "10", "100", "1,000"]
    assert scale.at(10) == pytest.approx(math.log(10) / math.log(3000))


@given(st.lists(st.floats(0, 150), max_size=6))
def test_names_of_ends_are_apart(wanted: list[float]) -> None:
    places = apart(sorted(wanted), 13, 194)
    assert all(b - a >= 13 - 1e-9 for a, b in pairwise(places))
    assert all(place <= 194 for place in places)


def test_next_to_nothing_is_not_drawn_as_a_difference() -> None:
    scale = Scale.over([0.69310, 0.69311])
    assert scale.high - scale.low >= 0.02 * 0.69
    plot = Plot(x=Scale(low=0, high=1), y=scale)
    plot.line([(0, 0.69310), (1, 0.69311)], "blue", end="0.693")
    assert plot.svg().count("<polyline") == 1
