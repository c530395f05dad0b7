"""Property tests: flat columns, lists and bands against plain loops."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recd_dlrm.datasets.flat_columns import (
    band_begins,
    band_starts,
    id_lists,
    offsets_of,
    ranges,
    single_ids,
    windows,
)
from recd_plugins.data.schema import IDS


@given(st.lists(st.lists(st.integers(0, 2**40), max_size=4), max_size=8))
def test_lists_come_out_as_they_went_in(lists: list[list[int]]) -> None:
    ids = np.array([i for each in lists for i in each], np.int64)
    offsets = offsets_of(np.array([len(each) for each in lists], np.int64))
    column = id_lists(ids, offsets)
    assert column.type == IDS
    assert column.to_pylist() == lists
    assert single_ids(ids).to_pylist() == [[i] for i in ids.tolist()]


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), max_size=8))
def test_ranges_lie_one_after_the_other(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(pairs, np.int64).reshape(-1, 2).T
    expected = [i for start, length in pairs for i in range(start, start + length)]
    assert ranges(starts, lengths).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=20))
def test_runs_end_where_any_key_changes(rows: list[tuple[int, int]]) -> None:
    one, other = np.array(rows, np.int64).reshape(-1, 2).T
    starts = [
        next(iter(group))[0] for _, group in groupby(enumerate(rows), key=lambda pair: pair[1])
    ]
    assert np.flatnonzero(band_begins(one, other)).tolist() == starts
    found = band_starts(one, other).tolist()
    assert found == [max(s for s in starts if s <= row) for row in range(len(rows))]


def test_a_window_keeps_the_last_ids() -> None:
    ids = np.array([5, 6, 7, 8])
    starts, ends = np.array([0, 0, 1, 3]), np.array([0, 2, 4, 4])
    assert windows(ids, starts, ends, 2).to_pylist() == [[], [5, 6], [7, 8], [8]]
