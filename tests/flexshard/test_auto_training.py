"""Rung 3 (two gloo ranks): what `goal: auto` makes of pooled tables trains as plain TorchRec."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from test_planner import in_front
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_flexshard.config import FlexShardConfig
from recd_flexshard.flexshard_planner import FlexShardPlanner
from recd_plugins.data.batch import Batch
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.slots import Context
from recd_plugins.testing.arrange import Arranged, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity

SLOW = Topology(ranks_per_node=1, inter_node_gbps=0.001, intra_node_gbps=1)
ROWS = {"shops": 12, "cities": 20, "items": 3_000, "words": 3_000}
LOOKUPS = {"shops": 1, "cities": 1, "items": 8, "words": 8}
B, DIM = 32, 16


class Shops(nn.Module):
    """Two tables of few rows, whose rows are hot, and two of many that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"t_{name}", embedding_dim=DIM, num_embeddings=rows, feature_names=[name]
                )
                for name, rows in ROWS.items()
            ],
            device=torch.device("meta"),
        )
        self.over = nn.Linear(DIM * len(ROWS), 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pooled = self.bags(batch.features)
        logits = self.over(torch.cat([pooled[name] for name in ROWS], dim=1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, (loss.detach(), logits.detach())


def batch_of(seed: int) -> Batch:
    draw = np.random.default_rng(seed)
    ids = [draw.integers(0, rows, B * LOOKUPS[name]) for name, rows in ROWS.items()]
    return Batch(
        dense=torch.zeros(B, 0),
        features=KeyedJaggedTensor(
            keys=list(ROWS),
            values=torch.from_numpy(np.concatenate(ids)),
            lengths=torch.tensor(list(LOOKUPS.values()), dtype=torch.int32).repeat_interleave(B),
        ),
        labels=torch.from_numpy(draw.integers(0, 2, B)).float(),
        weights=torch.ones(B),
    )


def counted() -> list[Batch]:
    return [batch_of(1_000 + number) for number in range(20)]


@dataclass(frozen=True)
class Auto:
    """What the planner chooses on slow links, no table named."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        context = Context(batch_size=B, fused=optimizer.fused_params(), batches=counted)
        planner = FlexShardPlanner(FlexShardConfig(), in_front(context, {"search": "greedy"}))
        assert dist.group.WORLD is not None
        plan = planner.plan(model, SLOW, dist.group.WORLD)
        assert planner.tier_plan is not None
        assert set(planner.tier_plan.tables) == {"t_shops", "t_cities"}
        placed = plan.plan["bags"]
        kinds = {name: placed[name].sharding_type == "row_wise" for name in placed}
        assert kinds == {"t_shops": True, "t_cities": True, "t_items": False, "t_words": False}
        if dist.get_rank() == 0:
            assert planner.report is not None
            assert planner.report.ledger.ms < planner.report.torchrec.ms
            assert "each table its own way" in planner.explain()
        return Arranged(model, plan, planner.sharders())


def test_rows_of_hot_tables_travel_and_the_others_are_torchrecs(gloo_pool: GlooPool) -> None:
    batches = [[batch_of(2 * step + rank) for rank in range(2)] for step in range(12)]
    reference = BySharding("table_wise")
    check_parity(gloo_pool, Shops, batches, arrange=Auto(), reference=reference, tables=["sgd"])
