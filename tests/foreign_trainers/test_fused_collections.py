"""A trainer that fuses its optimizer into its collection, as TorchRec's nvt_dataloader does: two
gloo ranks are told why no table of it is planned, and what to do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fused_embeddingbag import FusedEmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.fused_embedding_modules import fuse_embedding_optimizer

import recd_plugins as rp
from recd_plugins.api import NoticeWarning
from recd_plugins.testing.gloo import GlooPool

CPU = torch.device("cpu")
SLOW = {"ranks_per_node": 1, "inter_node_gbps": 0.02}


def told(registry: dict[str, Any]) -> list[str]:
    """On a rank: the model trains a step; what was said of its plan."""
    table = EmbeddingBagConfig(
        name="item", embedding_dim=8, num_embeddings=40, feature_names=["item"]
    )
    bags = EmbeddingBagCollection(tables=[table], device=torch.device("meta"))
    net = fuse_embedding_optimizer(
        nn.ModuleDict({"bags": bags}),
        optimizer_type=torch.optim.SGD,
        optimizer_kwargs={"lr": 0.1},
        device=torch.device("meta"),
    )
    kjt = KeyedJaggedTensor(["item"], torch.arange(6) % 3, lengths=torch.ones(6).int())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stack = rp.load(registry)
        sharders: Any = [FusedEmbeddingBagCollectionSharder()]
        plan = stack.plan(net, batches=[kjt], sharders=sharders)
        model = DistributedModelParallel(net, device=CPU, plan=plan, sharders=stack.sharders())
        model.module["bags"](kjt).values().sum().backward()
    return [str(one.message) for one in caught if one.category is NoticeWarning]


@pytest.mark.parametrize(
    "slots",
    [
        {"plugins": ["recd_flexshard"], "sharding": {"use": "flexshard"}},
        {
            "plugins": ["recd_flexshard"],
            "sharding": {
                "use": "flexshard",
                "goal": "budget",
                "coalesce": "rank",
                "tables": ["item"],
            },
        },
        {"plugins": ["recd_scars"], "cache": {"use": "scars"}},
    ],
    ids=["flexshard", "named", "scars"],
)
def test_a_fused_collection_is_named_with_what_to_do(
    gloo_pool: GlooPool, slots: dict[str, Any]
) -> None:
    first, others = gloo_pool.run(told, {**slots, "topology": SLOW})
    assert others == []
    assert len(first) == 1
    assert "all tables of the model are in FusedEmbeddingBagCollection, which TorchRec" in first[0]
    assert "Leave TorchRec's `fuse_embedding_optimizer` out, and name the tables'" in first[0]


class Beside(nn.Module):
    """A fused collection, and others beside it."""

    def __init__(self) -> None:
        super().__init__()
        bags, fused = (
            EmbeddingBagCollection(
                tables=[
                    EmbeddingBagConfig(
                        name=name, embedding_dim=8, num_embeddings=4_000, feature_names=["item"]
                    )
                ],
                device=torch.device("meta"),
            )
            for name in ("plain", "fused")
        )
        self.bags = bags
        self.fused = fuse_embedding_optimizer(
            nn.ModuleDict({"bags": fused}),
            optimizer_type=torch.optim.SGD,
            optimizer_kwargs={"lr": 0.1},
            device=torch.device("meta"),
        )


def told_beside(registry: dict[str, Any]) -> tuple[list[str], str]:
    """On a rank: what was said of the plan of both, and what the stack explains."""
    kjt = KeyedJaggedTensor(["item"], torch.arange(600) % 3, lengths=torch.ones(600).int())
    sharders: Any = [
        FusedEmbeddingBagCollectionSharder(),
        EmbeddingBagCollectionSharder({"learning_rate": 0.1}),
    ]
    stack = rp.load(registry)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stack.plan(Beside(), batches=[kjt], sharders=sharders)
    return [str(one.message) for one in caught if one.category is NoticeWarning], stack.explain()


SCARS = {"plugins": ["recd_scars"], "cache": {"use": "scars", "hot_batches": False}}
AUTO = {"plugins": ["recd_flexshard"], "sharding": {"use": "flexshard", "goal": "auto"}}


@pytest.mark.parametrize("slots", [SCARS, AUTO], ids=["scars", "auto"])
def test_a_fused_collection_beside_others_is_named_once(
    gloo_pool: GlooPool, slots: dict[str, Any]
) -> None:
    (said, explained), (others, _) = gloo_pool.run(told_beside, {**slots, "topology": SLOW})
    assert others == []
    named = [one for one in said if "table fused is left to TorchRec" in one]
    assert len(named) == 1, said
    assert "gains less than it could" in named[0]
    assert "Leave TorchRec's `fuse_embedding_optimizer` out, and name the tables'" in named[0]
    assert "table fused is left to TorchRec" in explained


@pytest.mark.parametrize(
    "slots",
    [
        {**SCARS, "cache": {**SCARS["cache"], "tables": ["plain"]}},
        {**AUTO, "sharding": {**AUTO["sharding"], "tables": ["pl*"]}},
        {
            **AUTO,
            "sharding": {
                **AUTO["sharding"],
                "others": {"constraints": {"fused": {"sharding_types": ["table_wise"]}}},
            },
        },
        {},
    ],
    ids=["scars", "auto", "constrained", "nothing"],
)
def test_a_fused_collection_that_the_registry_leaves_out_is_not_named(
    gloo_pool: GlooPool, slots: dict[str, Any]
) -> None:
    (said, explained), _ = gloo_pool.run(told_beside, {**slots, "topology": SLOW})
    assert not any("fused" in one for one in said)
    assert "fused is left" not in explained
