"""Property tests: kernels find a step's rows and cut gradients as torch's operations do."""

from __future__ import annotations

import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recd_plugins.errors import DataError
from recd_plugins.tiers.gradients.chunks import Chunks, _chunks, _chunks_on_device
from recd_plugins.tiers.gradients.entries import Entries
from recd_plugins.tiers.gradients.touched import Touched


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
        by_node=torch.stack([by_rank[:, own].any(0), elsewhere[own]]),
        anywhere=by_rank.any(0) | elsewhere,
    )
    chunks = Chunks(touched, own, width)
    found = _chunks(touched, own, width)
    wanted = _chunks_on_device(touched, own, width)
    assert found.longest == wanted.longest
    assert found.mine == wanted.mine
    assert found.theirs == wanted.theirs
    assert wanted.rows is not None
    assert wanted.nodes is not None
    of_nodes = [chunks.of_nodes(number, chunks.rows(number)) for number in range(chunks.count)]
    assert [one.counts for one in of_nodes] == [
        [before[number + 1] - before[number] for before in wanted.nodes]
        for number in range(chunks.count)
    ]
    for share, rows in enumerate(wanted.rows):
        parts = [chunks.rows(number, share) for number in range(chunks.count)]
        assert [part.tolist() for part in parts] == [
            part.tolist() for part in pieces(rows, width, chunks.count)
        ]


def test_the_example_of_chunks() -> None:
    """That of the docstring: a share has 8 rows."""
    rank_0, rank_1 = bits([4], [0, 2, 6]), bits([1, 4, 7], [])
    touched = Touched(
        mine=rank_0,
        by_rank=torch.stack([rank_0[0], rank_1[0]]),
        by_node=torch.stack([(rank_0 | rank_1)[0], bits([5])[0]]),
        anywhere=bits([1, 4, 5, 7], [0, 2, 6]),
    )
    chunks = Chunks(touched, own_share=0, width=2)
    rows = [[chunks.rows(number, share).tolist() for share in (0, 1)] for number in (0, 1)]
    assert rows == [[[1, 4], [0, 2]], [[5, 7], [6]]]
    assert [chunks.sends(number) for number in (0, 1)] == [[1, 2], [0, 1]]
    counts, which = chunks.receives(0, chunks.rows(0))
    assert (counts, which.tolist()) == ([1, 2], [1, 0, 1])
    counts, which = chunks.receives(1, chunks.rows(1))
    assert (counts, which.tolist()) == ([0, 1], [1])
    of_share_1 = 8
    addresses = torch.tensor([of_share_1 + 2, 4, of_share_1, 4, of_share_1 + 6])
    parts = chunks.entries(Entries(addresses, torch.ones(5, 4)))
    assert [part.targets.tolist() for part in parts] == [[2, 0, 1, 0], [0]]


def bits(*rows: list[int]) -> Tensor:
    """The marks of rows of each share."""
    marks = torch.zeros(len(rows), 8, dtype=torch.bool)
    for share, some in zip(marks, rows, strict=True):
        share[some] = True
    return marks


def pieces(rows: Tensor, width: int, count: int) -> list[Tensor]:
    """So many pieces of `width` rows, the last ones of fewer or none."""
    return [rows[number * width : (number + 1) * width] for number in range(count)]


@settings(max_examples=at_most(25))
@given(
    shares=st.integers(1, 3),
    share_rows=st.integers(1, 40),
    rate=st.sampled_from([0.1, 0.5, 1.0]),
    width=st.integers(1, 20),
    count=st.integers(0, 200),
    sourced=st.booleans(),
    weighted=st.booleans(),
    kind=st.sampled_from([torch.int32, torch.int64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_both_ways_cut_the_same_entries(
    shares: int,
    share_rows: int,
    rate: float,
    width: int,
    count: int,
    sourced: bool,
    weighted: bool,
    kind: torch.dtype,
    seed: int,
) -> None:
    draw = torch.Generator().manual_seed(seed)
    addresses = torch.randint(shares * share_rows, (count,), generator=draw).to(kind)
    mine = torch.zeros(shares * share_rows, dtype=torch.bool)
    mine[addresses] = True
    mine = mine.view(shares, share_rows)
    anywhere = mine | (torch.rand(shares, share_rows, generator=draw) < rate)
    touched = Touched(mine=mine, by_rank=mine[:1], by_node=anywhere[:1], anywhere=anywhere)
    gradients = torch.randn(30 if sourced else count, 3, generator=draw)
    entries = Entries(
        addresses,
        gradients,
        torch.randint(30, (count,), generator=draw) if sourced else None,
        torch.rand(count, generator=draw) if weighted else None,
    )
    chunks = Chunks(touched, 0, width)
    sums = [
        part.summed(sum(chunks.sends(number)))
        for number, part in enumerate(chunks.entries(entries))
    ]
    on_device = chunks._cut(chunks._ranked(entries).sorted()) if chunks.count > 1 else ()
    for own, part in zip(sums, on_device, strict=chunks.count > 1):
        torch.testing.assert_close(part.summed(len(own)), own)
    dense = entries.summed(shares * share_rows).view(shares, share_rows, 3)
    for number, own in enumerate(sums):
        expected = [
            dense[share, rows[mine[share, rows]]]
            for share in range(shares)
            for rows in [chunks.rows(number, share)]
        ]
        assert torch.equal(own, torch.cat(expected))


@settings(max_examples=at_most(25))
@given(
    rows=st.integers(1, 60),
    width=st.integers(1, 20),
    count=st.integers(0, 200),
    sourced=st.booleans(),
    kind=st.sampled_from([torch.int32, torch.int64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_runs_of_rows_have_the_entries_of_all(
    rows: int, width: int, count: int, sourced: bool, kind: torch.dtype, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    entries = Entries(
        torch.randint(rows, (count,), generator=draw).to(kind),
        torch.randn(30 if sourced else count, 3, generator=draw),
        torch.randint(30, (count,), generator=draw) if sourced else None,
        torch.rand(count, generator=draw) if sourced else None,
    )
    firsts = [*range(0, rows, width), rows]
    bands = zip(entries.of_bands(firsts), firsts, firsts[1:], strict=False)
    sums = torch.cat([band.summed(end - first) for band, first, end in bands])
    assert torch.equal(sums, entries.summed(rows))


def test_gradients_of_no_row_are_refused_before_any_is_summed() -> None:
    mine = torch.ones(1, 4, dtype=torch.bool)
    chunks = Chunks(Touched(mine, mine, mine, mine), 0, 2)
    for address in (-1, 4):
        with pytest.raises(DataError, match="none of 4 rows"):
            next(chunks.entries(Entries(torch.tensor([0, address]), torch.ones(2, 3))))
