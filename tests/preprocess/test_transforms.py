"""Rung 1 and 2 (values, properties): SigridHash, FirstX and Clamp, each on its own."""

from __future__ import annotations

import dataclasses
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_dsi.transforms import Clamp, FirstX, SigridHash
from recd_dsi.transforms.ids import ClampConfig, SigridHashConfig
from recd_dsi.transforms.lists import FirstXConfig
from recd_dsi.transforms.mixing import fmix64
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import RegistryError
from recd_plugins.testing.batches import from_lists, to_lists

INT64 = torch.iinfo(torch.int64)
IDS = st.integers(INT64.min, INT64.max) | st.sampled_from([INT64.min, -1, 0, 1, INT64.max])
ROWS = st.lists(st.lists(IDS, max_size=5), min_size=1, max_size=6)
SCHEMA = Schema(sparse=(SparseFeature(name="a", num_ids=50, kind="user", table="t"),))


def finalizer(h: int) -> int:
    """MurmurHash3's finalizer, as it is published."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> 33)) * factor % 2**64
    return h ^ (h >> 33)


def sigrid(id_: int, modulo: int, salt: int) -> int:
    h = finalizer((id_ % 2**64) ^ finalizer(salt))
    return (h - 2**64 if h >= 2**63 else h) % modulo


def one(rows: list[list[int]], dtype: torch.dtype, weighted: bool = False) -> KeyedJaggedTensor:
    """Feature `a`; the weight of the n-th id is n."""
    features = from_lists({"a": rows})
    return KeyedJaggedTensor(
        keys=["a"],
        values=features.values().to(dtype),
        lengths=features.lengths(),
        weights=torch.arange(features.values().numel()).double() if weighted else None,
    )


@given(rows=ROWS, modulo=st.integers(1, 2**62), salt=st.integers(0, 2**62))
def test_sigrid_hash_is_its_formula(rows, modulo, salt):
    hashed = to_lists(SigridHash(modulo, salt)(one(rows, torch.int64)))["a"]
    assert hashed == [[sigrid(id_, modulo, salt) for id_ in row] for row in rows]
    assert all(0 <= id_ < modulo for id_ in chain(*hashed))


@given(st.lists(IDS, min_size=1))
def test_fmix64_is_the_finalizer_on_every_device(ids):
    """The way that CUDA takes, run on CPU."""
    mixed = fmix64(torch.tensor(ids)).tolist()
    assert [id_ % 2**64 for id_ in mixed] == [finalizer(id_ % 2**64) for id_ in ids]


def test_sigrid_hash_is_stable():
    hashed = SigridHash(1_000_000, salt=1)(one([[0, 1, 2, -1, INT64.max, INT64.min]], torch.int64))
    assert hashed.values().tolist() == [100514, 616559, 622769, 822344, 919144, 99250]


def test_sigrid_hash_spreads_evenly_and_salts_differ():
    """Chi-square of 100 buckets over 100,000 ids in a row: mean 99, deviation 14."""
    ids = one([list(range(100_000))], torch.int64)
    plain, salted = (SigridHash(100, salt)(ids).values() for salt in (0, 1))
    for hashed in (plain, salted):
        counts = torch.bincount(hashed, minlength=100).double()
        assert 99 - 5 * 14 < float(((counts - 1000) ** 2 / 1000).sum()) < 99 + 5 * 14
    assert abs(float((plain == salted).double().mean()) - 0.01) < 0.002


@given(rows=ROWS, n=st.integers(0, 6))
def test_first_x_keeps_each_rows_first(rows, n):
    assert to_lists(FirstX(n)(one(rows, torch.int64)))["a"] == [row[:n] for row in rows]


@given(rows=ROWS, ends=st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)))
def test_clamp_is_its_formula(rows, ends):
    low, high = sorted(ends)
    clamped = to_lists(Clamp(low, high)(one(rows, torch.int64)))["a"]
    assert clamped == [[min(max(id_, low), high) for id_ in row] for row in rows]


SMALL = [[5, 60, 7], [], [8, 90], [1]]
TRANSFORMS = [SigridHash(40), FirstX(2), Clamp(6, 70)]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_int32_ids_give_what_int64_ids_give(transform):
    wide, narrow = (transform(one(SMALL, dtype)) for dtype in (torch.int64, torch.int32))
    assert to_lists(wide) == to_lists(narrow)
    assert (wide.values().dtype, narrow.values().dtype) == (torch.int64, torch.int32)


@pytest.mark.parametrize("transform", [SigridHash(2**40), Clamp(2**40, 2**41)], ids=repr)
def test_int32_ids_widen_where_the_result_needs_it(transform):
    narrow = transform(one(SMALL, torch.int32))
    assert narrow.values().dtype == torch.int64
    assert to_lists(narrow) == to_lists(transform(one(SMALL, torch.int64)))
    assert int(narrow.values().max()) >= 2**31


def test_a_high_end_beyond_int32_clamps_nothing():
    clamped = Clamp(6, 2**40)(one(SMALL, torch.int32))
    assert clamped.values().dtype == torch.int32
    assert to_lists(clamped)["a"] == [[6, 60, 7], [], [8, 90], [6]]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_weights_stay_with_their_ids(transform, dtype):
    weighted = transform(one(SMALL, dtype, weighted=True))
    assert to_lists(weighted) == to_lists(transform(one(SMALL, dtype)))
    kept = [0, 1, 3, 4, 5] if isinstance(transform, FirstX) else [0, 1, 2, 3, 4, 5]
    assert weighted.weights().tolist() == kept
    assert weighted.weights().dtype == torch.float64


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_variable_batches_stay_so(transform):
    features = KeyedJaggedTensor(
        keys=["a", "b"],
        values=torch.tensor([5, 60, 7, 8, 90, 1]),
        lengths=torch.tensor([3, 0, 2, 1, 0]),
        stride_per_key_per_rank=[[2], [3]],
    )
    result = transform(features)
    assert result.stride_per_key() == [2, 3]
    assert result["a"].lengths().tolist() == [2 if isinstance(transform, FirstX) else 3, 0]
    assert result["b"].lengths().tolist() == [2, 1, 0]


def test_schemas_tell_the_ids_that_come_out():
    def num_ids(transform) -> int:
        (feature,) = transform.schema(SCHEMA).sparse
        assert dataclasses.replace(feature, num_ids=50) == SCHEMA.feature("a")
        return feature.num_ids

    assert num_ids(SigridHash(1000)) == 1000
    assert num_ids(FirstX(3)) == 50
    assert num_ids(Clamp(0, 9)) == 10
    assert num_ids(Clamp(0, 99)) == 50
    assert num_ids(Clamp(70, 99)) == 71


def test_options_out_of_range():
    with pytest.raises(RegistryError, match=r"high: must be at least low \(5\), but is 4"):
        ClampConfig(low=5, high=4)
    with pytest.raises(RegistryError, match="modulo: must be >= 1"):
        SigridHashConfig(modulo=0)
    with pytest.raises(RegistryError, match="n: must be >= 0"):
        FirstXConfig(n=-1)
