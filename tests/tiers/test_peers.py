"""Peers gather each other's parts, whether or not anyone looked at those before."""

from __future__ import annotations

import torch
import torch.distributed as dist

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.collectives import MOST_UNDER_WAY, Peers


def gathered(count: int) -> list[int]:
    """The last of `count` gathers, of which nobody waits for the others; then one of nothing."""
    peers = Peers(dist.group.WORLD)
    for number in range(count):
        pending = peers.all_gather(torch.full((1 << 10,), 10 * number + peers.rank))
    found = pending.wait()
    assert peers.all_gather(torch.empty(0, 4)).wait().shape == (peers.size, 0, 4)
    assert all(len(one.unique()) == 1 for one in found)
    return [int(one[0]) for one in found]


def test_gathers_that_nobody_waits_for_do_not_mix_with_later_ones(gloo_pool: GlooPool) -> None:
    count = 2 * MOST_UNDER_WAY
    for found in gloo_pool.run(gathered, count, world_size=4):
        assert found == [10 * (count - 1) + rank for rank in range(4)]
