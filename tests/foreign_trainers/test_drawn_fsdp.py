"""Rung 3 (ranks): drawn trainers whose dense part is sharded by FullyShardedDataParallel train, by
registries drawn with them, what they train plainly on the same batches, on one to four ranks.

`DRAWN=1000:1400 pytest tests/foreign_trainers/test_drawn_fsdp.py` draws others.
"""

from __future__ import annotations

import os
import random
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from drawn_trainer import (
    DENSE,
    DrawnTrainer,
    Samples,
    assembled,
    draw_groups,
    draw_registry,
    train,
)
from test_drawn_trainers import had
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.model_parallel import DataParallelWrapper
from torchrec.distributed.types import ShardedModule, ShardingEnv

from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of

FIRST, LAST = map(int, os.environ.get("DRAWN", "0:8").split(":"))


@dataclass(frozen=True, kw_only=True)
class Fsdp(DataParallelWrapper):
    """Shards what TorchRec does not."""

    around: Literal["all", "dense layers"]
    strategy: ShardingStrategy
    use_orig_params: bool

    @classmethod
    def of(cls, seed: int) -> Fsdp:
        draw = random.Random(seed)
        return cls(
            around=draw.choice(["all", "dense layers"]),
            strategy=draw.choice([ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP]),
            use_orig_params=draw.random() < 0.7,
        )

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        net: Any = dmp._dmp_wrapped_module
        if self.around == "all":
            sharded = [one for one in net.modules() if isinstance(one, ShardedModule)]
            dmp._dmp_wrapped_module = self._around(net, env, device, ignored_modules=sharded)
        else:
            net.over = self._around(net.over, env, device)

    def _around(self, module: Any, env: ShardingEnv, device: torch.device, **options: Any) -> Any:
        return FullyShardedDataParallel(
            module,
            process_group=env.process_group,
            sharding_strategy=self.strategy,
            device_id=device,
            use_orig_params=self.use_orig_params,
            **options,
        )


def trainer_of(seed: int) -> DrawnTrainer:
    draw = random.Random(seed)
    own, world_size = DrawnTrainer.of(seed), draw.choice([1, 2, 3, 4])
    groups = draw_groups(draw, own.collections) if draw.random() < 0.5 else []
    return replace(
        own,
        world_size=world_size,
        dense=draw.choice([*DENSE]),
        clips=None,
        # Behind `load_state_dict` FSDP itself refuses the next state dict.
        between=tuple(draw.choice(["", "", "evaluate", "state"]) for _ in own.between),
        registry=draw_registry(draw, groups, world_size),
    )


def holds(seed: int) -> set[str]:
    """On a rank: it trains as plainly; what of ours it had."""
    trainer, wrapper = trainer_of(seed), Fsdp.of(seed)
    samples = Samples(trainer)
    *batches, held_out = samples.of_rank(dist.get_rank())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)
        ours = assembled(trainer, "ours", batches, wrapper)
    ordered = list(ours.loader)
    which, used = [batch.samples.tolist() for batch in ordered], had(ours, ordered)
    found = train(trainer, ours, ordered, ours.convert(held_out))

    def plain(rounding: AbstractContextManager[Any]) -> dict[str, Tensor]:
        same = [samples.batch(one) for one in which]
        own = assembled(trainer, "plain", same, wrapper)
        with rounding:
            return train(trainer, own, same, held_out)

    assert_alike(found, *plain_of(plain))
    return used


HAD: dict[int, set[str]] = {}
"""What each trainer had of ours, on any rank."""


@pytest.mark.parametrize("seed", range(FIRST, LAST))
@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")
def test_a_trainer_with_a_sharded_dense_part_trains_as_plainly(
    gloo_pool: GlooPool, seed: int
) -> None:
    HAD[seed] = set.union(*gloo_pool.run(holds, seed, world_size=trainer_of(seed).world_size))


def test_all_that_there_is_was_drawn() -> None:
    if len(HAD) < LAST - FIRST:
        pytest.skip("not all of them ran here")
    assert set.union(*HAD.values()) >= {"replicas", "unique samples", "hot batches"}
