"""Ladder: two ranks. Replicas move to other rows while training, and weights stay TorchRec's."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from test_planner import SLOW, Histories, planner, skewed
from torch import Tensor
from torchrec.distributed import DistributedModelParallel
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_flexshard.flexshard_planner import FlexShardPlanner
from recd_plugins.data.batch import Batch
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of

ONE_RANK_A_NODE = dataclasses.replace(SLOW, ranks_per_node=1)


def shifted(batch: Batch, by: int) -> Batch:
    """Other rows are hot."""
    features = batch.features
    moved = KeyedJaggedTensor(
        keys=features.keys(), values=(features.values() + by) % 500, lengths=features.lengths()
    )
    return dataclasses.replace(batch, features=moved)


def loss(sharded: DistributedModelParallel, batch: Batch) -> Tensor:
    rows: Tensor = sharded.module.sequences(batch.features)["history"].values()
    return rows.square().sum() / 100


def trained(
    made: FlexShardPlanner, rounding: AbstractContextManager[object], *, retier: bool = False
) -> tuple[dict[str, Tensor], list[list[int]]]:
    """This rank's rows after six steps, the hot ones shifted in their middle; and who was hot."""
    group = dist.group.WORLD
    assert group is not None
    model = Histories()
    plan = made.plan(model, ONE_RANK_A_NODE, group)
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=made.sharders()
    )
    with torch.no_grad():
        for parameter in sharded.parameters():
            parameter.fill_(0.5)
    batches = list(skewed(12, 32))[dist.get_rank() :: 2]
    batches = [*batches[:3], *(shifted(batch, 250) for batch in batches[3:])]
    hot = []
    with rounding:
        for step, batch in enumerate(batches):
            if made.tier_plan is not None:
                hot.append(made.tier_plan.tables["t0"].replicated[:2].tolist())
            loss(sharded, batch).backward()
            if retier and step == 3:
                made.retier(batches[3:4], group)
    rows = sharded.state_dict()["sequences.embeddings.t0.weight"].local_shards()[0].tensor
    return {"rows": rows.clone()}, hot


def both() -> list[list[int]]:
    """On a rank: with replicas and without, the same rows; who was hot."""

    def plain(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        row_wise = planner(None, others={"constraints": {"t0": {"sharding_types": ["row_wise"]}}})
        rows, none = trained(row_wise, rounding)
        assert none == []
        return rows

    tiered = planner(goal="min_communication", tiers=2)
    ours, hot = trained(tiered, nullcontext(), retier=True)
    assert not torch.equal(ours["rows"], torch.full_like(ours["rows"], 0.5))
    assert_alike(ours, *plain_of(plain))
    return hot


def test_replicas_follow_the_hot_rows(gloo_pool: GlooPool) -> None:
    for hot in gloo_pool.run(both, world_size=2):
        before, after = hot[:4], hot[4:]
        assert all(0 in rows for rows in before)
        assert all(250 in rows for rows in after)


def test_without_tiers_there_is_nothing_to_move() -> None:
    made = planner(None)
    made.propose(Histories(), Topology(ranks_per_node=1), 2)
    made.retier([], None)  # type: ignore[arg-type]  # no group is asked for anything
    assert made.tier_plan is None
