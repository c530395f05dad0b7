"""Two gloo ranks: sums and means of one collection, sharded in several ways."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    ParameterShardingGenerator,
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.torchrec import divided_wrongly
from recd_plugins.data.batch import Batch
from recd_plugins.embedding.means import MeansSharder, with_means
from recd_plugins.notices import NoticeWarning
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.stack import load
from recd_plugins.testing.arrange import Arranged
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity

SUM, MEAN = PoolingType.SUM, PoolingType.MEAN
ROWS, DIM = 12, 8
TABLES: Mapping[str, tuple[PoolingType, list[str]]] = {
    "seen": (MEAN, ["a", "b"]),
    "bought": (SUM, ["c"]),
    "liked": (MEAN, ["d"]),
    "heard": (SUM, ["a"]),  # of a feature that is a mean too
    "read": (SUM, ["e"]),
}
KEYS = ["e", "a", "b", "c", "d"]


class Poolings(nn.Module):
    """Sums and means, of which two are of one feature."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=name,
                embedding_dim=DIM,
                num_embeddings=ROWS,
                feature_names=features,
                pooling=pooling,
            )
            for name, (pooling, features) in TABLES.items()
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        self.over = nn.Linear(6 * DIM, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pooled = self.bags(batch.features)
        keys = ["a@seen", "b", "c", "d", "a@heard", "e"]
        logits = self.over(torch.cat([pooled[key] for key in keys], dim=1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, (loss.detach(), logits.detach())


def batch_of(seed: int, size: int = 6) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(KEYS) * size,), generator=draw)
    return Batch(
        dense=torch.empty(size, 0),
        features=KeyedJaggedTensor(
            keys=KEYS,
            values=torch.randint(0, ROWS, (int(lengths.sum()),), generator=draw),
            lengths=lengths,
        ),
        labels=torch.randint(0, 2, (size,), generator=draw).float(),
        weights=torch.ones(size),
    )


@dataclass(frozen=True)
class InManyWays:
    """Row-wise but for one sum and one mean; by our sharder or by TorchRec's own."""

    alone: bool = True

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        own: Any = EmbeddingBagCollectionSharder(fused_params=optimizer.fused_params())
        ways: dict[str, ParameterShardingGenerator] = {
            name: row_wise(compute_kernel="fused") for name in TABLES
        }
        ways["bought"] = table_wise(rank=1, compute_kernel="fused")
        ways["liked"] = table_wise(rank=0, compute_kernel="fused")
        bags = model.get_submodule("bags")
        planned = construct_module_sharding_plan(bags, ways, sharder=own, device_type="cpu")
        sharders = with_means([own], model) if self.alone else [own]
        return Arranged(model, ShardingPlan(plan={"bags": planned}), sharders)


def test_means_alone_are_divided(gloo_pool: GlooPool) -> None:
    batches = [[batch_of(2 * step + rank) for rank in range(2)] for step in range(4)]
    check_parity(gloo_pool, Poolings, batches, arrange=InManyWays())


def outputs(arrange: InManyWays) -> tuple[list[str], dict[str, list[float]]]:
    """On a rank: what is said to be wrong, and bags of ones."""
    model = Poolings()
    arranged = arrange(model, OptimizerSettings())
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    for weight in sharded.state_dict().values():
        local = weight.local_shards() if hasattr(weight, "local_shards") else []
        for shard in local:
            shard.tensor.fill_(1.0)
    ids = KeyedJaggedTensor(
        keys=KEYS, values=torch.arange(10), lengths=torch.tensor([2] * len(KEYS))
    )
    bags: Any = sharded.module.bags
    wrong, pooled = divided_wrongly(sharded), bags(ids).wait()
    return wrong, {key: pooled[key][0].tolist() for key in pooled.keys()}  # noqa: SIM118


def test_a_sharder_of_torchrec_divides_more(gloo_pool: GlooPool) -> None:
    """If this fails, TorchRec has mended it: `MeansSharder` may go."""
    (wrong, found), _ = gloo_pool.run(outputs, InManyWays(alone=False), world_size=2)
    assert wrong == ["seen", "bought", "liked"]
    assert found["a@seen"][0] == pytest.approx(2.0 / (1 + 1e-6))  # a mean
    assert found["c"][0] == pytest.approx(2.0 / (2 + 1e-6))  # a sum
    assert found["d"][0] == pytest.approx(1.0 / (2 + 1e-6))  # a mean of ones
    (wrong, found), _ = gloo_pool.run(outputs, InManyWays(), world_size=2)
    assert not wrong
    means = {"a@seen", "b", "d"}
    for key, values in found.items():
        by = (2 + 1e-6 if key != "d" else 2) if key in means else 1
        assert values == pytest.approx([2.0 / by] * DIM), key


def stack_shards(*, ours: bool) -> tuple[list[str], list[str]]:
    """On a rank: a plan as TorchRec's planner makes them on GPUs; what is wrong, and the
    notices."""
    stack = load({})
    model = Poolings()
    stack.plan(model)
    arranged = InManyWays(alone=False)(model, OptimizerSettings())
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=arranged.plan,
        sharders=stack.sharders() if ours else arranged.sharders,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoticeWarning)
        sharded(batch_of(0))
    said = [str(one.message) for one in caught if one.category is NoticeWarning]
    return divided_wrongly(sharded), said


def test_a_stack_mends_it_or_says_so(gloo_pool: GlooPool) -> None:
    (wrong, said), _ = gloo_pool.run(stack_shards, ours=True, world_size=2)
    assert (wrong, said) == ([], [])
    (wrong, said), _ = gloo_pool.run(stack_shards, ours=False, world_size=2)
    assert wrong == ["seen", "bought", "liked"]
    (notice,) = said
    assert notice.startswith("the pooling of seen, bought, liked is computed wrongly: ")
    assert "sharders=stack.sharders()" in notice


def test_only_bags_with_means_beside_others_are_wrapped() -> None:
    own: Any = EmbeddingBagCollectionSharder()
    assert isinstance(with_means([own], Poolings())[0], MeansSharder)
    assert with_means([own], nn.Linear(1, 1)) == [own]
