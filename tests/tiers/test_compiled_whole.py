"""Ladder, one rank and two: a whole model that torch.compile compiles is evaluated as without, and
a backward that it would compile is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

import recd_plugins as rp
from recd_plugins.errors import CapabilityError
from recd_plugins.testing.batches import from_lists
from recd_plugins.testing.gloo import GlooPool

REGISTRY: dict[str, Any] = {
    "plugins": ["recd_scars"],
    "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "hot_batches": False},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
}


class Both(nn.Module):
    """Rows of one table and bags of another, neither of which looks at its batch's sizes."""

    def __init__(self) -> None:
        super().__init__()
        meta = torch.device("meta")
        rows = EmbeddingConfig(900, 8, name="t_seen", feature_names=["seen"])
        bags = EmbeddingBagConfig(900, 8, name="t_pages", feature_names=["pages"])
        self.rows = EmbeddingCollection([rows], device=meta)
        self.bags = EmbeddingBagCollection([bags], device=meta)

    def forward(self, features: Any) -> torch.Tensor:
        seen: torch.Tensor = self.rows(features)["seen"].values()
        pages: torch.Tensor = self.bags(features)["pages"]
        return seen.sum() + pages.sum()


def refused() -> None:
    """On a rank: a batch that is computed to be trained while compiled autograd is on."""
    ids = [[row % 7, row + 20, 3] for row in range(16)]
    batch = from_lists({"seen": ids, "pages": ids})
    model, stack = Both(), rp.load(REGISTRY)
    plan = stack.plan(model, batches=[batch] * 3)
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=stack.sharders()
    )
    with (
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")),
        pytest.raises(CapabilityError, match="as in TorchRec's TrainPipelineSparseDistComp"),
    ):
        sharded(batch)
    sharded(batch).backward()


def evaluated() -> tuple[list[float], list[float], int]:
    """On a rank: what a model comes to compiled and plainly, and how many tables have replicas."""
    ids = [[row % 7, row + 20, 3] for row in range(16)]
    batches = [from_lists({"seen": ids[at:], "pages": ids[at:]}) for at in range(3)]
    model, stack = Both(), rp.load(REGISTRY)
    plan = stack.plan(model, batches=batches)
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=stack.sharders()
    ).eval()
    compiled: Any = torch.compile(sharded, backend="aot_eager")
    with torch.no_grad():
        found = [[float(call(copy.copy(one))) for one in batches] for call in (compiled, sharded)]
    tables: Any = stack.planner()
    return found[0], found[1], len(tables.tier_plan.tables)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_is_compiled(gloo_pool: GlooPool, ranks: int) -> None:
    for compiled, plainly, tables in gloo_pool.run(evaluated, world_size=ranks):
        assert tables == 2
        assert compiled == plainly


def test_compiled_autograd_is_refused(gloo_pool: GlooPool) -> None:
    gloo_pool.run(refused, world_size=1)
