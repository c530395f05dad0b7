"""Rung 1 and 2 (values, properties): which samples of a window go into which batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recd_scars.hot_batches.batch_window import (
    hot_places,
    mixed,
    most_hot,
    share_to_come,
)


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[bool], list[int]]:
    """Which samples are hot, and the sizes of the batches: of any size, often all of one."""
    size = draw(st.integers(1, 5))
    even = st.lists(st.just(size), min_size=1, max_size=6)
    sizes = draw(st.one_of(even, st.lists(st.integers(0, 5), min_size=1, max_size=6)))
    kinds = st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes))
    shares = st.one_of(kinds, st.just([False] * sum(sizes)), st.just([True] * sum(sizes)))
    return draw(shares), sizes


@given(windows(), st.integers(0, 6))
def test_every_sample_is_in_one_batch_and_hot_batches_are_hot(
    window: tuple[list[bool], list[int]], least: int
) -> None:
    """Whatever the other ranks can form: `least` is what the least able one can."""
    hot, sizes = np.array(window[0], np.bool_), window[1]
    num_hot = min(least, most_hot(int(hot.sum()), sizes))
    batches = mixed(hot, sizes, num_hot)
    assert [len(batch) for batch in batches] == sizes
    assert sorted(np.concatenate(batches)) == list(range(len(hot)))
    places = hot_places(len(sizes), num_hot)
    assert sum(places) == num_hot
    for batch, place in zip(batches, places, strict=True):
        assert (np.diff(batch) > 0).all()
        assert hot[batch].all() or not place


@given(windows())
def test_ranks_form_as_many_as_they_can(window: tuple[list[bool], list[int]]) -> None:
    hot, sizes = window
    most = most_hot(sum(hot), sizes)
    if all(hot):
        assert most == len(sizes)
    if len(set(sizes)) == 1 and sizes[0]:
        assert most == sum(hot) // sizes[0]
    if not any(hot) and all(sizes):
        assert most == 0


def test_hot_batches_are_foretold_as_windows_fill_them() -> None:
    assert share_to_come([10, 10], [10, 10], 16, 2) == 1
    assert share_to_come([0, 0], [10, 10], 16, 2) == 0
    # 6 of each 10: a window of 16 has 96 hot samples, of which 9 batches are full.
    assert share_to_come([6] * 4, [10] * 4, 16, 1) == 9 / 16
    assert share_to_come([6] * 4, [10] * 4, 1, 1) == 0  # never 10 in one batch
    uneven = share_to_come([0, 10], [10, 10], 8, 1)
    assert uneven == pytest.approx(0.5, abs=0.05)
    # Of two ranks the fewer: E max of Bin(8, 1/2) is 4.80 of 8, E min 3.20.
    assert share_to_come([0, 10], [10, 10], 8, 2) == pytest.approx(3.2 / 8, abs=0.04)


@pytest.mark.parametrize(
    ("count", "num_hot", "places"),
    [
        (4, 0, "----"),
        (4, 1, "---h"),
        (4, 2, "-h-h"),
        (5, 3, "-h-hh"),
        (4, 4, "hhhh"),
    ],
)
def test_hot_batches_are_spread(count: int, num_hot: int, places: str) -> None:
    assert "".join("h" if hot else "-" for hot in hot_places(count, num_hot)) == places


def test_hot_samples_that_no_hot_batch_takes_ride_in_order() -> None:
    hot = np.array([1, 0, 1, 1, 0, 1, 0, 1, 0], np.bool_)
    found: Sequence[list[int]] = [batch.tolist() for batch in mixed(hot, [3, 3, 3], 1)]
    assert found == [[1, 4, 5], [6, 7, 8], [0, 2, 3]]
