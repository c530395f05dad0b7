"""Rung 3 (two gloo ranks): whatever tables are trained with, replicas repeat it, and rows that are
coalesced are stepped as if they were not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    CounterBasedRegularizationDefinition,
    WeightDecayMode,
)
from tiered import ROWS, Bags, ByTiers, Sequences, batch_of, row_wise_of, trained
from torch import Tensor, nn
from torch.distributed.optim import (  # type: ignore[attr-defined]
    _apply_optimizer_in_backward as apply_optimizer_in_backward,
)
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.optimizers import SGD, Adagrad

from recd_plugins.data.batch import Batch
from recd_plugins.errors import CapabilityError
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arrangement
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

STEPS = 4
ROWWISE = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1, "eps": 1e-2}
SGD_PARAMS = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.2}
L2 = {"weight_decay": 0.1, "weight_decay_mode": WeightDecayMode.L2}
DECOUPLED = {"weight_decay": 0.1, "weight_decay_mode": WeightDecayMode.DECOUPLE}
CLIPPED = {"gradient_clipping": True, "max_gradient": 5e-3}
"""Below many of the gradients that the models here have."""

Train = Callable[[DistributedModelParallel], None]


class Alone(nn.Module):
    """Bags of a table that one feature looks up: on the CPU, fbgemm decays no weight of it."""

    def __init__(self) -> None:
        super().__init__()
        songs = EmbeddingBagConfig(
            name="songs", embedding_dim=8, num_embeddings=ROWS["songs"], feature_names=["heard"]
        )
        self.bags = EmbeddingBagCollection(tables=[songs], device=torch.device("meta"))
        self.over = nn.Linear(8, 1)

    def forward(self, batch: Batch) -> tuple[Tensor]:
        return (self.over(self.bags(batch.features)["heard"]).sigmoid().sum(),)


@dataclass(frozen=True)
class Fused(OptimizerSettings):
    """Fused params as a trainer hands them to its sharders."""

    params: Mapping[str, Any] = field(default_factory=dict)

    def fused_params(self) -> dict[str, Any]:
        return dict(self.params)


@dataclass(frozen=True)
class Case:
    """What is trained, by what, behind which tiers."""

    make: Callable[[], nn.Module]
    fused: Mapping[str, Any]
    tiers: ByTiers
    in_backward: bool = False
    """Whether each table has an optimizer of its own, whatever its sharder says."""


def model_of(case: Case, arrange: Arrangement) -> DistributedModelParallel:
    torch.manual_seed(0)
    model = case.make()
    initialisers = table_initialisers(model)
    if case.in_backward:
        songs, artists = (
            [value for name, value in model.named_parameters() if f"{table}.weight" in name]
            for table in ("songs", "artists")
        )
        apply_optimizer_in_backward(SGD, songs, {"lr": 0.3})
        apply_optimizer_in_backward(Adagrad, artists, {"lr": 0.1, "eps": 1e-2})
    arranged = arrange(model, Fused(params=case.fused))
    found = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(found, initialisers, 0)
    return found


def plainly(model: DistributedModelParallel) -> None:
    for step in range(STEPS):
        model(batch_of(2 * step + dist.get_rank(), 6))[0].backward()


def hold(case: Case, train: Train = plainly) -> None:
    """On a rank: with tiers and without, the same weights and states."""

    def run(behind: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = model_of(case, behind)
        with rounding:
            train(model)
        return trained(model)

    assert_alike(run(case.tiers, nullcontext()), *row_wise_of(run, case.make))


REPLICAS = ByTiers(ranks_per_node=1, seed=3)
COALESCED = ByTiers(ranks_per_node=1, seed=3, coalesce="rank")
ON_A_NODE = ByTiers(ranks_per_node=2, seed=3, coalesce="node")


@pytest.mark.parametrize(
    "case",
    [
        Case(Sequences, ROWWISE | L2, REPLICAS),
        Case(Bags, ROWWISE | DECOUPLED, REPLICAS),
        Case(Alone, ROWWISE | L2, REPLICAS),
        Case(Sequences, ROWWISE | CLIPPED, REPLICAS),
        Case(Sequences, SGD_PARAMS | CLIPPED, ON_A_NODE),
        Case(Bags, SGD_PARAMS | CLIPPED, REPLICAS),
        Case(Bags, SGD_PARAMS | CLIPPED, COALESCED),
        Case(Bags, ROWWISE, REPLICAS, in_backward=True),
        Case(Sequences, {}, COALESCED, in_backward=True),
    ],
    ids=str,
)
def test_replicas_repeat(gloo_pool: GlooPool, case: Case) -> None:
    gloo_pool.run(hold, case)


def by_a_scheduler(model: DistributedModelParallel) -> None:
    """torch's own, on TorchRec's fused optimizer, which a trainer steps as any other."""
    optimizer = cast("torch.optim.Optimizer", model.fused_optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step % 3))
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch_of(2 * step + dist.get_rank(), 6))[0].backward()
        optimizer.step()
        scheduler.step()


def by_each_parameter(model: DistributedModelParallel) -> None:
    """As trainers reach the optimizers of `apply_optimizer_in_backward`."""
    for step in range(STEPS):
        for parameter in model.parameters():
            for optimizer in getattr(parameter, "_in_backward_optimizers", ()):
                for group in optimizer.param_groups:
                    group["lr"] = 0.3 / (1 + step % 3)
                optimizer.step()
        model(batch_of(2 * step + dist.get_rank(), 6))[0].backward()


@pytest.mark.parametrize("train", [by_a_scheduler, by_each_parameter])
def test_replicas_follow_the_trainers_schedules(gloo_pool: GlooPool, train: Train) -> None:
    gloo_pool.run(hold, Case(Sequences, ROWWISE, REPLICAS), train)


def refusal(extra: Mapping[str, Any]) -> str:
    with pytest.raises(CapabilityError) as caught:
        model_of(Case(Sequences, ROWWISE | extra, REPLICAS), REPLICAS)
    return str(caught.value)


def test_what_cannot_be_repeated_is_refused_by_name(gloo_pool: GlooPool) -> None:
    counted = {
        "weight_decay_mode": WeightDecayMode.COUNTER,
        "counter_based_regularization": CounterBasedRegularizationDefinition(),
    }
    for message in gloo_pool.run(refusal, counted):
        assert "tables songs, artists" in message
        assert "EXACT_ROWWISE_ADAGRAD with a weight_decay_mode other than none, l2" in message


def clipping_kernels() -> list[bool]:
    """On a rank: whether TorchRec's kernels still clip, tiers as drawn and then coalesced."""
    found = []
    for tiers in (REPLICAS, COALESCED):
        model = model_of(Case(Sequences, SGD_PARAMS | CLIPPED, tiers), tiers)
        kernels = model.module.sequences.tiers.optimizer.optimizers
        found += [kernel._emb_module.optimizer_args.gradient_clipping for _, kernel in kernels]
    return found


def test_gradients_are_clipped_where_they_are_not_summed_yet(gloo_pool: GlooPool) -> None:
    for kept, left in gloo_pool.run(clipping_kernels):
        assert kept
        assert not left
