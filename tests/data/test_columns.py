"""Rung 1 and 2 (values, properties): columns in pools give what joining them first gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.data.columns import Columns, JoinedColumns, PooledColumns
from recd_plugins.errors import DataError
from recd_plugins.sparse.jagged import Jagged, WeightedJagged
from recd_plugins.sparse.rows.pool import Picked
from recd_plugins.testing.batches import from_lists, to_lists

Lists = dict[str, list[list[int]]]


def pooled(lists: Lists, sizes: list[int]) -> PooledColumns:
    """The samples in parts of `sizes`, each with a pool of its own."""
    parts = []
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        columns = []
        for rows in lists.values():
            some = rows[start : start + size]
            values = torch.tensor([id_ for row in some for id_ in row], dtype=torch.int64)
            columns.append([Jagged(values, torch.tensor([len(row) for row in some]))])
        parts.append(Picked.of(columns, np.arange(size)))
    return PooledColumns(list(lists), parts)


BATCH: Lists = {
    "b": [[3, 4, 5], [4, 5, 6], [3, 4, 5]],
    "c": [[7, 8], [7, 8], [10]],
    "d": [[9], [9], [11]],
}


@pytest.mark.parametrize("sizes", [[3], [1, 2], [1, 1, 1]])
def test_the_papers_example(sizes: list[int]) -> None:
    columns = pooled(BATCH, sizes)
    assert columns.keys == ["b", "c", "d"]
    assert to_lists(columns.to_kjt()) == BATCH
    ikjt = columns.to_ikjt([["b"], ["c", "d"]]).validate()
    assert ikjt.inverse_lookup.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert ikjt.unique_counts == (2, 2)
    assert to_lists(ikjt.kjt) == {
        "b": [[3, 4, 5], [4, 5, 6]],
        "c": [[7, 8], [10]],
        "d": [[9], [11]],
    }


@pytest.mark.parametrize(
    "make", [lambda: JoinedColumns(from_lists(BATCH)), lambda: pooled(BATCH, [2, 1])]
)
def test_groups_of_what_there_is_not(make: Callable[[], Columns]) -> None:
    columns = make()
    with pytest.raises(DataError, match="there is no feature 'bb'; did you mean 'b'"):
        columns.to_ikjt([["bb"]])


rows = st.lists(st.lists(st.integers(0, 2), max_size=2), min_size=6, max_size=6)


@given(
    lists=st.dictionaries(st.sampled_from("abc"), rows, min_size=1),
    sizes=st.sampled_from([[6], [1, 5], [3, 3], [2, 1, 3]]),
    data=st.data(),
)
def test_pooled_columns_are_as_joined_ones(lists: Lists, sizes: list[int], data) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(lists)), min_size=1, unique=True))
    cut = data.draw(st.integers(0, len(keys)))
    groups = [group for group in (keys[:cut], keys[cut:]) if group]
    joined = JoinedColumns(from_lists(lists))
    found, expected = pooled(lists, sizes).to_ikjt(groups), joined.to_ikjt(groups)
    assert found.groups == expected.groups
    assert found.unique_counts == expected.unique_counts
    assert torch.equal(found.inverse_lookup, expected.inverse_lookup)
    for part in ("values", "lengths"):
        assert getattr(found.kjt, part)().tolist() == getattr(expected.kjt, part)().tolist()
    assert found.kjt.keys() == expected.kjt.keys()
    assert to_lists(pooled(lists, sizes).to_kjt()) == lists


def test_samples_of_a_scored_feature_differ_where_their_weights_do() -> None:
    """Of three samples with the same ids two weigh alike; the feature beside has no weights."""
    ids, lengths = torch.tensor([3, 4] * 3), torch.tensor([2, 2, 2])
    weights = torch.tensor([0.5, 1.0, 0.5, 2.0, 0.5, 1.0])
    columns = [[WeightedJagged(ids, lengths, weights)], [Jagged(ids, lengths)]]
    beside = PooledColumns(["scored", "plain"], [Picked.of(columns, np.arange(3))])
    ikjt = beside.to_ikjt([["scored"], ["plain"]]).validate()
    assert ikjt.unique_counts == (2, 1)
    assert ikjt.inverse_lookup.tolist() == [[0, 1, 0], [0, 0, 0]]
    expected = JoinedColumns(beside.to_kjt()).to_ikjt([["scored"], ["plain"]])
    for found in (ikjt, expected):
        assert found.kjt["scored"].weights().tolist() == [0.5, 1.0, 0.5, 2.0]
        assert found.kjt["plain"].weights().tolist() == [1.0, 1.0]
    assert torch.equal(ikjt.to_kjt().weights(), beside.to_kjt().weights())
    assert beside.to_ikjt([["plain"]]).kjt.weights_or_none() is None
