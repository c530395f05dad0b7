"""Rung 3 (two gloo ranks): a trainer's own sharders behind a plan with replicas train as they train
alone: fused params, feature processors, managed collision and codecs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from tiered import Bags, ByTiers, Sequences, batch_of, tier_plan
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import FACTOR, plain_of
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.collections.sequences import TierEmbeddingCollection
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

CPU, META = torch.device("cpu"), torch.device("meta")
SGD = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.2}
ROWS, DIM, STEPS = 40, 8, 4


class Mixed(nn.Module):
    """Sequences that may have replicas, beside bags behind learned position weights, and rows
    whose ids are managed."""

    def __init__(self) -> None:
        super().__init__()
        common = {"embedding_dim": DIM, "num_embeddings": ROWS}
        self.sequences = EmbeddingCollection(
            tables=[EmbeddingConfig(name="item", feature_names=["item"], **common)], device=META
        )
        bags = EmbeddingBagCollection(
            tables=[EmbeddingBagConfig(name="word", feature_names=["word"], **common)],
            is_weighted=True,
            device=META,
        )
        self.weighted = FeatureProcessedEmbeddingBagCollection(
            bags, nn.ModuleDict({"word": PositionWeightedModule(max_feature_length=6)})
        )
        users = [EmbeddingConfig(name="user", feature_names=["user"], **common)]
        self.managed = ManagedCollisionEmbeddingCollection(
            EmbeddingCollection(tables=users, device=META),
            ManagedCollisionCollection(
                managed_collision_modules={
                    "user": MCHManagedCollisionModule(
                        zch_size=ROWS,
                        device=CPU,
                        input_hash_size=1000,
                        eviction_interval=2,
                        buckets=2,  # TorchRec plans as many for each rank
                        eviction_policy=DistanceLFU_EvictionPolicy(),
                    )
                },
                embedding_configs=users,
            ),
        )
        self.over = nn.Linear(3 * DIM, 1)

    def forward(self, kjts: Sequence[KeyedJaggedTensor]) -> Tensor:
        item, word, user = kjts
        rows = self.sequences(item)["item"].values().sum(0)
        words = self.weighted(word)["word"].sum(0)
        users = self.managed(user)[0]["user"].values().sum(0)
        return self.over(torch.cat([rows, words, users])).squeeze().sigmoid()


def kjts(number: int) -> list[KeyedJaggedTensor]:
    draw = torch.Generator().manual_seed(number)
    found = []
    for name, most in (("item", ROWS), ("word", ROWS), ("user", 1000)):
        lengths = torch.randint(0, 6, (4,), generator=draw)
        values = torch.randint(0, most, (int(lengths.sum()),), generator=draw)
        if name == "item":
            values = values * values // most  # the first rows are hot
        found.append(KeyedJaggedTensor(keys=[name], values=values, lengths=lengths))
    return found


def shard(stack: rp.Stack, mine: list[ModuleSharder[nn.Module]]) -> DistributedModelParallel:
    torch.manual_seed(0)
    model = Mixed()
    initialisers = table_initialisers(model)
    plan = stack.plan(model, sharders=mine)
    sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=stack.sharders())
    initialise_tables(sharded, initialisers, 0)
    return sharded


def train(registry: dict[str, Any], rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
    stack = rp.load({"train": {"device": "cpu"}, **registry})
    model = shard(stack, default_sharders(SGD))
    tiered = isinstance(model.module.sequences, TierEmbeddingCollection)
    assert tiered == ("plugins" in registry)
    dense = [p for p in model.parameters() if not hasattr(p, "_in_backward_optimizers")]
    optimizer = torch.optim.SGD(dense, lr=0.1)
    with rounding:
        for step in range(STEPS):
            optimizer.zero_grad()
            model(kjts(2 * step + dist.get_rank())).backward()
            optimizer.step()
    if tiered:
        text = stack.explain()
        assert "table user is left to TorchRec, for ManagedCollision" in text
    state = model.state_dict()
    found = {n: gather_table(state[n]) for n in state if n.endswith(".weight") and "emb" in n}
    found["position"] = state["weighted._feature_processors.word.position_weight"].clone()
    assert (found["position"] != 1).any()
    return found


def hold(profile: str) -> None:
    """On a rank: a plan with replicas, and TorchRec's own by the same sharders."""
    plain = {
        "sharding": {"use": "torchrec", "constraints": {"item": {"sharding_types": ["row_wise"]}}}
    }
    tiers = {
        "plugins": ["recd_flexshard"],
        "sharding": {"use": "flexshard", "goal": "min_communication", "profile": profile},
        "topology": {"inter_node_gbps": 0.001, "intra_node_gbps": 10, "ranks_per_node": 1},
    }
    assert_alike(train(tiers, nullcontext()), *plain_of(partial(train, plain)))


def test_a_trainers_sharders_train_as_they_do_alone(gloo_pool: GlooPool, tmp_path: Path) -> None:
    shares = (np.arange(ROWS) + 1.0) ** -1.2
    rows = RowDistribution.of([1] * ROWS, shares / shares.sum() * 20, ids=np.arange(ROWS))
    path = tmp_path / "profile.arrow"
    Profile(rows={"item": rows}).save(path)
    gloo_pool.run(hold, str(path))


# Codecs: rows that miss travel in fewer bits, as they would without tiers.


def coded(
    make: type[nn.Module], drawn: ByTiers | None, codecs: bool
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Tables and outputs of a training by TorchRec row-wise, or behind tiers."""
    config = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)
    registry = get_qcomm_codecs_registry(config, device=CPU) if codecs else None
    torch.manual_seed(0)
    model = make()
    initialisers = table_initialisers(model)
    plan = BySharding("row_wise")(model, OptimizerSettings(tables="sgd")).plan
    sharders: list[Any] = [
        kind(fused_params=dict(SGD), qcomm_codecs_registry=registry)
        for kind in (EmbeddingBagCollectionSharder, EmbeddingCollectionSharder)
    ]
    if drawn is not None:
        sharders = tier_sharders(
            ShardedTiers(tier_plan(drawn, 2 // drawn.ranks_per_node)), sharders
        )
    sharded = DistributedModelParallel(
        model, device=CPU, plan=ShardingPlan(plan=plan.plan), sharders=sharders
    )
    initialise_tables(sharded, initialisers, 0)
    logits = []
    for step in range(STEPS):
        loss, (_, out) = sharded(batch_of(2 * step + dist.get_rank(), 6))
        loss.backward()
        logits.append(out)
    state = sharded.state_dict()
    return {n: gather_table(state[n]) for n in state if "embedding" in n}, logits


def errors_of_codecs(make: type[nn.Module], drawn: ByTiers) -> list[tuple[float, float]]:
    """By table, and last of the outputs: how far TorchRec with codecs is from TorchRec without,
    and how far tiers with codecs are."""
    exact, plain, tiered = (
        coded(make, behind, codecs)
        for behind, codecs in ((None, False), (None, True), (drawn, True))
    )

    def far(found: tuple[dict[str, Tensor], list[Tensor]]) -> list[float]:
        tables = [float((found[0][name] - exact[0][name]).abs().max()) for name in exact[0]]
        outputs = zip(found[1], exact[1], strict=True)
        return [*tables, max(float((one - other).abs().max()) for one, other in outputs)]

    return list(zip(far(plain), far(tiered), strict=True))


@pytest.mark.parametrize(
    ("make", "drawn"),
    [
        (Sequences, ByTiers(ranks_per_node=1, seed=3)),
        (Sequences, ByTiers(ranks_per_node=2, seed=3, coalesce="node")),
        (Bags, ByTiers(ranks_per_node=1, seed=3)),
        (Bags, ByTiers(ranks_per_node=1, seed=3, coalesce="rank")),
    ],
)
def test_codecs_cost_no_more_behind_tiers(
    gloo_pool: GlooPool, make: type[nn.Module], drawn: ByTiers
) -> None:
    """Rows of replicas are exact, and the others' errors are of one kind with plain TorchRec's."""
    for found in gloo_pool.run(errors_of_codecs, make, drawn):
        for plain, tiered in found:
            assert 1e-7 < tiered < FACTOR * plain
            assert plain < 0.1
