"""A trainer that fuses its optimizer into its collection, as TorchRec's nvt_dataloader does: two
gloo ranks are told why no table of it is planned, and what to do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
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
