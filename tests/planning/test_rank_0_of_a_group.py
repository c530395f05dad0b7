"""Rung 3 (ranks): some of three gloo ranks, without the job's first, take what the first of them
makes."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed import ProcessGroup

from recd_plugins.planning.planner_bases import from_rank_0
from recd_plugins.testing.gloo import GlooPool


def taken() -> str:
    """On a rank: who has made what it is given."""
    group = dist.new_group([1, 2])
    found = ""
    if dist.get_rank() > 0:
        assert isinstance(group, ProcessGroup)
        found = from_rank_0(group, lambda: f"made by rank {dist.get_rank()}")
    dist.barrier()
    return found


def test_a_group_has_a_first_rank_of_its_own(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(taken, world_size=3) == ["", "made by rank 1", "made by rank 1"]
