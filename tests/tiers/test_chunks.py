"""Property test: the kernel that finds the rows a step touches finds what torch's operations do."""

from __future__ import annotations

import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_plugins.tiers import reduction
from recd_plugins.tiers.routed_batch import Touched


@settings(max_examples=at_most(25))
@given(
    ranks=st.integers(1, 4),
    share_rows=st.integers(1, 40),
    rate=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    width=st.integers(1, 50),
    seed=st.integers(0, 2**32 - 1),
)
def test_both_ways_find_the_same_chunks(
    ranks: int, share_rows: int, rate: float, width: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    own = seed % ranks
    by_rank = torch.rand(ranks, ranks, share_rows, generator=draw) < rate
    elsewhere = torch.rand(ranks, share_rows, generator=draw) < rate
    touched = Touched(
        mine=by_rank[own],
        by_rank=by_rank[:, own].contiguous(),
        by_node=by_rank[:, own].any(0, keepdim=True),
        anywhere=by_rank.any(0) | elsewhere,
    )
    union, *counts = reduction._chunks(touched, own, width)
    wanted, *wanted_counts = reduction._chunks_on_device(touched, own, width)
    assert counts == wanted_counts
    assert [rows.tolist() for rows in union] == [rows.tolist() for rows in wanted]
