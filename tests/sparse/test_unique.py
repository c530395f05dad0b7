"""Rung 1 and 2 (values, properties): unique rows and group codes, on CPU and in torch alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import Jagged
from recd_plugins.sparse.rows import unique
from recd_plugins.sparse.rows.unique import (
    LaidRows,
    group_codes,
    hash_row,
    hash_rows,
    unique_rows,
    unique_rows_of_parts,
    unique_rows_on_device,
)

BOTH = pytest.mark.parametrize("find", [unique_rows, unique_rows_on_device], ids=["cpu", "torch"])
DTYPES = (torch.int32, torch.int64)
ids = st.one_of(st.integers(0, 2), st.sampled_from([-(2**31), 2**31 - 1]))
ids64 = st.one_of(ids, st.sampled_from([-(2**63), 2**63 - 1, 2**32, 2**32 + 1]))


def jagged(rows, dtype=torch.int64):
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    values = torch.tensor([i for row in rows for i in row], dtype=dtype)
    return values, torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def by_dict(rows):
    """What any way must find, in the plainest way."""
    known = {}
    inverse_lookup = [known.setdefault(tuple(row), len(known)) for row in rows]
    return inverse_lookup, [inverse_lookup.index(code) for code in range(len(known))]


@BOTH
@settings(max_examples=at_most(60))
@given(rows=st.lists(st.lists(ids64, max_size=20), max_size=12))
def test_any_int64_rows(find, rows):
    assert [part.tolist() for part in find(*jagged(rows))] == [*by_dict(rows)]


@BOTH
@settings(max_examples=at_most(60))
@given(pool=st.lists(st.lists(ids, max_size=18), min_size=1, max_size=4), data=st.data())
def test_any_int32_rows_that_repeat(find, pool, data):
    rows = data.draw(st.lists(st.sampled_from(pool), max_size=20))
    assert [part.tolist() for part in find(*jagged(rows, torch.int32))] == [*by_dict(rows)]


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_duplicates_far_apart_and_rows_that_differ_at_one_place(find, dtype):
    base = list(range(100, 119))
    rows = [base, *([*base[:place], -1, *base[place + 1 :]] for place in range(len(base)))]
    rows += [base[:length] for length in range(len(base))]
    rows += [[n] * 50 for n in range(3000)] + rows[::-1]
    inverse_lookup, firsts = find(*jagged(rows, dtype))
    assert (inverse_lookup.tolist(), firsts.tolist()) == by_dict(rows)
    assert inverse_lookup.dtype == firsts.dtype == torch.int64


@BOTH
def test_offsets_begin_and_end_anywhere(find):
    values = torch.tensor([9, 9, 1, 2, 1, 2, 3, 9])
    inverse_lookup, firsts = find(values, torch.tensor([2, 4, 6, 6, 7], dtype=torch.int32))
    assert inverse_lookup.tolist() == [0, 0, 1, 2]
    assert firsts.tolist() == [0, 2, 3]


@BOTH
@pytest.mark.parametrize("rows", [[], [[]], [[], []], [[5]]])
def test_next_to_nothing(find, rows):
    assert [part.tolist() for part in find(*jagged(rows))] == [*by_dict(rows)]


def test_memory_that_numba_would_not_take_as_it_is():
    values, offsets = torch.tensor([[1, 0], [2, 0], [1, 0], [2, 0]])[:, 0], torch.tensor([0, 2, 4])
    assert unique_rows(values, offsets).inverse_lookup.tolist() == [0, 0]


def collision():
    """[7, 8] and [1, x], where x is chosen so that the sum of the two terms stays."""
    mix, step = int(unique.MIX), int(unique.STEP)

    def term(place, number):
        product = (number ^ place * step) * mix % 2**64
        return product ^ (product >> 32)

    wanted = (term(0, 7) + term(1, 8) - term(0, 1)) % 2**64
    x = (wanted ^ (wanted >> 32)) * pow(mix, -1, 2**64) % 2**64 ^ step
    one, two = [7, 8], [1, x - 2**64 if x >= 2**63 else x]
    assert hash_row(np.array(one)) == hash_row(np.array(two))
    return one, two


def test_rows_that_collide_are_not_merged():
    one, two = collision()
    rows = [one, two, [3], two, one]
    assert unique_rows(*jagged(rows)).inverse_lookup.tolist() == [0, 1, 2, 1, 0]


def test_samples_whose_features_collide_are_not_merged():
    one, two = collision()
    lists = {
        "a": [one, two, two, one, one],
        "b": [[5], [5], [6], [6], [5]],
        "c": [two, one, two, one, two],
        "d": [one, two, two, one, one],
    }
    features = {}
    for key, rows in lists.items():
        values, offsets = jagged(rows)
        features[key] = Jagged(values, offsets.diff())
    ikjt = InverseKeyedJaggedTensor.from_jagged(features, [["a", "b"], ["c", "d"]])
    assert ikjt.inverse_lookup.tolist() == [[0, 1, 2, 3, 0], [0, 1, 2, 3, 0]]


@pytest.mark.parametrize("weak_rounds", [1, 4])
def test_rows_that_collide_on_a_device_are_not_merged(weak_rounds):
    def weak(rows, attempt):
        if attempt < weak_rounds:
            return torch.zeros(rows.offsets.numel() - 1, dtype=torch.int64)
        return hash_rows(rows, attempt)

    rows = [[n % 7] * (n % 3) for n in range(60)]
    found = unique_rows_on_device(*jagged(rows), hash_rows=weak)
    assert [part.tolist() for part in found] == [*by_dict(rows)]


def test_a_hash_tells_order_length_and_round():
    rows = LaidRows.of(*jagged([[1, 2], [2, 1], [0], [0, 0], []]))
    assert len(set(hash_rows(rows, 0).tolist())) == 5
    assert not (hash_rows(rows, 0)[:4] == hash_rows(rows, 1)[:4]).any()


@given(
    pairs=st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=30),
    count=st.integers(1, 3),
)
def test_group_codes_tell_combinations_apart(pairs, count):
    features = [[pair[index] for pair in pairs] for index in range(count)]
    found = group_codes([torch.tensor(codes, dtype=torch.int64) for codes in features])
    assert [part.tolist() for part in found] == [*by_dict(zip(*features, strict=True))]


def test_group_codes_past_what_one_number_of_all_codes_would_hold():
    """Ten features of 5,000 codes: 5,000^10 combinations, of which 5,000 occur."""
    draw = torch.Generator().manual_seed(0)
    features = [torch.randperm(5000, generator=draw).repeat(2) for _ in range(10)]
    inverse_lookup, firsts = group_codes(features)
    assert torch.equal(inverse_lookup, torch.arange(5000).repeat(2))
    assert torch.equal(firsts, torch.arange(5000))


def test_group_codes_of_no_feature():
    with pytest.raises(ValueError, match="one feature at least"):
        group_codes([])


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), max_size=2)), min_size=1)
)
def test_rows_of_different_parts_always_differ(rows):
    values, offsets = jagged([row for _, row in rows])
    found = unique_rows_of_parts(values, offsets, torch.tensor([part for part, _ in rows]))
    assert [one.tolist() for one in found] == [*by_dict([(part, tuple(row)) for part, row in rows])]
