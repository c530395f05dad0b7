"""Rung 1 and 2 (values, properties): jagged rows cut and reordered."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.sparse import jagged
from recd_plugins.sparse.jagged import Jagged, WeightedJagged, slice_rows

Lists = list[list[int]]

columns = st.lists(st.lists(st.integers(-9, 9), max_size=3), min_size=1, max_size=8)


def column(lists: Lists, lengths=torch.int32) -> Jagged:
    return Jagged(
        torch.tensor([value for row in lists for value in row], dtype=torch.int64),
        torch.tensor([len(row) for row in lists], dtype=lengths),
    )


def lists_of(one: Jagged) -> Lists:
    return [part.tolist() for part in one.values.split(one.lengths.tolist())]


def kjt(columns: dict[str, Lists]) -> KeyedJaggedTensor:
    parts = [column(lists) for lists in columns.values()]
    lengths = torch.cat([part.lengths for part in parts])
    return KeyedJaggedTensor(
        keys=list(columns),
        values=torch.cat([part.values for part in parts]),
        lengths=lengths,
        stride=lengths.numel() // len(columns),
    )


def select(one: Jagged, rows: torch.Tensor) -> Jagged:
    selected = WeightedJagged(*one).select(rows)
    return Jagged(selected.values, selected.lengths)


def rows_of(features) -> dict[str, Lists]:
    """By hand, since TorchRec's own to_dict fails on a KJT of no rows."""
    parts, keys = iter(features.values().split(features.lengths().tolist())), features.keys()
    return {key: [next(parts).tolist() for _ in range(features.stride())] for key in keys}


@st.composite
def tables(draw) -> dict[str, Lists]:
    """1 to 3 features of equally many rows."""
    num_rows = draw(st.integers(0, 8))
    lists = st.lists(st.lists(st.integers(-9, 9), max_size=3), min_size=num_rows, max_size=num_rows)
    return {name: draw(lists) for name in "abc"[: draw(st.integers(1, 3))]}


@given(lists=columns, data=st.data())
def test_rows_of_a_feature_selected(lists, data):
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=12))
    wide = data.draw(st.booleans())
    selected = select(
        column(lists, lengths=torch.int64 if wide else torch.int32),
        torch.tensor(rows, dtype=torch.int64),
    )
    assert lists_of(selected) == [lists[row] for row in rows]


def test_select_copies():
    whole = column([[1], [2, 3], [4]])
    select(whole, torch.tensor([1, 1])).values.zero_()
    assert lists_of(whole) == [[1], [2, 3], [4]]


def test_more_ids_than_int32_counts_are_added_up_in_int64(monkeypatch):
    monkeypatch.setattr(jagged, "MAX_INT32", 2)
    selected = select(column([[1], [2, 3]]), torch.tensor([1, 0]))
    assert selected.lengths.dtype == torch.int64
    assert lists_of(selected) == [[2, 3], [1]]


@given(table=tables(), data=st.data())
def test_slices_are_slices(table, data):
    num_rows = len(table["a"])
    start = data.draw(st.integers(0, num_rows))
    stop = data.draw(st.integers(start, num_rows))
    part = slice_rows(kjt(table), start, stop)
    assert part.stride() == stop - start
    assert rows_of(part) == {name: lists[start:stop] for name, lists in table.items()}
