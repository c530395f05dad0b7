"""Rung 3 (two gloo ranks): sums and means of one collection, sharded in several ways, are those of
the unsharded collection."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel, comm
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    ParameterShardingGenerator,
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    grid_shard,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    get_embedding_names_by_table,
)
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionModule,
    MCHManagedCollisionModule,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor
from trio import MINOR

from recd_plugins.compat.mean_division import divided_wrongly
from recd_plugins.data.batch import Batch
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.corrected_sharders import with_means
from recd_plugins.embedding.sharded import with_dedup
from recd_plugins.embedding.wrapped_sharder import AdjustingSharder
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without
from recd_plugins.stack import load
from recd_plugins.testing.arrange import Arranged
from recd_plugins.testing.batches import from_lists
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

META = torch.device("meta")
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
GROUPS = (("a", "b"), ("c",))


def configs_of(tables: Mapping[str, tuple[Any, ...]]) -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(
            name=name,
            embedding_dim=DIM if name in TABLES else DIM * (1 + number % 2),
            num_embeddings=ROWS,
            feature_names=[*features],
            pooling=pooling,
        )
        for number, (name, (pooling, features, *_)) in enumerate(tables.items())
    ]


class Poolings(nn.Module):
    """Sums and means, of which two are of one feature."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(configs_of(TABLES), device=META)
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


def deduplicated(batch: Batch) -> Batch:
    unique = {key for group in GROUPS for key in group}
    dedup = InverseKeyedJaggedTensor.from_kjt(batch.features, GROUPS)
    return dataclasses.replace(batch, features=without(batch.features, unique), dedup=dedup)


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


@dataclass(frozen=True)
class BehindPlugins(InManyWays):
    """Unique samples of `a` and `b`, and of `c`; rows of `seen` and `heard` are in tiers."""

    coalesce: Coalesce = "none"

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        arranged = InManyWays(alone=False)(model, optimizer)
        rows = np.arange(ROWS)
        tables = {
            name: TablePlan(
                table=name, replicated=rows[::3], per_node=rows[1::3], coalesce=self.coalesce
            )
            for name in ("seen", "heard")
        }
        sharded_tiers = ShardedTiers(TierPlan(tables=tables, n_nodes=2, ranks_per_node=1))
        adapt(model, GROUPS, unique_shares=(0.2, 0.9))
        sharders = with_dedup(tier_sharders(sharded_tiers, arranged.sharders))
        return arranged._replace(sharders=with_means(sharders, model))


@dataclass(frozen=True)
class OnUniqueSamples(InManyWays):
    """Unique samples of `a` and `b`, and of `c`, whose tables are one part, without tiers."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        arranged = InManyWays(alone=False)(model, optimizer)
        adapt(model, GROUPS)
        sharders = with_dedup(arranged.sharders)
        return arranged._replace(sharders=with_means(sharders, model) if self.alone else sharders)


BATCHES = [[batch_of(2 * step + rank) for rank in range(2)] for step in range(4)]


def test_means_alone_are_divided(gloo_pool: GlooPool) -> None:
    check_parity(gloo_pool, Poolings, BATCHES, arrange=InManyWays())


@pytest.mark.parametrize("coalesce", ["none", "rank"])
def test_behind_tiers_and_on_unique_samples(gloo_pool: GlooPool, coalesce: Coalesce) -> None:
    unique = [[deduplicated(batch) for batch in step] for step in BATCHES]
    check_parity(
        gloo_pool,
        Poolings,
        unique,
        arrange=BehindPlugins(coalesce=coalesce),
        reference_batches=BATCHES,
        tables=["sgd", "rowwise_adagrad"],
    )


def test_on_unique_samples_alone(gloo_pool: GlooPool) -> None:
    unique = [[deduplicated(batch) for batch in step] for step in BATCHES]
    check_parity(gloo_pool, Poolings, unique, arrange=OnUniqueSamples(), reference_batches=BATCHES)


@dataclass(frozen=True)
class BehindSome(InManyWays):
    """Unique samples of `a` and `b`, and of `c`; of their tables the rows of one travel, and
    TorchRec sums those of the others."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        arranged = InManyWays(alone=False)(model, optimizer)
        seen = TablePlan(table="seen", replicated=np.arange(ROWS)[::3], coalesce="rank")
        sharded_tiers = ShardedTiers(TierPlan(tables={"seen": seen}, n_nodes=2, ranks_per_node=1))
        adapt(model, GROUPS)
        sharders = with_dedup(tier_sharders(sharded_tiers, arranged.sharders))
        return arranged._replace(sharders=with_means(sharders, model))


def repeating(seed: int, unique: int, size: int = 6) -> Batch:
    """A batch of so many unique samples."""
    draw = np.random.default_rng(seed)
    drawn = {
        key: [draw.integers(0, ROWS, count).tolist() for count in draw.integers(1, 4, unique)]
        for key in KEYS
    }
    lists = {key: [rows[n % unique] for n in range(size)] for key, rows in drawn.items()}
    return dataclasses.replace(batch_of(seed, size), features=from_lists(lists))


def test_ranks_may_differ_in_unique_samples_where_some_rows_travel(gloo_pool: GlooPool) -> None:
    batches = [
        [repeating(2 * step, unique=2), repeating(2 * step + 1, unique=5)] for step in (0, 1)
    ]
    unique = [[deduplicated(batch) for batch in step] for step in batches]
    check_parity(
        gloo_pool, Poolings, unique, arrange=BehindSome(), reference_batches=batches, tables=["sgd"]
    )


def test_parts_that_divide_more_are_found(gloo_pool: GlooPool) -> None:
    (wrong, _), _ = gloo_pool.run(outputs, OnUniqueSamples(alone=False), world_size=2)
    assert wrong == ["seen", "bought", "heard"]
    (wrong, _), _ = gloo_pool.run(outputs, OnUniqueSamples(), world_size=2)
    assert not wrong


# Any way that TorchRec shards bags, by their outputs.

Tables = Mapping[str, tuple[PoolingType, list[str], str]]
"""How each table pools, its features, and its way of `ways`."""

MIXED: Tables = {
    "a": (MEAN, ["f", "g"], "rows"),
    "b": (SUM, ["f"], "rows"),
    "c": (SUM, ["f"], "rows"),
    "d": (MEAN, ["h"], "columns"),
    "e": (SUM, ["h", "i"], "columns"),
    "f": (MEAN, ["i"], "replicas"),
    "g": (SUM, ["j"], "replicas"),
    "h": (SUM, ["g", "k"], "rank 1"),
    "i": (MEAN, ["l"], "rank 0"),
    "j": (SUM, ["j"], "rank 0"),
    "k": (MEAN, ["k"], "node"),
    "l": (SUM, ["l"], "node"),
    "m": (MEAN, ["m"], "grid"),
    "n": (SUM, ["m", "n"], "grid"),
}
VARIABLE: Tables = {  # on the CPU, TorchRec has no two kernels for them on a rank
    "a": (MEAN, ["f"], "rows"),
    "b": (SUM, ["g"], "rank 1"),
    "c": (MEAN, ["h", "i"], "rows"),
}
SHARED: Tables = {**VARIABLE, "d": (SUM, ["h"], "rank 0")}
IN_ORDER: Tables = {
    "a": (MEAN, ["i"], "rank 0"),
    "b": (SUM, ["h"], "rank 1"),
    "c": (MEAN, ["g"], "rows"),
}
MANY: Tables = {
    "a": (MEAN, ["i"], "rank 0"),
    "b": (SUM, ["g", "h"], "rank 1"),
    "c": (MEAN, ["g"], "rows"),
    "d": (SUM, ["g"], "rows"),
    "e": (MEAN, ["f"], "columns"),
}


def ways() -> Mapping[str, ParameterShardingGenerator]:
    return {
        "rows": row_wise(),
        "columns": column_wise(ranks=[1, 0]),
        "replicas": data_parallel(),
        "rank 0": table_wise(rank=0),
        "rank 1": table_wise(rank=1),
        "node": table_row_wise(host_index=0),
        "grid": grid_shard(host_indexes=[0]),
    }


class Compared:
    """On a rank: bags of the tables, sharded, beside those of the unsharded collection."""

    def __init__(self, tables: Tables, *, alone: bool = True) -> None:
        configs = configs_of(tables)
        torch.manual_seed(0)
        self.whole, model = (
            nn.ModuleDict(
                {"bags": EmbeddingBagCollection(configs, device=device), "over": nn.Linear(1, 1)}
            )
            for device in (torch.device("cpu"), META)
        )
        own: Any = EmbeddingBagCollectionSharder()
        self.ways = {name: way for name, (_, _, way) in tables.items()}
        self.sharded = DistributedModelParallel(
            model,
            device=torch.device("cpu"),
            plan=ShardingPlan(plan={"bags": self.plan(own)}),
            sharders=with_means([own], model) if alone else [own],
        )
        self.sharded.load_state_dict(self.whole.state_dict())

    def plan(self, own: Any) -> Any:
        generators = {name: ways()[way] for name, way in self.ways.items()}
        bags = self.whole["bags"]
        found = construct_module_sharding_plan(bags, generators, sharder=own, device_type="cpu")
        for name, way in self.ways.items():
            found[name].compute_kernel = "dense" if way == "replicas" else "fused"
        return found

    def differ(self, features: KeyedJaggedTensor) -> list[str]:
        """The keys of bags that are not alike."""
        theirs, ours = self.whole["bags"](features), self.sharded.module["bags"](features).wait()
        assert sorted(theirs.keys()) == sorted(ours.keys())
        theirs = theirs.to_dict()
        return [key for key in theirs if not torch.allclose(ours[key], theirs[key], rtol=1e-5)]


def features_of(
    tables: Tables, seed: int, *, variable: bool = False, samples: int = 5
) -> KeyedJaggedTensor:
    """Bags of 0 to 3 ids, of one feature none; keys in another order than the tables'."""
    keys = sorted({feature for _, features, _ in tables.values() for feature in features})[::-1]
    draw = torch.Generator().manual_seed(seed)
    sizes = [2 + number if variable else samples for number in range(len(keys))]
    none = torch.arange(len(keys)).eq(seed % len(keys)).repeat_interleave(torch.tensor(sizes))
    lengths = torch.randint(0, 4, (sum(sizes),), generator=draw).masked_fill(none, 0)
    inverse = [torch.randint(0, max(1, size), (5,), generator=draw) for size in sizes]
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.randint(0, ROWS, (int(lengths.sum()),), generator=draw),
        lengths=lengths,
        stride_per_key_per_rank=[[size] for size in sizes] if variable else None,
        inverse_indices=(keys, torch.stack(inverse)) if variable else None,
    )


@contextmanager
def own_nodes() -> Iterator[None]:
    """TorchRec keeps the groups of nodes for good, which are those of another world in a pool."""
    comm._INTRA_PG = comm._CROSS_PG = None
    yield
    comm._INTRA_PG = comm._CROSS_PG = None


def in_every_way(*, alone: bool) -> tuple[list[str], list[list[str]]]:
    """What is said to be wrong, and what is, batch by batch."""
    with own_nodes():
        compared = Compared(MIXED, alone=alone)
        batches = [features_of(MIXED, 2 * step + dist.get_rank()) for step in range(4)]
        return divided_wrongly(compared.sharded), [compared.differ(batch) for batch in batches]


def test_every_way_that_tables_are_sharded(gloo_pool: GlooPool) -> None:
    (wrong, differ), _ = gloo_pool.run(in_every_way, alone=False)
    by_table = dict(zip(MIXED, get_embedding_names_by_table(configs_of(MIXED)), strict=True))
    keys = {key for batch in differ for key in batch}
    assert wrong == [name for name in MIXED if keys & {*by_table[name]}]
    for wrong, differ in gloo_pool.run(in_every_way, alone=True):
        assert not wrong
        assert not any(differ)


def without_samples(tables: Tables) -> list[list[str]]:
    """Of two batches without a sample, the first and a later one, which the unsharded collection
    does not take; and of those between."""
    compared = Compared(tables)
    wrong = []
    for seed, samples in enumerate((0, 5, 0, 5)):
        features = features_of(tables, seed, samples=samples)
        if samples:
            wrong.append(compared.differ(features))
            continue
        found: KeyedTensor = compared.sharded.module["bags"](features).wait()
        widths = dict(zip(found.keys(), found.length_per_key(), strict=True))
        bags = found.to_dict()
        wrong.append([key for key, one in bags.items() if one.shape != (0, widths[key])])
    return wrong


@pytest.mark.parametrize("tables", [IN_ORDER, MANY], ids=["in order", "many"])
def test_a_batch_may_have_no_sample(gloo_pool: GlooPool, tables: Tables) -> None:
    """TorchRec can divide none where a table that takes means is row-wise; else it can."""
    assert gloo_pool.run(without_samples, tables) == [[[]] * 4] * 2


def of_variable_sizes(tables: Tables) -> list[list[str]]:
    compared = Compared(tables)
    return [compared.differ(features_of(tables, step, variable=True)) for step in range(3)]


@pytest.mark.parametrize("tables", [VARIABLE, SHARED], ids=["a feature each", "shared"])
def test_keys_that_differ_in_batch_size(gloo_pool: GlooPool, tables: Tables) -> None:
    assert gloo_pool.run(of_variable_sizes, tables) == [[[], [], []]] * 2


def moved(tables: Tables) -> list[list[str]]:
    """A step, and others once two tables have changed their ranks."""
    compared = Compared(tables)
    before = compared.differ(features_of(tables, 0))
    compared.ways |= {"a": "rank 1", "b": "rank 0"}
    plan = compared.plan(EmbeddingBagCollectionSharder())
    compared.sharded.reshard({"bags": (0.0, {name: plan[name] for name in "ab"})}, "bags")
    return [before, *(compared.differ(features_of(tables, seed)) for seed in (1, 2))]


@pytest.mark.parametrize("tables", [IN_ORDER, MANY], ids=["in order", "many"])
def test_tables_that_move(gloo_pool: GlooPool, tables: Tables) -> None:
    assert gloo_pool.run(moved, tables) == [[[], [], []]] * 2


def managed() -> dict[str, float]:
    """Bags of three ones, whose ids are managed: the module makes the divisor of its collection."""
    configs = configs_of({"a": (MEAN, ["g"]), "b": (SUM, ["f"]), "c": (SUM, ["f"])})
    managers: dict[str, ManagedCollisionModule] = {
        config.name: MCHManagedCollisionModule(
            zch_size=ROWS,
            device=torch.device("cpu"),
            input_hash_size=100,
            eviction_interval=2,
            buckets=2,  # TorchRec plans as many for each rank
            eviction_policy=DistanceLFU_EvictionPolicy(),
        )
        for config in configs
    }
    bags = ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection(configs, device=META),
        ManagedCollisionCollection(managers, configs),
    )
    own: Any = ManagedCollisionEmbeddingBagCollectionSharder()
    rows = {config.name: row_wise(compute_kernel="fused") for config in configs}
    plan = construct_module_sharding_plan(bags, rows, sharder=own, device_type="cpu")
    model = nn.ModuleDict({"bags": bags})
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=ShardingPlan(plan={"bags": plan}),
        sharders=with_means([own], model),
    )
    for name, weight in sharded.state_dict().items():
        for shard in weight.local_shards() if name.endswith(".weight") else []:
            shard.tensor.fill_(1.0)
    ids = KeyedJaggedTensor(keys=["f", "g"], values=torch.arange(6), lengths=torch.tensor([3, 3]))
    pooled = sharded.module["bags"](ids)[0].wait()
    return {key: bag[0, 0].item() for key, bag in pooled.to_dict().items()}


@pytest.mark.skipif(MINOR < 6, reason="TorchRec itself divides managed bags by nothing")
def test_ids_that_are_managed(gloo_pool: GlooPool) -> None:
    expected = pytest.approx({"g": 1.0, "f@b": 3.0, "f@c": 3.0}, rel=2e-6)
    assert gloo_pool.run(managed) == [expected] * 2


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
    """If this fails, TorchRec has mended it: `with_means` may go."""
    (wrong, found), _ = gloo_pool.run(outputs, InManyWays(alone=False), world_size=2)
    assert wrong == ["seen", "bought", "liked", "heard"]
    assert found["a@seen"][0] == pytest.approx(2.0 / (1 + 1e-6))  # a mean
    assert found["a@heard"][0] == pytest.approx(2.0 / (2 + 1e-6))  # a sum
    assert found["c"][0] == pytest.approx(2.0 / (2 + 1e-6))  # another
    assert found["d"][0] == pytest.approx(1.0 / (2 + 1e-6))  # a mean of ones
    (wrong, found), _ = gloo_pool.run(outputs, InManyWays(), world_size=2)
    assert not wrong
    means = {"a@seen", "b", "d"}
    for key, values in found.items():
        by = (2 + 1e-6 if key != "d" else 2) if key in means else 1
        assert values == pytest.approx([2.0 / by] * DIM), key


def stack_shards(*, ours: bool, of_a_copy: bool = False) -> tuple[list[str], list[str]]:
    """On a rank: a plan as TorchRec's planner makes them on GPUs; what is wrong, and the
    notices."""
    stack = load({})
    model = Poolings()
    stack.plan(Poolings() if of_a_copy else model)
    arranged = InManyWays(alone=False)(model, OptimizerSettings())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoticeWarning)
        sharded = DistributedModelParallel(
            model,
            device=torch.device("cpu"),
            plan=arranged.plan,
            sharders=stack.sharders() if ours else arranged.sharders,
        )
        sharded(batch_of(0))
    said = [str(one.message) for one in caught if one.category is NoticeWarning]
    return divided_wrongly(sharded), said


def test_a_stack_mends_it_or_says_so(gloo_pool: GlooPool) -> None:
    (wrong, said), _ = gloo_pool.run(stack_shards, ours=True, world_size=2)
    assert (wrong, said) == ([], [])
    (wrong, said), _ = gloo_pool.run(stack_shards, ours=True, of_a_copy=True, world_size=2)
    assert not wrong
    assert "the model that stack.plan was given is gone" in said[0]
    (wrong, said), _ = gloo_pool.run(stack_shards, ours=False, world_size=2)
    assert wrong == ["seen", "bought", "liked", "heard"]
    (notice,) = said
    assert notice.startswith("the pooling of seen, bought, liked, heard is computed wrongly: ")
    assert "sharders=stack.sharders()" in notice


def adapted_alone() -> list[str]:
    """On a rank: a model that a stack adapts, and the trainer plans; what is wrong."""
    dedup = {"use": "exact", "groups": [list(group) for group in GROUPS]}
    stack = load({"plugins": ["recd_dedup"], "dedup": dedup})
    model = stack.adapt(Poolings())
    arranged = InManyWays(alone=False)(model, OptimizerSettings())
    sharders = stack.sharders(arranged.sharders)
    return divided_wrongly(
        DistributedModelParallel(
            model, device=torch.device("cpu"), plan=arranged.plan, sharders=sharders
        )
    )


def test_a_stack_mends_it_in_a_model_that_the_trainer_plans(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(adapted_alone) == [[]] * 2


def test_only_bags_of_models_with_means_are_wrapped() -> None:
    own: Any = EmbeddingBagCollectionSharder()
    assert isinstance(with_means([own], Poolings())[0], AdjustingSharder)
    assert with_means([own], nn.Linear(1, 1)) == [own]
