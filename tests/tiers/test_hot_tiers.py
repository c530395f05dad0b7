"""Hot batches behind tiers: two and four gloo ranks, held to row-wise TorchRec, their traffic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tiered import (
    Bags,
    ByTiers,
    Sequences,
    batch_of,
    confined,
    filled,
    row_wise_of,
    sharded_tiers_of,
    tables,
    tier_plan,
)
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.sharding_plan import (
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
)
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.sharded import with_dedup
from recd_plugins.errors import DataError
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.testing.arrange import Arranged, Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike, check_parity
from recd_plugins.testing.rounding import plain_of
from recd_plugins.tiers.collections.tiered_module import TieredModule
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers
from recd_plugins.trainer.measure.traffic import TrafficCounter

GROUPS = (("heard", "seen"),)
Model = DistributedModelParallel


def hot_batch(plan: TierPlan, seed: int, batch_size: int) -> Batch:
    """Of ids that are replicated in all tables that look them up."""
    replicated = {name: table.replicated for name, table in plan.tables.items()}
    batch = confined(batch_of(seed, batch_size), replicated)
    return dataclasses.replace(batch, hot_under=plan.version)


def mixed(
    drawn: ByTiers, world_size: int, steps: int = 5, *, even: bool = False
) -> list[Sequence[Batch]]:
    """By step and rank: hot and normal steps; unless even, of all sizes, some hot ones empty."""
    plan = tier_plan(drawn, world_size // drawn.ranks_per_node)
    found = []
    for step in range(steps):
        sizes = [6 if even else (step * 3 + rank * 5) % 8 for rank in range(world_size)]
        seeds = [step * world_size + rank for rank in range(world_size)]
        both = list(zip(seeds, sizes, strict=True))
        if step % 3 == 1:
            found.append([batch_of(seed, max(1, size)) for seed, size in both])
        else:
            found.append([hot_batch(plan, seed, size) for seed, size in both])
    return found


@pytest.mark.parametrize(
    ("model", "drawn", "world_size"),
    [
        (Sequences, ByTiers(2, seed=3), 4),
        (Sequences, ByTiers(2, seed=3, coalesce="rank", chunk_rows=4), 2),
        (Bags, ByTiers(2, seed=3), 4),
        (Bags, ByTiers(1, seed=3, tiers="replicated"), 2),
        (Bags, ByTiers(2, seed=3, tiers="replicated", coalesce="rank"), 2),
    ],
    ids=["sequences", "coalesced", "bags", "nodes of one", "row bags"],
)
def test_hot_and_normal_batches_train_as_torchrec(
    gloo_pool: GlooPool, model: Callable[[], nn.Module], drawn: ByTiers, world_size: int
) -> None:
    # Row-wise, TorchRec's EmbeddingBagCollection takes no ranks of uneven batches on gloo.
    even = model is Bags and world_size == 2
    batches = mixed(drawn, world_size, even=even)
    sizes = [{len(batch) for batch in step} for step in batches if step[0].hot]
    assert all(len(one) == 1 if even else len(one) > 1 for one in sizes)
    assert even or any(0 in one for one in sizes)
    check_parity(
        gloo_pool,
        model,
        batches,
        arrange=drawn,
        reference=BySharding("row_wise") if even or model is Sequences else None,
        reference_batches=filled(batches),
        tables=("sgd", "rowwise_adagrad"),
    )


@dataclasses.dataclass(frozen=True)
class Adapted:
    """Behind tiers, and looked up by unique samples."""

    drawn: ByTiers

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        arranged = self.drawn(adapt(model, GROUPS), optimizer)
        return Arranged(model, arranged.plan, with_dedup(arranged.sharders))


def deduplicated(batch: Batch) -> Batch:
    dedup = InverseKeyedJaggedTensor.from_kjt(batch.features, GROUPS)
    rest = batch.features.permute([batch.features.keys().index("liked")])
    return dataclasses.replace(batch, features=rest, dedup=dedup)


@pytest.mark.parametrize("model", [Sequences, Bags])
def test_unique_samples_of_hot_batches(gloo_pool: GlooPool, model: Callable[[], nn.Module]) -> None:
    drawn = ByTiers(2, seed=3, tiers="replicated")
    batches = mixed(drawn, 2, even=True)
    check_parity(
        gloo_pool,
        model,
        [[deduplicated(batch) for batch in step] for step in batches],
        arrange=Adapted(drawn),
        reference=BySharding("row_wise"),
        reference_batches=batches,
        tables=["sgd"],
    )


def build(arrange: Arrangement, kind: Callable[[], nn.Module]) -> Model:
    optimizer = OptimizerSettings(tables="sgd", tables_lr=0.1)
    torch.manual_seed(0)
    model = kind()
    initialisers = table_initialisers(model)
    arranged = arrange(model, optimizer)
    sharded = DistributedModelParallel(
        arranged.model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(sharded, initialisers, 0)
    return sharded


def traffic_of_steps() -> list[dict[str, float]]:
    """On a rank: bytes by collective of a hot and a normal step, of sequences and of bags."""
    drawn = ByTiers(2, seed=3)
    plan, rank = tier_plan(drawn, dist.get_world_size() // 2), dist.get_rank()
    found = []
    for kind in (Sequences, Bags):
        model = build(drawn, kind)
        for batch in (hot_batch(plan, rank, 6), hot_batch(plan, 9 + rank, 6), batch_of(rank, 6)):
            with TrafficCounter() as counter:
                model(batch)[0].backward()
            found.append({name: sum(sizes.values()) for name, sizes in counter.traffic.items()})
    return found


@pytest.mark.parametrize(
    ("world_size", "of_gradients"), [(2, {"all_reduce"}), (4, {"all_reduce", "reduce"})]
)
def test_a_hot_step_makes_no_all_to_all(
    gloo_pool: GlooPool, world_size: int, of_gradients: set[str]
) -> None:
    for found in gloo_pool.run(traffic_of_steps, world_size=world_size):
        for first, hot, normal in (found[:3], found[3:]):
            assert "all_to_all" not in first
            assert hot.keys() == {*of_gradients, "send"}  # marks, and of two nodes rows
            assert normal["all_to_all"] > 0


def prefetched_and_looked_up() -> list[tuple[list[list[int]], list[list[int]]]]:
    """On a rank: the ids that TorchRec's lookups are to prefetch of a hot and of a normal batch,
    and those that they look up; of sequences and of bags."""
    drawn = ByTiers(2, seed=3)
    plan, rank = tier_plan(drawn, dist.get_world_size() // 2), dist.get_rank()
    found = []
    for kind in (Sequences, Bags):
        (module,) = (one for one in build(drawn, kind).modules() if isinstance(one, TieredModule))
        for batch in (hot_batch(plan, rank, 6), batch_of(rank, 6)):
            prefetched: list[list[int]] = []
            looked_up: list[list[int]] = []
            context = module.create_context()
            ids = module.input_dist(context, batch.features).wait().wait()
            with pytest.MonkeyPatch.context() as patch:
                for lookup in module._lookups:
                    patch.setattr(lookup, "prefetch", noting(prefetched))
                    patch.setattr(lookup, "forward", noting(looked_up, lookup.forward))
                module.prefetch(ids, None, context)
                module.compute_and_output_dist(context, ids).wait()
            found.append((prefetched, looked_up))
    return found


def noting(ids: list[list[int]], then: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Note the ids of a KJT that is handed over, `then` do what is done with it."""

    def call(sparse_features: KeyedJaggedTensor, **_: object) -> Any:
        ids.append(sparse_features.values().tolist())
        return then(sparse_features) if then is not None else None

    return call


def test_a_pipeline_prefetches_what_is_looked_up(gloo_pool: GlooPool) -> None:
    """PrefetchTrainPipelineSparseDist asks for it, and caches of a GPU alone (UVM) take it in."""
    for found in gloo_pool.run(prefetched_and_looked_up):
        for hot, normal in (found[:2], found[2:]):
            assert hot == ([], [])
            assert normal[0] == normal[1] != []


def refused_marks() -> list[str]:
    drawn = ByTiers(2, seed=3)
    plan = tier_plan(drawn, 1)
    messages = []
    for kind in (Sequences, Bags):
        model = build(drawn, kind)
        try:
            model(dataclasses.replace(batch_of(5, 6), hot_under=plan.version))
        except DataError as error:
            messages.append(str(error))
    return messages


def test_a_marked_batch_with_an_id_that_is_not_replicated_is_refused(gloo_pool: GlooPool) -> None:
    for messages in gloo_pool.run(refused_marks):
        assert len(messages) == 2
        assert all("marked hot, but id" in one and "of table 'songs'" in one for one in messages)


def retier_under_way() -> None:
    """On a rank: plans change in TorchRec's pipeline, which has marked batches in flight."""
    drawn = ByTiers(2, seed=3)
    plan = tier_plan(drawn, n_nodes=1)
    world_size, rank = dist.get_world_size(), dist.get_rank()

    def train(behind: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = build(behind, Sequences)
        optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
        pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
        stream: Iterator[Batch] = iter(
            [hot_batch(plan, step * world_size + rank, 6) for step in range(6)]
        )
        with rounding:
            for number in range(6):
                if behind is drawn and number in (2, 4):
                    # Marks of the first plan mean nothing under the second, all again after it.
                    drawn_now = dataclasses.replace(drawn, seed=9 if number == 2 else 3)
                    sharded_tiers_of(model).retier(tier_plan(drawn_now, n_nodes=1))
                pipeline.progress(stream)
        return tables(model)

    assert_alike(train(drawn, nullcontext()), *row_wise_of(train, Sequences))


@dataclasses.dataclass(frozen=True)
class CopiedArtists:
    """Artists are data-parallel, songs row-wise: of these, some or none have replicas."""

    replicated: tuple[int, ...] = ()

    def plan(self) -> TierPlan:
        songs = TablePlan(table="songs", replicated=np.array(self.replicated, np.int64))
        return TierPlan(tables={"songs": songs}, n_nodes=1, ranks_per_node=2)

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        arranged = BySharding("row_wise")(model, optimizer)
        places: Any = arranged.plan.plan["bags"]
        artists = {"artists": data_parallel()}
        sharder: Any = arranged.sharders[0]
        places |= construct_module_sharding_plan(
            model.get_submodule("bags"),
            {**artists, "songs": row_wise(compute_kernel="fused")},
            sharder,
            device_type="cpu",
        )
        if not self.replicated:
            return arranged
        sharded_tiers = ShardedTiers(self.plan())
        return arranged._replace(sharders=tier_sharders(sharded_tiers, arranged.sharders))


def steps_of_adam(zeroed: bool) -> None:
    """On a rank: Adam has moments of artists when hot steps look up songs alone."""
    copied = CopiedArtists(replicated=tuple(range(20)))
    hot = {"songs": np.arange(20), "artists": np.arange(0)}

    def batches() -> Iterator[Batch]:
        for step in range(6):
            batch = batch_of(2 * step + dist.get_rank(), 6)
            if step % 3:
                marked = dataclasses.replace(batch, hot_under=copied.plan().version)
                batch = confined(marked, hot)
            yield batch

    def train(behind: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = build(behind, Bags)
        own = dict(in_backward_optimizer_filter(model.named_parameters()))
        assert any("artists" in name for name in own)
        optimizer = torch.optim.Adam(own.values(), lr=0.1)
        with rounding:
            for batch in batches():
                loss = model(batch)[0]
                optimizer.zero_grad(set_to_none=not zeroed)
                loss.backward()
                optimizer.step()
        return tables(model)

    assert_alike(train(copied, nullcontext()), *plain_of(partial(train, CopiedArtists())))


@pytest.mark.parametrize("zeroed", [False, True])
def test_hot_steps_leave_a_dense_optimizer_the_gradients_of_no_lookup(
    gloo_pool: GlooPool, zeroed: bool
) -> None:
    gloo_pool.run(steps_of_adam, zeroed)


def test_marks_of_another_plan_count_for_nothing(gloo_pool: GlooPool) -> None:
    gloo_pool.run(retier_under_way)
