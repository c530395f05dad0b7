"""Routing ids to tiers: value tests, then property tests against a dict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recd_plugins.planning.prices import router_memory
from recd_plugins.planning.prices.router_memory import is_listed, router_bytes
from recd_plugins.tiers.routing.bitmap_router import BitmapRouter
from recd_plugins.tiers.routing.ranked_bitmap import RankedBitmap
from recd_plugins.tiers.routing.routed_ids import Hits, RoutedIds, Segments
from recd_plugins.tiers.routing.sorted_router import SortedRouter

Kind = type[BitmapRouter] | type[SortedRouter]
KINDS: list[Kind] = [BitmapRouter, SortedRouter]


def tensor(*ids: int) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64)


def as_lists(routed: RoutedIds) -> list[list[int]]:
    missed, replicated, per_node, *_ = routed
    return [part.tolist() for part in (missed, *replicated, *per_node)]


@pytest.mark.parametrize("kind", KINDS)
def test_hot_ids_find_their_positions_and_the_others_miss(kind: Kind) -> None:
    made = kind([10, 5], [tensor(7, 2), tensor(4)], [tensor(3), tensor(0)])
    ids = tensor(2, 3, 9, 7, 4, 0, 1)
    found = made.route(ids, Segments(lengths=(4, 3), tables=(0, 1)))
    # Replicated rows: 2, 7, 10 + 4. Rows of a node: 3, 10 + 0.
    assert as_lists(found) == [[2, 6], [0, 3, 4], [0, 1, 2], [1, 5], [0, 1]]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_out_of_range_and_of_unknown_tables_miss(kind: Kind) -> None:
    made = kind([2, 2], [tensor(0, 1), tensor(0, 1)], [tensor(), tensor()])
    ids = tensor(-1, 2, 1, -(2**63), 2**63 - 1, 0, 1)
    found = made.route(ids, Segments(lengths=(5, 0, 2), tables=(0, 1, -1)))
    assert as_lists(found) == [[0, 1, 3, 4, 5, 6], [2], [1], [], []]
    assert found.outside == 6


@pytest.mark.parametrize("kind", KINDS)
def test_without_hot_rows_or_ids_nothing_hits(kind: Kind) -> None:
    nothing = kind([3], [tensor()], [tensor()])
    assert as_lists(nothing.route(tensor(2, 0), Segments((2,), (0,)))) == [[0, 1], [], [], [], []]
    assert as_lists(nothing.route(tensor(), Segments((0,), (0,)))) == [[], [], [], [], []]
    assert as_lists(kind([], [], []).route(tensor(5), Segments((1,), (-1,))))[0] == [0]


@st.composite
def routings(
    draw: st.DrawFn,
) -> tuple[list[int], list[list[int]], list[list[int]], list[list[int]]]:
    """Rows of up to three tables, which of them are in which tier, and ids of each table."""
    num_rows = draw(st.lists(st.integers(1, 200), min_size=1, max_size=3))
    tiers: tuple[list[list[int]], list[list[int]]] = ([], [])
    for size in num_rows:
        hot = draw(st.permutations(range(size)))[: draw(st.integers(0, size))]
        split = draw(st.integers(0, len(hot)))
        tiers[0].append(hot[:split])
        tiers[1].append(hot[split:])
    ids = [draw(st.lists(st.integers(-2, size + 1), max_size=40)) for size in num_rows]
    return num_rows, *tiers, ids


@contextmanager
def in_slots(most: int) -> Iterator[None]:
    """Tables of more rows than `most` are taken for huge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router_memory, "SMALL", most * router_memory.BITS_PER_ROW / 8)
        patch.setattr(router_memory, "SLOT_AND_NUMBER", 0)
        yield


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=at_most(50))
@given(drawn=routings(), huge=st.sampled_from([0, 100, 200]))
def test_routing_is_that_of_a_dict(
    kind: Kind,
    drawn: tuple[Sequence[int], list[list[int]], list[list[int]], list[list[int]]],
    huge: int,
) -> None:
    num_rows, replicated, per_node, ids = drawn
    known = [
        {
            key: position
            for position, key in enumerate(
                sorted((table, row) for table, rows in enumerate(tier) for row in rows)
            )
        }
        for tier in (replicated, per_node)
    ]
    with in_slots(huge):
        made = kind(
            num_rows,
            [tensor(*rows) for rows in replicated],
            [tensor(*rows) for rows in per_node],
        )
    keys = [(table, row) for table, rows in enumerate(ids) for row in rows]
    segments = Segments(tuple(map(len, ids)), tuple(range(len(ids))))
    found = made.route(tensor(*(row for _, row in keys)), segments)
    assert found.outside == sum(not 0 <= row < num_rows[table] for table, row in keys)
    expected = [[i for i, key in enumerate(keys) if not any(key in tier for tier in known)]]
    for tier in known:
        at = [i for i, key in enumerate(keys) if key in tier]
        expected += [at, [tier[keys[i]] for i in at]]
    assert as_lists(found) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_beyond_memory_is_routed_by_its_hot_rows(kind: Kind) -> None:
    """Bits of it would be 18 GB."""
    draw, huge = torch.Generator().manual_seed(0), 10**11
    hot = torch.randint(0, huge, (100_000,), generator=draw).unique()
    hot = hot[torch.randperm(len(hot), generator=draw)]
    tiers = [[tensor(), tensor(3), hot[:60_000]], [tensor(), tensor(9), hot[60_000:]]]
    made = kind([huge, 50, huge], *tiers)
    rows = (huge, len(hot)), (huge, 0), (50, 2)
    counted = sum(router_bytes(*each, on_gpu=kind is SortedRouter) for each in rows)
    assert made.nbytes == pytest.approx(counted, rel=0.01)
    assert made.nbytes < 31 * len(hot)
    ids = torch.cat([hot[50_000:70_000], hot[:5] + 1, tensor(-1, huge, huge - 1, 3, 9, 10)])
    every = Segments((len(ids) - 3, 3, 4), (2, 1, 0))
    found = made.route(torch.cat([ids, tensor(0, huge - 1, huge, -1)]), every)
    order = torch.cat([hot[:60_000].sort().values, hot[60_000:].sort().values])
    assert found.outside == 4
    assert found.missed.tolist() == [*range(20_000, 20_008), *range(20_010, 20_015)]
    assert torch.equal(order[found.replicated.positions[:-1] - 1], ids[:10_000])
    assert torch.equal(order[60_000:][found.per_node.positions[:-1] - 1], ids[10_000:20_000])
    assert found.replicated.at.tolist() == [*range(10_000), 20_008]
    assert [tier.positions[-1] for tier in found[1:3]] == [0, 0]


def test_a_router_of_models_on_the_meta_device_has_no_bits() -> None:
    rows = torch.empty(3, dtype=torch.int64, device="meta")
    assert SortedRouter([10**11], [rows], [rows]).nbytes < 10_000


@pytest.mark.parametrize(
    ("num_rows", "count", "listed"),
    [
        (64 * 10**8, 1, False),
        (65 * 10**8, 1, True),
        (10**11, 556_098_090, True),
        (10**11, 556_098_091, False),
        (10**11, 0, True),
        (10**13, 2**30 + 1, False),
    ],
)
def test_huge_tables_of_few_hot_rows_have_no_bits(num_rows: int, count: int, listed: bool) -> None:
    assert is_listed(num_rows, count) == listed


def test_a_router_takes_less_than_two_bits_a_row() -> None:
    rows = torch.randperm(1_000_000, generator=torch.Generator().manual_seed(0))[:80_000]
    made = BitmapRouter([1_000_000], [rows[:20_000]], [rows[20_000:]])
    assert made.nbytes * 8 < 1.6 * 1_000_000  # 1.45, and 1.45 for each hot row
    assert made.nbytes == pytest.approx(router_bytes(1_000_000, 80_000), rel=0.01)


@pytest.mark.parametrize(
    ("replicated", "per_node"), [(60_000, 90_000), (150_000, 0), (0, 150_000), (0, 0)]
)
def test_many_rows_and_ids_are_routed_by_both_alike(replicated: int, per_node: int) -> None:
    """More rows than a group of words counts, and more ids than a block."""
    draw = torch.Generator().manual_seed(0)
    num_rows = [120_000, 1, 60_000]
    hot = [
        torch.randperm(size, generator=draw)[: size * (replicated + per_node) // 180_000]
        for size in num_rows
    ]
    replicated_rows = [rows[: len(rows) * replicated // 150_000] for rows in hot]
    per_node_rows = [rows[len(some) :] for rows, some in zip(hot, replicated_rows, strict=True)]
    made = BitmapRouter(num_rows, replicated_rows, per_node_rows)
    lengths = (700, 256, 0, 1_000, 44)
    ids = torch.randint(-10, 120_010, (sum(lengths),), generator=draw)
    segments = Segments(lengths, (0, 2, 1, -1, 0))
    found = as_lists(made.route(ids, segments))
    other = SortedRouter(num_rows, replicated_rows, per_node_rows).route(ids, segments)
    assert found == as_lists(other)
    assert made.route(ids, segments).missed_lengths == other.missed_lengths
    assert sum(other.missed_lengths) == len(other.missed)
    assert [len(found[1]) > 0, len(found[3]) > 0] == [replicated > 0, per_node > 0]


def test_a_rank_counts_a_full_group() -> None:
    """49,152 members before a row's word is the most that its 16 bits hold: beyond their sign."""
    bitmap = RankedBitmap(torch.arange(150_000).split(40_000), 150_001)
    assert torch.equal(bitmap.rank(torch.arange(150_001)), torch.arange(150_001))
    assert bitmap.count == 150_000


@given(rows=st.sets(st.integers(0, 300)), size=st.integers(301, 500))
def test_a_rank_counts_the_members_before_a_row(rows: set[int], size: int) -> None:
    bitmap = RankedBitmap(tensor(*rows).split(7), size)
    assert bitmap.rank(torch.arange(size + 1)).tolist() == [
        sum(member < row for member in rows) for row in range(size + 1)
    ]


def test_hits_and_misses_are_typed_for_torch() -> None:
    made = BitmapRouter([4], [tensor(1)], [tensor(2)])
    missed, replicated, per_node, *_ = made.route(tensor(0, 1, 2), Segments((3,), (0,)))
    assert isinstance(replicated, Hits)
    assert {t.dtype for t in (missed, *replicated, *per_node)} == {torch.int64}
