"""Rung 1 and 2 (values, properties): features of single ids are deduplicated as any other is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import Jagged
from recd_plugins.sparse.rows.gather import add_up, addresses_of_lengths
from recd_plugins.sparse.rows.unique import MIX

EXTREMES = [0, 1, -1, 2**63 - 1, -(2**63), 2**32, 2**31 - 1, -(2**31)]
ids = st.integers(0, 2) | st.sampled_from(EXTREMES)
INVERSE = pow(int(MIX), -1, 2**64)


def colliding(hashes):
    """Ids of which each has the next one of `hashes`, where nothing else is mixed in."""
    found = [(mixed ^ (mixed >> 32)) * INVERSE % 2**64 for mixed in hashes]
    return [one - 2**64 if one >= 2**63 else one for one in found]


def single(numbers, dtype=torch.int64, lengths=torch.int64):
    return Jagged(torch.tensor(numbers, dtype=dtype), torch.ones(len(numbers), dtype=lengths))


def by_dict(samples):
    known = {}
    return [known.setdefault(sample, len(known)) for sample in samples]


def check(features, groups):
    """What the plainest way finds: who has which, the rows themselves, and no padding's ids."""
    ikjt = InverseKeyedJaggedTensor.from_jagged(features, groups, validate=True)
    rows = {
        key: [tuple(row.tolist()) for row in values.split(lengths.tolist())]
        for key, (values, lengths) in features.items()
    }
    for group, lookup in zip(groups, ikjt.inverse_lookup.tolist(), strict=True):
        assert lookup == by_dict(list(zip(*(rows[key] for key in group), strict=True)))
    for key, expanded in ikjt.to_kjt().to_dict().items():
        assert torch.equal(expanded.values(), features[key].values)
        assert torch.equal(expanded.lengths(), features[key].lengths)


@settings(max_examples=at_most(80), deadline=None)
@given(numbers=st.lists(ids, min_size=1, max_size=40))
def test_any_ids(numbers):
    check({"a": single(numbers)}, [["a"]])


@settings(max_examples=at_most(60), deadline=None)
@given(
    samples=st.lists(st.tuples(ids, ids, st.lists(ids, max_size=3)), min_size=1, max_size=30),
    groups=st.sampled_from([[["a", "b", "c"]], [["c", "a"], ["b"]], [["b", "c"], ["a"]]]),
)
def test_any_group_with_lists(samples, groups):
    lists = [row for *_, row in samples]
    features = {
        "a": single([one for one, *_ in samples]),
        "b": single([one for _, one, _ in samples]),
        "c": Jagged(
            torch.tensor([one for row in lists for one in row], dtype=torch.int64),
            torch.tensor([len(row) for row in lists]),
        ),
    }
    check(features, groups)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("lengths", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("numbers", [[5], [7] * 1000, [*range(-500, 500)], [3, 3, 4, 3] * 99])
def test_one_row_all_equal_all_different_and_far_apart(numbers, lengths, dtype):
    check({"a": single(numbers, dtype, lengths)}, [["a"]])


def test_ids_whose_hashes_agree_are_not_merged():
    # All fall into one slot, whatever the table's size; then each of many, in turn, with its twin.
    same_slot = colliding([n << 40 for n in range(1, 300)])
    hashes = (np.array(same_slot).view(np.uint64) * MIX).tolist()
    assert len({(mixed ^ (mixed >> 32)) & 0xFF for mixed in hashes}) == 1
    check({"a": single(same_slot * 3)}, [["a"]])
    check({"a": single(same_slot), "b": single([n // 2 for n in range(299)])}, [["a", "b"]])


def all_single(lengths):
    offsets = np.empty(len(lengths) + 1, np.int64)
    return add_up(addresses_of_lengths([lengths]).places[0], offsets)


@pytest.mark.parametrize("place", [0, 255, 256, 599])
def test_one_row_that_is_no_single_id_is_enough_for_lists(place):
    lengths = torch.ones(600, dtype=torch.int32)
    for other in (0, 2):
        lengths[place] = other
        assert not all_single(lengths)
        check({"a": Jagged(torch.arange(int(lengths.sum())) % 7, lengths)}, [["a"]])
    assert all_single(lengths.fill_(1))


def test_as_many_ids_as_rows_are_not_yet_single():
    check({"a": Jagged(torch.tensor([1, 2, 1, 2]), torch.tensor([2, 0, 2, 0]))}, [["a"]])


@settings(max_examples=at_most(40), deadline=None)
@given(
    pairs=st.lists(st.tuples(ids, st.sampled_from([0.0, -0.0, 1.5])), min_size=1, max_size=30),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_weights_are_distinguished(pairs, dtype):
    kjt = single([one for one, _ in pairs])
    from_pairs = torch.tensor([weight for _, weight in pairs], dtype=dtype)
    features = KeyedJaggedTensor(
        keys=["a"], values=kjt.values, lengths=kjt.lengths, weights=from_pairs
    )
    ikjt = InverseKeyedJaggedTensor.from_kjt(features, validate=True)
    bits = [(one, np.signbit(weight), weight) for one, weight in pairs]
    assert ikjt.inverse_lookup[0].tolist() == by_dict(bits)
    assert torch.equal(ikjt.to_kjt().weights(), from_pairs)


@settings(max_examples=at_most(60), deadline=None)
@given(lengths=st.lists(st.sampled_from([0, 1, 7, 8, 9, 16, 17, 100]), min_size=1, max_size=30))
def test_rows_of_any_length_are_laid_end_to_end(lengths):
    """Short ones are copied with what lies behind them, never past the end of either side."""
    values = torch.arange(sum(lengths))
    features = {
        key: Jagged(values + shift, torch.tensor(lengths))
        for key, shift in {"a": 0, "b": 9}.items()
    }
    check(features, [["a"], ["b"]])
