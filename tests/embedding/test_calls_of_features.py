"""Rung 1 (values): the calls of Python that a feature on unique samples adds to a step.

They are counted, so that no load of the machine changes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch
from mixed import Summed
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.embedding.adapt import adapt
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without

BATCH, DIM, ROWS = 6, 4, 10


class Sums(nn.Module):
    """Features [B, F, D], summed by a collection."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"t_{name}", num_embeddings=ROWS, embedding_dim=DIM, feature_names=[name]
                )
                for name in names
            ]
        )

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return torch.stack([*self.bags(features).to_dict().values()], dim=1)


class Pooled(nn.Module):
    """Features [B, F, D], each through a pooling."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.sequences = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=f"t_{name}", num_embeddings=ROWS, embedding_dim=DIM, feature_names=[name]
                )
                for name in names
            ]
        )
        self.pooling = Summed()

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        embedded = self.sequences(features).values()
        return torch.stack([self.pooling(one.values(), one.lengths()) for one in embedded], dim=1)


@pytest.mark.parametrize(("model", "most"), [(Sums, 15), (Pooled, 65)])
def test_a_feature_on_unique_samples_adds_few_calls(
    model: Callable[[list[str]], nn.Module], most: float
) -> None:
    few, many = (_added(model, count) for count in (8, 40))
    assert (many - few) / 32 < most


def _added(model: Callable[[list[str]], nn.Module], count: int) -> int:
    """The calls of a step of so many features on unique samples, less those of a step without."""
    names = [f"f{index}" for index in range(count)]
    groups = tuple((name,) for name in names)
    plain, unique = model([*names, "other"]), adapt(model([*names, "other"]), groups)
    calls = []
    for net, deduplicated in ((plain, False), (unique, True)):
        for _ in range(2):  # in the first one modules are loaded, and what is kept is found
            found = _calls_of_step(net, _features(names, deduplicated=deduplicated))
        calls.append(found)
    return calls[1] - calls[0]


def _features(names: list[str], *, deduplicated: bool) -> KeyedJaggedTensor | SparseFeatures:
    ids = torch.arange(BATCH) // 2 % ROWS  # each twice
    whole = KeyedJaggedTensor(
        keys=[*names, "other"],
        values=ids.repeat(len(names) + 1),
        lengths=torch.ones(BATCH * (len(names) + 1), dtype=torch.int64),
        stride=BATCH,
    )
    if not deduplicated:
        return whole
    ikjt = InverseKeyedJaggedTensor.from_kjt(whole, [[name] for name in names])
    return SparseFeatures(without(whole, names), ikjt)


def _calls_of_step(net: nn.Module, features: KeyedJaggedTensor | SparseFeatures) -> int:
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        net(features).sum().backward()
    finally:
        sys.setprofile(before)
    return count
