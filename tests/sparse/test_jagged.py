"""Rung 1 and 2 (values, properties): rows of KeyedJaggedTensors joined, cut and reordered."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.errors import DataError
from recd_plugins.sparse import jagged
from recd_plugins.sparse.jagged import (
    Jagged,
    Scratch,
    concat_rows,
    select_rows,
    slice_rows,
    split_rows,
    to_kjt,
)

Lists = list[list[int]]


def column(lists: Lists, dtype: torch.dtype = torch.int64) -> Jagged:
    values = torch.tensor([value for row in lists for value in row], dtype=dtype)
    return Jagged(values, torch.tensor([len(row) for row in lists], dtype=torch.int32))


def kjt(columns: dict[str, Lists]):
    return to_kjt({name: [column(lists)] for name, lists in columns.items()})


def rows_of(features) -> dict[str, Lists]:
    """By hand, since TorchRec's own to_dict fails on a KJT of no rows."""
    parts, keys = iter(features.values().split(features.lengths().tolist())), features.keys()
    return {key: [next(parts).tolist() for _ in range(features.stride())] for key in keys}


@st.composite
def tables(draw, min_rows: int = 0) -> dict[str, Lists]:
    """1 to 3 features of equally many rows."""
    num_rows = draw(st.integers(min_rows, 8))
    lists = st.lists(st.lists(st.integers(-9, 9), max_size=3), min_size=num_rows, max_size=num_rows)
    return {name: draw(lists) for name in "abc"[: draw(st.integers(1, 3))]}


def test_parts_of_a_feature_follow_one_another():
    features = to_kjt({"a": [column([[1], []]), column([[2, 3]])], "b": [column([[], [4], []])]})
    assert rows_of(features) == {"a": [[1], [], [2, 3]], "b": [[], [4], []]}
    assert features.stride() == 3
    assert features.values().dtype == torch.int64
    assert features.lengths().dtype == torch.int32


def test_int32_ids_and_int64_lengths_are_taken():
    parts = [column([[1]], torch.int32), Jagged(torch.tensor([2]), torch.tensor([1]))]
    assert rows_of(to_kjt({"a": parts})) == {"a": [[1], [2]]}


def test_no_features():
    features = to_kjt({})
    assert features.keys() == []
    assert features.values().numel() == 0


def test_scratch_is_used_again():
    scratch = Scratch()
    first = to_kjt({"a": [column([[1, 2, 3]])]}, scratch)
    second = to_kjt({"a": [column([[4], [5]])]}, scratch)
    assert second.values().data_ptr() == first.values().data_ptr()
    assert rows_of(second) == {"a": [[4], [5]]}
    assert rows_of(to_kjt({"a": [column([[6] * 100])]}, scratch)) == {"a": [[6] * 100]}


def test_too_many_ids_for_one_kjt(monkeypatch):
    monkeypatch.setattr(jagged, "MAX_VALUES", 2)
    with pytest.raises(DataError, match=r"3 ids are too many .*reader\.window"):
        to_kjt({"a": [column([[1, 2, 3]])]})


@given(table=tables(), data=st.data())
def test_slices_are_slices(table, data):
    num_rows = len(table["a"])
    start = data.draw(st.integers(0, num_rows))
    stop = data.draw(st.integers(start, num_rows))
    part = slice_rows(kjt(table), start, stop)
    assert part.stride() == stop - start
    assert rows_of(part) == {name: lists[start:stop] for name, lists in table.items()}


@given(table=tables(min_rows=1), data=st.data())
def test_selected_rows_in_any_order_with_repeats(table, data):
    rows = data.draw(st.lists(st.integers(0, len(table["a"]) - 1), max_size=12))
    selected = select_rows(kjt(table), torch.tensor(rows, dtype=torch.int64))
    assert selected.stride() == len(rows)
    assert rows_of(selected) == {name: [lists[i] for i in rows] for name, lists in table.items()}


@given(table=tables(min_rows=1), group_bytes=st.sampled_from([0, 40, 1 << 20]), data=st.data())
def test_split_then_concat_is_select(table, group_bytes, data):
    rows = torch.tensor(
        data.draw(st.lists(st.integers(0, len(table["a"]) - 1), min_size=1, max_size=12))
    )
    borders = sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=4)) | {0, len(rows)})
    sizes = [stop - start for start, stop in pairwise(borders)]
    parts = list(split_rows(kjt(table), rows, sizes, group_bytes=group_bytes))
    assert [part.stride() for part in parts] == sizes
    assert rows_of(concat_rows(parts)) == rows_of(select_rows(kjt(table), rows))


def test_parts_of_one_group_share_memory_and_others_do_not():
    features, rows = kjt({"a": [[1], [2], [3], [4]]}), torch.tensor([3, 2, 1, 0])

    def storages(group_bytes: int) -> int:
        parts = list(split_rows(features, rows, [1, 1, 2], group_bytes=group_bytes))
        return len({part.values().untyped_storage().data_ptr() for part in parts})

    assert [storages(size) for size in (0, 16, 1 << 20)] == [3, 2, 1]


def test_a_gather_leaves_its_source_alone():
    features = kjt({"a": [[1], [2, 3]]})
    select_rows(features, torch.tensor([1, 1])).values().zero_()
    assert rows_of(features) == {"a": [[1], [2, 3]]}
