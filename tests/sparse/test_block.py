"""Rung 1 and 2 (values, properties): rows in another order, cut into blocks, and joined."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.sparse.jagged import Jagged, slice_rows
from recd_plugins.sparse.rows.blocks import RowBlock, gather_blocks, join_blocks
from recd_plugins.testing.batches import to_lists

Rows = list[list[int]]


def jagged(rows: Rows, dtype: torch.dtype = torch.int64) -> Jagged:
    values = torch.tensor([id_ for row in rows for id_ in row], dtype=dtype)
    return Jagged(values, torch.tensor([len(row) for row in rows]))


def lists(block: RowBlock) -> list[Rows]:
    """The rows of each feature."""
    keys = [str(feature) for feature in range(len(block.lengths))]
    found = to_lists(block.kjt(keys))
    return [found[key] for key in keys]


A: Rows = [[1], [], [2, 3], [4, 5, 6]]
B: Rows = [[], [7], [8], []]


def test_rows_in_order_cut_and_joined_again() -> None:
    columns = [[jagged(A[:3]), jagged(A[3:])], [jagged(B[:1], torch.int32), jagged(B[1:])]]
    order = [3, 0, 2, 2, 1]
    with ThreadPoolExecutor(2) as pool:
        first, second = gather_blocks(columns, np.array(order), [2, 3], pool.map)
    assert lists(first) == [[A[3], A[0]], [B[3], B[0]]]
    assert lists(second) == [[A[2], A[2], A[1]], [B[2], B[2], B[1]]]
    assert lists(join_blocks([second, first])) == [
        [rows[i] for i in (2, 2, 1, 3, 0)] for rows in (A, B)
    ]
    assert join_blocks([first]) is first


def test_a_block_as_a_kjt() -> None:
    (block,) = gather_blocks([[jagged(A)], [jagged(B)]], np.arange(4), [4])
    features = block.kjt(["a", "b"])
    assert to_lists(features) == {"a": A, "b": B}
    assert features.values().dtype == torch.int64
    assert features.lengths().dtype == torch.int32
    assert features.values().data_ptr() == block.values.ctypes.data


def test_one_row_lies_in_memory_of_its_own() -> None:
    """Collectives refuse a view that skips numbers."""
    first, last = gather_blocks([[jagged(A)], [jagged(B)]], np.arange(4), [3, 1])
    for features in (last.kjt(["a", "b"]), slice_rows(first.kjt(["a", "b"]), 1, 2)):
        assert features.lengths().is_contiguous()
    assert lists(last) == [[A[3]], [B[3]]]


def test_without_features_there_are_still_samples() -> None:
    made = gather_blocks([], np.arange(3), [1, 2])
    assert [block.kjt([]).stride() for block in made] == [1, 2]
    assert join_blocks(made).kjt([]).stride() == 3


@given(
    rows=st.lists(
        st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=5, max_size=5), max_size=3
    ),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    cuts=st.sets(st.integers(1, 11)),
    parts=st.integers(1, 4),
)
def test_any_order_and_any_cuts(rows, order, cuts, parts) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(order)), len(order)]
    columns = [[jagged(feature[:parts]), jagged(feature[parts:])] for feature in rows]
    made = gather_blocks(columns, np.array(order), np.diff(bounds).tolist())
    expected = [[feature[row] for row in order] for feature in rows]
    for block, start, stop in zip(made, bounds, bounds[1:], strict=False):
        assert lists(block) == [feature[start:stop] for feature in expected]
    assert lists(join_blocks(made)) == expected
