"""Rung 3 (ranks): a trainer whose environment has `output_dtensor`, by which TorchRec's state dicts
have DTensors: two gloo ranks train with replicas, and on unique samples, what they train plainly,
and go on from the checkpoints of each other."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from foreign import CPU, Job, Side, job
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingPlan
from torchrec.optim.keyed import KeyedOptimizer

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import Bounds, assert_alike
from recd_plugins.testing.rounding import plain_of

STEPS = 3


def as_dtensors(
    net: nn.Module, plan: ShardingPlan, sharders: list[ModuleSharder[nn.Module]]
) -> tuple[nn.Module, KeyedOptimizer]:
    env = ShardingEnv(dist.get_world_size(), dist.get_rank(), dist.group.WORLD, output_dtensor=True)
    model = DistributedModelParallel(net, env=env, device=CPU, plan=plan, sharders=sharders)
    return model, model.fused_optimizer


def states_of(own: Job) -> dict[str, dict[str, object]]:
    return {"model": own.model.state_dict(), "optimizer": own.optimizer.state_dict()}


def train(own: Job, first: int, last: int) -> None:
    """The steps from `first` to before `last`, with a state dict in the midst of them."""
    for number, batch in enumerate([*own.batches(last)][first:]):
        own.optimizer.zero_grad()
        own.model(batch)[0].backward()
        own.optimizer.step()
        if number == 0:
            states_of(own)


def moves(there: Side, back: Side, folder: str) -> None:
    """On a rank: a part of a training, a checkpoint, and the rest of it elsewhere."""
    first, second = (job(side, shard=as_dtensors) for side in (there, back))
    tables = [one for one in first.model.state_dict().values() if isinstance(one, DTensor)]
    assert len(tables) == 4
    train(first, 0, 2)
    train(second, 2, STEPS)  # elsewhere
    dcp.save(states_of(first), checkpoint_id=folder)
    states = states_of(second)
    dcp.load(states, checkpoint_id=folder)
    second.model.load_state_dict(states["model"])
    second.optimizer.load_state_dict(states["optimizer"])
    train(second, 2, STEPS)
    assert_alike(second.trained(), *reference())


def reference() -> tuple[dict[str, Tensor], Bounds]:
    """Plain TorchRec with ShardedTensors, undisturbed."""

    def run(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        own = job("plain")
        with rounding:
            train(own, 0, STEPS)
        return own.trained()

    return plain_of(run)


@pytest.mark.parametrize(
    ("there", "back"),
    [("plain", "tiers"), ("tiers", "tiers and dedup"), ("tiers and dedup", "plain")],
)
def test_checkpoints_of_dtensors_move(
    gloo_pool: GlooPool, tmp_path: Path, there: Side, back: Side
) -> None:
    gloo_pool.run(moves, there, back, str(tmp_path))
