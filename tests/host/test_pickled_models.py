"""Ladder, one rank: a planned model that is pickled, copied or quantized before it is sharded, and
a stack that is neither pickled nor copied."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantizedBags

import recd_plugins as rp
from recd_plugins.errors import CapabilityError
from recd_plugins.testing.batches import from_lists
from recd_plugins.testing.gloo import GlooPool

REGISTRIES: list[dict[str, Any]] = [
    {"plugins": ["recd_flexshard"], "sharding": "flexshard"},
    {"plugins": ["recd_scars"], "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.5}},
]
"""By the second one, steps are counted until a hot batch comes."""


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingBagConfig(
            name="pages", embedding_dim=8, num_embeddings=40, feature_names=["pages"]
        )
        self.bags = EmbeddingBagCollection([table], device=torch.device("cpu"))

    def forward(self, features: Any) -> torch.Tensor:
        found: torch.Tensor = self.bags(features)["pages"]
        return found.sum()


def of_a_planned_model(registry: dict[str, Any]) -> tuple[list[str], list[str]]:
    """On a rank: the notices of a copy by pickle that trains by itself, and of the model that does
    so after it."""
    batches = [from_lists({"pages": [[row, row + 1] for row in range(8)]})] * 4
    model, stack = Bags(), rp.load(registry)
    stack.plan(model, batches=batches)
    pickled = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    again = pickle.loads(pickle.dumps(pickled))
    return noticed(again, batches), noticed(model, batches)


def noticed(model: nn.Module, batches: list[Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for batch in batches:
            model(batch).backward()
    return [str(one.message) for one in given]


@pytest.mark.parametrize("registry", REGISTRIES)
def test_a_planned_model_is_pickled(gloo_pool: GlooPool, registry: dict[str, Any]) -> None:
    ((of_pickled, of_model),) = gloo_pool.run(of_a_planned_model, registry, world_size=1)
    assert of_pickled == []
    assert any("the model trains unsharded" in one for one in of_model)


def of_a_quantized_collection(registry: dict[str, Any]) -> tuple[type, torch.Tensor, torch.Tensor]:
    """On a rank: what torch makes of a planned collection, and what that yields beside what the
    collection yields."""
    batch = from_lists({"pages": [[row, row + 1] for row in range(8)]})
    model = Bags()
    rp.load(registry).plan(model.bags, batches=[batch] * 4)
    weight = quantization.PlaceholderObserver.with_args(dtype=torch.qint8)
    activation = quantization.PlaceholderObserver.with_args(dtype=torch.float)
    quantized = quantization.quantize_dynamic(
        model,
        qconfig_spec={EmbeddingBagCollection: quantization.QConfig(activation, weight)},
        mapping={EmbeddingBagCollection: QuantizedBags},
    )
    return type(quantized.bags), quantized(batch), model(batch).detach()


@pytest.mark.parametrize("registry", REGISTRIES)
def test_a_planned_collection_is_quantized(gloo_pool: GlooPool, registry: dict[str, Any]) -> None:
    ((kind, quantized, plain),) = gloo_pool.run(of_a_quantized_collection, registry, world_size=1)
    assert kind is QuantizedBags
    torch.testing.assert_close(quantized, plain, rtol=0, atol=0.1)


@pytest.mark.parametrize("made", [pickle.dumps, copy.deepcopy])
def test_a_stack_is_neither_pickled_nor_copied(made: Any) -> None:
    with pytest.raises(CapabilityError, match=r"rp\.load in each process"):
        made(rp.load({"plugins": []}))
