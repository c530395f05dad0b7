"""Rung 1 and 2 (values, properties): a pool's rows, samples distinguished by their numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.sparse.jagged import Jagged, WeightedJagged, as_bits
from recd_plugins.sparse.rows.blocks import gather_blocks, join_blocks
from recd_plugins.sparse.rows.pool import FEWEST_SLOTS, Picked, RowPool, join_picked
from recd_plugins.sparse.rows.unique import hash_row
from recd_plugins.sparse.rows.unique_samples import unique_samples

INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.lists(st.one_of(st.integers(0, 2), INT64), max_size=3), max_size=12)


def jagged(rows: list[list[int]], dtype: torch.dtype = torch.int64) -> Jagged:
    values = torch.tensor([id_ for row in rows for id_ in row], dtype=dtype)
    return Jagged(values, torch.tensor([len(row) for row in rows], dtype=torch.int32))


def pool_for(*features: list[list[int]]) -> RowPool:
    return RowPool(sum(len(row) for rows in features for row in rows), sum(map(len, features)))


def held(pool: RowPool, number: int) -> list[int]:
    return pool.values[pool.offsets[number] : pool.offsets[number + 1]].tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_row_is_kept_once_and_the_empty_one_is_there_before(dtype: torch.dtype) -> None:
    """The paper's b = [3,4,5], [4,5,6], [3,4,5], and an empty row."""
    rows = [[3, 4, 5], [4, 5, 6], [3, 4, 5], []]
    pool = pool_for(rows)
    assert pool.add([jagged(rows, dtype)]).tolist() == [1, 2, 1, 0]
    assert pool.num_rows == 3
    assert pool.values[:6].tolist() == [3, 4, 5, 4, 5, 6]


def test_features_do_not_share_their_rows() -> None:
    pool = pool_for([[1], [2]], [[2], [1], [2]])
    assert pool.add([jagged([[1], [2]])]).tolist() == [1, 2]
    assert pool.add([jagged([[2], [1]]), jagged([[2]])]).tolist() == [3, 4, 3]


@given(rows=ROWS, cut=st.integers(0, 12), before=ROWS)
def test_equal_rows_have_one_number_whatever_parts_they_come_in(rows, cut, before) -> None:
    pool = pool_for(before, rows)
    pool.add([jagged(before)])
    numbers = pool.add([jagged(rows[:cut]), jagged(rows[cut:])]).tolist()
    assert [held(pool, number) for number in numbers] == rows
    for row, number in zip(rows, numbers, strict=True):
        assert [other == number for other in numbers] == [other == row for other in rows]


@pytest.mark.parametrize("longest", [1, 3, 20])
def test_a_table_of_rows_grows_with_them(longest: int) -> None:
    """Some 2,500 different rows among 6,000, in parts: more than a table begins with."""
    draw = random.Random(longest)
    drawn = [[draw.randrange(2**40)] * draw.randint(1, longest) for _ in range(3000)]
    rows = [draw.choice(drawn) for _ in range(6000)]
    pool = pool_for([[7]], rows)
    pool.add([jagged([[7]])])
    numbers = pool.add([jagged(rows[:100]), jagged(rows[100:3000]), jagged(rows[3000:])]).tolist()
    assert [held(pool, number) for number in numbers] == rows
    assert len({*numbers}) == len({*map(tuple, rows)}) == pool.num_rows - 2 > 2 * FEWEST_SLOTS


def test_rows_of_one_hash_stay_different() -> None:
    """h = mix(n + Σ_i mix(id_i xor i·STEP)) of two ids stays as it is where its terms change
    places: [a, b] and [b xor STEP, a xor STEP]."""
    step = 0x9E3779B97F4A7C15 - 2**64
    rows = [[5, 9], [9 ^ step, 5 ^ step]] * 2
    assert hash_row(np.array(rows[0])) == hash_row(np.array(rows[1]))
    assert pool_for(rows).add([jagged(rows)]).tolist() == [1, 2, 1, 2]


def test_pools_beyond_int32_count_in_int64() -> None:
    assert RowPool(0, 2**31 - 2).numbers is np.int32
    assert RowPool(0, 2**31 - 1).numbers is np.int64


def test_samples_are_one_where_all_rows_of_the_group_agree() -> None:
    """The paper's group (c, d): c = [7,8],[7,8],[10], d = [9],[9],[11]; and each alone."""
    rows = np.array([[1, 1, 2], [3, 3, 4], [5, 6, 5]])
    unique = unique_samples(rows, [(1, 0), (2,), (0, 2)])
    assert unique.inverse_lookup.tolist() == [[0, 0, 1], [0, 1, 0], [0, 1, 2]]
    assert unique.counts.tolist() == [2, 2, 3]
    assert unique.rows.tolist() == [[3, 4, 0], [1, 2, 0], [5, 6, 0], [1, 1, 2], [5, 6, 5]]


@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=9, max_size=9), min_size=1, max_size=4),
    data=st.data(),
)
def test_unique_samples_are_those_of_a_dictionary(rows, data) -> None:
    features = st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=4, unique=True)
    groups = data.draw(st.lists(features, min_size=1, max_size=3))
    # A part of a wider matrix, as a batch is of its window.
    unique = unique_samples(np.array(rows, np.int32)[:, 1:8], groups)
    picked = iter(unique.rows.tolist())
    for lookup, count, group in zip(unique.inverse_lookup, unique.counts, groups, strict=True):
        samples = list(zip(*(rows[feature][1:8] for feature in group), strict=True))
        first = list(dict.fromkeys(samples))
        assert count == len(first)
        assert [first[index] for index in lookup] == samples
        for column in zip(*first, strict=True):
            kept = next(picked)
            assert kept[:count] == list(column)
            assert set(kept[count:]) <= {0}


@given(features=st.lists(ROWS.filter(bool), min_size=1, max_size=3), data=st.data())
def test_joined_are_the_rows_picked(features, data) -> None:
    """Of two pools, as of two windows: feature after feature, the first pool's rows before."""
    orders = []
    parts = []
    for _ in range(2):
        rows = min(map(len, features))
        order = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=8))
        orders.append(order)
        whole = Picked.of([[jagged(f[:1]), jagged(f[1:rows])] for f in features], np.array(order))
        cut = data.draw(st.integers(0, len(order)))
        parts += whole.cut([cut, len(order) - cut])
    found = join_picked(parts)
    expected = [[f[row] for order in orders for row in order] for f in features]
    assert found.lengths.tolist() == [[len(row) for row in rows] for rows in expected]
    assert found.values.tolist() == [id_ for rows in expected for row in rows for id_ in row]
    assert found.lengths.dtype == np.int32


PAIRS = st.lists(
    st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0.0, -0.0, 0.5, -1.5])), max_size=3),
    min_size=2,
    max_size=8,
)


def scored(rows: list[list[tuple[int, float]]]) -> WeightedJagged:
    ids = jagged([[id_ for id_, _ in row] for row in rows])
    weights = torch.tensor([weight for row in rows for _, weight in row], dtype=torch.float32)
    return WeightedJagged(*ids, weights)


@given(pairs=PAIRS, data=st.data())
def test_rows_of_a_scored_feature_are_one_where_ids_and_weights_agree(pairs, data) -> None:
    """Beside a feature without weights, whose ids weigh 1; of two pools, as of two windows."""
    plain = [[id_ for id_, _ in row] for row in pairs]
    columns = [[jagged(plain[:1]), jagged(plain[1:])], [scored(pairs[:1]), scored(pairs[1:])]]
    order = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=8))
    picked = Picked.of(columns, np.array(order))
    bits = [[(id_, np.float32(weight).tobytes()) for id_, weight in row] for row in pairs]
    numbers = picked.rows[1].tolist()
    for row, number in zip(order, numbers, strict=True):
        same = [bits[other] == bits[row] for other in order]
        assert [other == number for other in numbers] == same
    found = join_picked([picked, picked])
    (block,) = gather_blocks(columns, np.array(order * 2), [len(order) * 2])
    joined = join_blocks(gather_blocks(columns, np.array(order * 2), [len(order)] * 2))
    for one in (found, block, joined):
        both = one.kjt(["plain", "scored"])
        wanted = [pair for row in order * 2 for pair in pairs[row]]
        assert both["scored"].values().tolist() == [id_ for id_, _ in wanted]
        of_ids = torch.tensor([weight for _, weight in wanted])
        assert torch.equal(as_bits(both["scored"].weights()), as_bits(of_ids))
        assert both["plain"].weights().tolist() == [1.0] * len(wanted)
        assert both["scored"].lengths().tolist() == [len(pairs[row]) for row in order * 2]
