"""Value tests: a peak is seen though it is past, and later peaks do not know earlier ones. Rung 3
(two gloo ranks): whose memory it is."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from probe_plugin import probe_registry

from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.stack import load
from recd_plugins.testing.batches import random_batches
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import SCHEMA
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.measure.memory import PeakMemory, memory_owners

CPU = torch.device("cpu")
BIG = 64 * 2**20
SLACK = 8 * 2**20
"""What else a process may take or give back meanwhile; the kernel counts pages in batches."""


def touch(size: int) -> int:
    """Hold so many bytes, and let them go: pages of their own, for an allocator might hand out
    some that an earlier test has left it."""
    with mmap.mmap(-1, size) as held:
        for page in range(0, size, mmap.PAGESIZE):
            held[page] = 1
        return held[size - mmap.PAGESIZE]


def test_what_was_held_shows_after_it_is_gone() -> None:
    memory = PeakMemory(CPU)
    assert memory.above() < SLACK
    touch(BIG)
    assert BIG - SLACK < memory.above() < BIG + SLACK
    assert memory.peak() == memory.level + memory.above()


def test_a_later_peak_forgets_an_earlier_one() -> None:
    touch(2 * BIG)
    memory = PeakMemory(CPU)
    touch(BIG)
    assert memory.above() < BIG + SLACK


def replicas_of(registry: dict[str, Any]) -> int:
    """On a rank: the bytes of its replicas behind a step."""
    job = assemble(load(registry), CPU)
    (step,) = random_batches(SCHEMA, steps=1, world_size=dist.get_world_size())
    job.pipeline.progress(iter([step[dist.get_rank()]]))
    return memory_owners(job.model, job.dense)["replicas"]


@pytest.mark.parametrize("coalesce", ["none", "rank"])
def test_replicas_of_bags_are_counted_whatever_travels(
    coalesce: Coalesce, tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """Where rows travel, a collection is made of parts, which are no submodules of it."""
    registry = probe_registry(tmp_path)
    rows, plan = np.arange(10), tmp_path / "plan.json"
    items = TablePlan(table="item", replicated=rows, coalesce=coalesce, num_rows=30)
    TierPlan(tables={"item": items}, n_nodes=2, ranks_per_node=1).save(plan)
    registry["plugins"] = [*registry["plugins"], "recd_flexshard"]
    registry["sharding"] = {"use": "flexshard", "plan": str(plan)}
    registry["topology"] = {"ranks_per_node": 1}
    state = 4
    assert gloo_pool.run(replicas_of, registry) == [len(rows) * (8 * 4 + state)] * 2
