"""Rung 3 (ranks): pipelines that free a batch's memory once its ids are on their way. Two gloo
ranks train with replicas what they train plainly, though nothing can be read of it by then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from foreign import CPU, ROWS, Clicks, RowWiseBags, Summed, clicks, tier_plan
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.dist_data import KJTAllToAllTensorsAwaitable
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from trio import MINOR

from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.sharded import with_dedup
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

STEPS = 3
TABLES = {"user": "users", "tags": "tags"}
FEATURES = tuple(TABLES)
OPTIONS = {
    # Frees what a collection was handed, once it has put the features into an order of its own.
    "free_features_storage_early": FEATURES[::-1],
    # Frees what a collection sent to other ranks: what it was handed, if that is in its order.
    "clear_data_dist_inputs": FEATURES,
}
"""What a pipeline may free, and the order of the wide collection in which it is the batch."""


class WideAndDeep(nn.Module):
    """Two collections look up the same features, which are all that a batch has."""

    def __init__(self, wide: Sequence[str]) -> None:
        """The features in the order in which the `wide` collection has them."""
        super().__init__()
        self.deep = bags("", FEATURES, dim=8, pooling=PoolingType.MEAN)
        self.wide = bags("wide ", wide, dim=4, pooling=PoolingType.SUM)
        self.over = nn.Linear(2 * (8 + 4), 1)

    def forward(self, batch: Clicks) -> tuple[Tensor, Tensor]:
        deep, wide = self.deep(batch.sparse), self.wide(batch.sparse)
        inputs = [found[key] for found in (deep, wide) for key in FEATURES]
        logits = self.over(torch.cat(inputs, dim=1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.clicked)
        return loss, logits.detach()


def bags(
    prefix: str, features: Sequence[str], *, dim: int, pooling: PoolingType
) -> EmbeddingBagCollection:
    configs = [
        EmbeddingBagConfig(
            name=f"{prefix}{TABLES[feature]}",
            embedding_dim=dim,
            num_embeddings=ROWS[TABLES[feature]],
            feature_names=[feature],
            pooling=pooling,
        )
        for feature in features
    ]
    return EmbeddingBagCollection(configs, device=torch.device("meta"))


def batches() -> Iterator[Clicks]:
    for batch in clicks(STEPS, "plain"):
        keys = batch.sparse.keys()
        yield replace(batch, sparse=batch.sparse.permute([keys.index(key) for key in FEATURES]))


@contextmanager
def overwritten() -> Iterator[list[Tensor]]:
    """What would be freed has no ids any more, and is told. Memory that numpy has looked at, as it
    has at all ids on the CPU, cannot be freed."""
    freed: list[Tensor] = []

    def overwrite(*tensors: Tensor | None) -> int:
        freed.extend(one for one in tensors if one is not None)
        return sum(one.fill_(-7).nbytes for one in tensors if one is not None)

    def clear_storage(kjt: KeyedJaggedTensor) -> int:
        return overwrite(kjt._values, kjt._lengths, kjt._offsets, kjt._weights)

    def clear_inputs(exchange: KJTAllToAllTensorsAwaitable) -> int:
        for one in exchange._awaitables:
            one.wait()
        return overwrite(*exchange._input_tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyedJaggedTensor, "clear_storage", clear_storage)
        patch.setattr(KJTAllToAllTensorsAwaitable, "clear_inputs", clear_inputs)
        yield freed


def train(
    option: str,
    coalesce: Coalesce | None,
    rounding: AbstractContextManager[object] | None = None,
) -> dict[str, Tensor]:
    """With tiers in front of the deep collection if it says how they coalesce; the wide one is
    TorchRec's."""
    torch.manual_seed(0)
    net = WideAndDeep(OPTIONS[option])
    initialisers = table_initialisers(net)
    for part in (net.deep, net.wide):
        apply_optimizer_in_backward(torch.optim.SGD, part.parameters(), {"lr": 0.2})
    by_rows, whole = (BySharding(kind)(net, OptimizerSettings()).plan for kind in KINDS)
    plan = ShardingPlan({"deep": by_rows.plan["deep"], "wide": whole.plan["wide"]})
    sharders: list[Any] = [RowWiseBags()]
    if coalesce is not None:
        of_all = tier_plan()
        deep = {name: replace(of_all.tables[name], coalesce=coalesce) for name in ("users", "tags")}
        tiers = TierPlan(tables=deep, n_nodes=1, ranks_per_node=of_all.ranks_per_node)
        sharders = tier_sharders(ShardedTiers(tiers), sharders)
    model = DistributedModelParallel(net, device=CPU, plan=plan, sharders=sharders)
    initialise_tables(model, initialisers, 0)
    optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
    pipeline = TrainPipelineSparseDist(model, optimizer, CPU, **{option: True})
    stream = batches()
    with rounding or nullcontext(), overwritten() as freed:
        for _ in range(STEPS):
            pipeline.progress(stream)
    assert freed
    return {name: gather_table(value) for name, value in model.state_dict().items()}


KINDS = ("row_wise", "table_wise")


def trains_alike(option: str) -> None:
    """On a rank."""
    expected = plain_of(partial(train, option, None))
    levels: tuple[Coalesce, ...] = ("none", "rank", "node")
    for coalesce in levels:
        assert_alike(train(option, coalesce), *expected)


@pytest.mark.skipif(MINOR < 8, reason="TorchRec has no such options before 1.8")
@pytest.mark.parametrize("option", OPTIONS)
def test_a_batch_is_freed_once_its_ids_are_on_their_way(gloo_pool: GlooPool, option: str) -> None:
    gloo_pool.run(trains_alike, option)


class Sequences(nn.Module):
    """Three tables, of which TorchRec has the second in another way: so it puts features in an
    order of its own."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(name=key, embedding_dim=4, num_embeddings=40, feature_names=[key])
            for key in ("user", "heard", "tags")
        ]
        self.rows = EmbeddingCollection(tables, device=torch.device("meta"))
        self.summed = Summed()
        self.over = nn.Linear(3 * 4, 1)

    def forward(self, batch: Clicks) -> tuple[Tensor, Tensor]:
        found = self.rows(batch.sparse)
        user, heard, tags = found["user"], found["heard"], found["tags"]
        sums = [self.summed(one.values(), one.lengths()) for one in (user, heard, tags)]
        logits = self.over(torch.cat(sums, dim=1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.clicked)
        return loss, logits.detach()


def unique_batches() -> Iterator[Clicks]:
    """Batches in which two of the features have unique samples, and one has all."""
    group = ("user", "tags")
    for batch in clicks(STEPS, "plain"):
        unique = InverseKeyedJaggedTensor.from_kjt(batch.sparse, (group,))
        plain = without(batch.sparse, frozenset(group))
        yield replace(batch, sparse=SparseFeatures.of(plain, unique))


def train_parts(**options: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net = Sequences()
    initialisers = table_initialisers(net)
    apply_optimizer_in_backward(torch.optim.SGD, net.rows.parameters(), {"lr": 0.2})
    by_rows, whole = (BySharding(kind)(net, OptimizerSettings()).plan for kind in KINDS)
    own: Any = by_rows.plan["rows"]
    own["heard"] = whole.plan["rows"]["heard"]
    adapt(net, (("user", "tags"),), poolings=["summed"])
    sharders = with_dedup([EmbeddingCollectionSharder()])
    model = DistributedModelParallel(net, device=CPU, plan=by_rows, sharders=sharders)
    initialise_tables(model, initialisers, 0)
    optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
    pipeline = TrainPipelineSparseDist(model, optimizer, CPU, **options)
    stream = unique_batches()
    for _ in range(STEPS):
        pipeline.progress(stream)
    return {name: gather_table(value) for name, value in model.state_dict().items()}


def parts_free() -> None:
    """On a rank."""
    expected = train_parts()
    with overwritten() as freed:
        assert_equal(train_parts(free_features_storage_early=True), expected)
    assert freed
    assert_equal(train_parts(free_features_storage_early=True), expected)  # and as torch frees it


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, msg=name)


@pytest.mark.skipif(MINOR < 8, reason="TorchRec has no such option before 1.8")
def test_parts_of_a_collection_free_what_they_were_handed(gloo_pool: GlooPool) -> None:
    gloo_pool.run(parts_free)
