"""Value and property tests: coalesced ids are torch.unique's, whatever the ids."""

from __future__ import annotations

import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_plugins.sparse.rows.coalesce import PART, coalesce

EXTREMES = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])
IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5) | EXTREMES, max_size=200)


def check(ids: torch.Tensor) -> None:
    unique, inverse_lookup = coalesce(ids)
    assert torch.equal(unique[inverse_lookup], ids)
    assert torch.equal(unique.sort().values, torch.unique(ids))
    assert unique.dtype == ids.dtype
    assert inverse_lookup.dtype == torch.int64


@given(IDS)
@settings(max_examples=at_most(200), deadline=None)
def test_any_ids(ids: list[int]) -> None:
    check(torch.tensor(ids, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 300_000])
def test_any_number_of_parts(dtype: torch.dtype, size: int) -> None:
    for high in (1, 100, 2**31 - 1):
        check(torch.randint(high, (size,), generator=torch.Generator().manual_seed(0)).to(dtype))


def test_ids_of_one_part_alone() -> None:
    # Multiples of 2^40 differ in the bits of the hash that deal them out; those of 2^63 in none.
    check(torch.arange(50_000) * 2**40)
    check(torch.arange(50_000) % 2 * -(2**63))


def test_the_order_is_the_ids_own() -> None:
    ids = torch.randint(1_000, (20_000,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(coalesce(ids).ids, coalesce(ids.clone()).ids)
    strided = torch.stack([ids, ids], dim=1)[:, 0]
    assert torch.equal(coalesce(strided).ids, coalesce(ids).ids)
