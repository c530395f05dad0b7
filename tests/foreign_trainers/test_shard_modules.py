"""Trainers that shard collections in place, by TorchRec's `shard_modules`, without
DistributedModelParallel: they come to what plain TorchRec comes to with it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from foreign import CPU, SIDES, Job, Side, job
from torch import nn
from torchrec.distributed.shard import shard_modules
from torchrec.distributed.types import ShardedModule, ShardingEnv, ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of

STEPS = 4


def in_place(
    net: nn.Module, plan: ShardingPlan, sharders: list[Any]
) -> tuple[nn.Module, KeyedOptimizer]:
    assert dist.GroupMember.WORLD is not None
    env = ShardingEnv.from_process_group(dist.GroupMember.WORLD)
    shard_modules(net, env, CPU, plan, sharders)
    sharded = [one for one in net.named_modules() if isinstance(one[1], ShardedModule)]
    return net, CombinedOptimizer([(name, one.fused_optimizer) for name, one in sharded])


def trained(own: Job, *, by_hand: bool) -> dict[str, Any]:
    """`by_hand` are dense gradients averaged, as nobody else does so."""
    dense = [one for name, one in own.model.named_parameters() if "over." in name]
    for batch in own.batches(STEPS):
        own.optimizer.zero_grad()
        own.model(batch)[0].backward()
        for parameter in dense if by_hand else []:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        own.optimizer.step()
    return own.trained()


def trains() -> None:
    """On a rank: all sides come to what plain TorchRec comes to."""

    def run(rounding: Any) -> dict[str, Any]:
        plain = job("plain")
        with rounding:
            return trained(plain, by_hand=False)

    expected, bounds = plain_of(run)
    sides: list[Side] = [*SIDES, "registry"]
    for side in sides:
        try:
            found = trained(job(side, shard=in_place), by_hand=True)
            assert_alike(found, dict(expected), bounds)
        except AssertionError as error:
            raise AssertionError(f"{side}: {error}") from None


def test_collections_are_sharded_in_place(gloo_pool: GlooPool) -> None:
    gloo_pool.run(trains)
