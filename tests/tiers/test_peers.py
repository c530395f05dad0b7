"""Peers gather each other's parts, whether or not anyone looked at those before; where rows lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from recd_plugins.compat.both_ways import MOST_UNDER_WAY
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.exchange.node_exchange import AskedIds
from recd_plugins.tiers.peers import Nodes, Peers
from recd_plugins.tiers.replicas.tier_layout import TierLayout


def gathered(count: int) -> list[int]:
    """The last of `count` gathers, of which nobody waits for the others; then one of nothing."""
    peers = Peers(dist.group.WORLD)
    for number in range(count):
        pending = peers.all_gather(torch.full((1 << 10,), 10 * number + peers.rank))
    found = pending.wait()
    assert pending.held_in is not None
    assert all(one is not pending for one in pending.held_in)  # its memory is its owner's alone
    assert peers.all_gather(torch.empty(0, 4)).wait().shape == (peers.size, 0, 4)
    assert all(len(one.unique()) == 1 for one in found)
    return [int(one[0]) for one in found]


def in_a_buffer(size: int) -> None:
    """A gather and an all-to-all into a buffer; where it is too small, beside it."""
    peers = Peers(dist.group.WORLD)
    buffer = np.full(size, 255, np.uint8)
    mine = torch.full((3, 2), 1.0 + peers.rank)
    wanted = torch.stack([torch.full((3, 2), 1.0 + peer) for peer in range(peers.size)])
    every = peers.all_gather(mine, buffer).wait()
    assert torch.equal(every, wanted)
    fits = size >= every.nbytes
    assert (every.data_ptr() == buffer.ctypes.data) == fits
    counts = [3] * peers.size
    sent = mine.repeat(peers.size, 1)
    arrived = peers.all_to_all(sent, counts, counts, buffer).wait()
    assert torch.equal(arrived, wanted.flatten(0, 1))
    assert (arrived.data_ptr() == buffer.ctypes.data) == fits


def in_unlike_numbers_of_groups() -> list[int]:
    """On a rank: the ranks of its node, once one of them has made groups for itself."""
    world = dist.group.WORLD
    assert world is not None
    if dist.get_rank() == 1:
        dist.new_group([1])
        dist.new_group([1], use_local_synchronization=True)
    node = Nodes(world, 2).node
    return [int(one) for one in node.all_gather(torch.tensor(dist.get_rank())).wait()]


def test_ranks_that_made_unlike_numbers_of_groups_meet(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(in_unlike_numbers_of_groups, world_size=4) == [[0, 1]] * 2 + [[2, 3]] * 2


@pytest.mark.parametrize("size", [0, 47, 48, 100])
def test_a_buffer_takes_what_comes(gloo_pool: GlooPool, size: int) -> None:
    gloo_pool.run(in_a_buffer, size, world_size=2)


@pytest.mark.parametrize(
    ("count", "shares", "kind"),
    [(10, 2, torch.int32), (11, 3, torch.int32), (10, 1, torch.int64), (1 << 32, 4, torch.int64)],
)
def test_addresses_take_as_few_bytes_as_they_need(
    count: int, shares: int, kind: torch.dtype
) -> None:
    layout = TierLayout(count, shares)
    positions = torch.tensor([0, 1, 5, 9, count - 1])
    before = positions.clone()
    addresses = layout.address(positions)
    assert addresses.dtype == kind
    assert addresses.tolist() == [
        one % shares * layout.share_rows + one // shares for one in positions.tolist()
    ]
    assert torch.equal(positions, before)


def test_different_ids_are_asked_of_the_ranks_that_have_their_rows() -> None:
    """The example of `node_exchange`."""
    asked = AskedIds.of(torch.tensor([4, 1, 4, 3]), TierLayout(6, 2))
    assert asked.ids.tolist() == [2, 0, 1]
    assert asked.counts.tolist() == [1, 2]
    assert asked.inverse.tolist() == [0, 1, 0, 2]


def test_gathers_that_nobody_waits_for_do_not_mix_with_later_ones(gloo_pool: GlooPool) -> None:
    count = 2 * MOST_UNDER_WAY
    for found in gloo_pool.run(gathered, count, world_size=4):
        assert found == [10 * (count - 1) + rank for rank in range(4)]
