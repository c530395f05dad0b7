"""Ladder: proposals as pure values, two interpreters, then plans agreed on gloo ranks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import enumerators
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams, ShardingPlan, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from trio import MINOR

import recd_plugins as rp
from recd_plugins.config import parse
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.embedding.adapt import adapt
from recd_plugins.errors import CapabilityError, RecdError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.cluster.machines import finds_these_nodes
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.constraints import (
    ComputeKernel,
    ShardingKind,
    TableConstraint,
    parameter_constraints,
)
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.torchrec_plan.constrained_search import ConstrainedSearch
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlanner,
    TorchRecPlannerConfig,
)
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import Probe

BY_SIZE = str(Path(__file__).parents[2] / "examples" / "by_size.py")
TABLES = {"bags": {"item", "shop"}, "sequences": {"history"}}
"""Of the kit's probe, by module: `item` serves two features, `history` is a sequence."""


def planner(
    batch_size: int = 64,
    given: Mapping[str, ParameterConstraints] | None = None,
    named: bool = True,
    **options: Any,
) -> TorchRecPlanner:
    """In a trainer of one's own nobody needs to have `named` the tables' optimizer."""
    fused = OptimizerSettings().fused_params() if named else None
    return TorchRecPlanner(
        parse(TorchRecPlannerConfig, {"search": "greedy", **options}, "sharding"),
        device="cpu",
        batch_size=batch_size,
        sharders=lambda: default_sharders(fused),
        given=given,
        data_parallel=not named,
    )


def propose(
    world_size: int = 2, topology: Topology | None = None, **options: Any
) -> Mapping[str, Mapping[str, Any]]:
    """The plan of the kit's probe: module to table to TorchRec's `ParameterSharding`."""
    plan = planner(**options).propose(Probe(), topology or Topology(), world_size)
    found: Mapping[str, Mapping[str, Any]] = plan.plan
    return found


def small_ones_sharded(
    given: Mapping[str, ParameterConstraints] | None = None, **constraints: Any
) -> list[str]:
    """What is said of a plan that has a table of few rows on one rank, and of what a planner in
    front makes of it."""
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=16, num_embeddings=rows, feature_names=[name])
        for name, rows in {"pages": 5_000, "few": 300}.items()
    ]
    model = nn.ModuleDict({"bags": EmbeddingBagCollection(tables, device=torch.device("meta"))})
    made = planner(given=given, named=False, constraints=constraints, search="torchrec")
    plan: Mapping[str, Mapping[str, Any]] = made.propose(model, Topology(), 2).plan
    assert plan["bags"]["few"].sharding_type == "table_wise" or constraints
    behind = made.row_wise(["pages", *([] if constraints else ["few"])])
    behind.propose(model, Topology(), 2)
    assert behind.notices() == made.notices()
    return [str(one) for one in made.notices()]


def constrained(**constraints: Any) -> dict[str, str]:
    """Table to the sharding type of a plan under these constraints."""
    modules = propose(constraints=constraints).values()
    return {name: how.sharding_type for module in modules for name, how in module.items()}


def test_a_proposal_is_an_ordinary_plan_of_every_table() -> None:
    plan = planner().propose(Probe(), Topology(), 2)
    assert type(plan) is ShardingPlan
    assert {module: set(tables) for module, tables in plan.plan.items()} == TABLES
    ranks = {
        shard.placement.rank()
        for tables in plan.plan.values()
        for sharding in tables.values()
        for shard in sharding.sharding_spec.shards
    }
    assert ranks == {0, 1}


def test_all_to_alls_are_a_part_of_a_tables_time() -> None:
    made = planner()
    slow = Topology(ranks_per_node=1, inter_node_gbps=0.001)
    made.propose(Probe(), slow, 4)
    for line in made.explain().splitlines()[2:]:
        *_, ms, of_them = line.split()
        assert 0 < float(of_them) < float(ms)


def test_one_rank_has_everything() -> None:
    for tables in propose(world_size=1).values():
        for sharding in tables.values():
            assert sharding.ranks == [0]


def test_a_constraint_chooses_the_sharding_of_its_table() -> None:
    free = constrained()
    assert constrained(history={"sharding_types": ["table_wise"]})["history"] == "table_wise"
    assert constrained(history={"sharding_types": ["row_wise"]})["history"] == "row_wise"
    chosen = constrained(shop={"sharding_types": ["column_wise"]})
    assert chosen["shop"] == "column_wise"
    assert chosen["history"] == free["history"]


def test_a_trainers_own_constraints_hold() -> None:
    """Where tables are placed, and how they train; what is in front of them heeds both."""
    given = {
        "shop": ParameterConstraints(sharding_types=["column_wise"], min_partition=4),
        "item": ParameterConstraints(bounds_check_mode=BoundsCheckMode.FATAL),
        "elsewhere": ParameterConstraints(),
    }
    made = planner(given=given)
    assert not made.may_be_row_wise("shop")
    assert made.may_be_row_wise("item")
    found = made.row_wise(["item"]).propose(Probe(), Topology(), 2).plan["bags"]
    assert [shard.shard_sizes[1] for shard in found["shop"].sharding_spec.shards] == [4, 4]
    assert found["item"].sharding_type == "row_wise"
    assert found["item"].bounds_check_mode is BoundsCheckMode.FATAL
    with pytest.raises(RegistryError, match=r"for table 'shop', which the constraints that stack"):
        planner(given=given, constraints={"*op": {}}).propose(Probe(), Topology(), 2)


def test_a_trainers_constraints_may_be_for_features_with_unique_samples() -> None:
    """TorchRec wants as many batch sizes as pooling factors."""
    model = adapt(Probe(), (("item", "seen"),), unique_shares=[0.25])
    given = {"item": ParameterConstraints(pooling_factors=[2.0, 1.0])}
    plan = planner(given=given).propose(model, Topology(), 2)
    assert set(plan.plan["bags"]) == TABLES["bags"]


def test_a_trainers_constraints_leave_tables_the_cache_of_their_kernel() -> None:
    cached = TableConstraint(
        sharding_types=("row_wise",), compute_kernels=("fused_uvm_caching",), load_factor=0.3
    )
    given = {"item": ParameterConstraints(bounds_check_mode=BoundsCheckMode.FATAL)}
    held = planner(given=given).row_wise(["item"], {"item": cached})
    found = held.propose(Probe(), Topology(device="cuda", ranks_per_node=2), 4).plan["bags"]
    assert found["item"].compute_kernel == "fused_uvm_caching"
    assert found["item"].cache_params == CacheParams(load_factor=0.3)
    assert found["item"].bounds_check_mode is BoundsCheckMode.FATAL


def row_wise_devices(world_size: int, **topology: Any) -> list[int]:
    """The device of each rank, by a plan that gives rows to all of them."""
    plan = propose(
        world_size,
        Topology(device="cuda", **topology),
        constraints={"*": {"sharding_types": ["row_wise"]}},
    )
    every = [shard for how in plan["bags"].values() for shard in how.sharding_spec.shards]
    found = {shard.placement.rank(): shard.placement.device().index for shard in every}
    return [found[rank] for rank in range(world_size)]


def test_nodes_that_nobody_names_are_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert row_wise_devices(4) == [0, 1, 0, 1]
    assert row_wise_devices(4, ranks_per_node=4) == [0, 1, 2, 3]
    assert row_wise_devices(3) == [0, 1, 2]  # they fill no nodes of two


def devices_on_a_rank(sharding: Any) -> list[tuple[int, int]]:
    """Ranks, and the devices of their shards, by a plan for nodes of one rank."""
    registry = {"plugins": [BY_SIZE], "sharding": sharding, "topology": {"ranks_per_node": 1}}
    stack = rp.load(registry)
    stack.device = "cuda"  # no device is asked for a plan
    plan: Mapping[str, Any] = stack.plan(Probe()).plan
    every = [
        shard
        for tables in plan.values()
        for how in tables.values()
        for shard in how.sharding_spec.shards
    ]
    return sorted({(one.placement.rank(), one.placement.device().index) for one in every})


def on_machine(devices: int, sharding: Any) -> list[tuple[int, int]]:
    """`devices_on_a_rank`, of a machine with so many."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(torch.cuda, "device_count", lambda: devices)
        # Nor is one asked for its memory, by a torch that is built for CUDA.
        patches.setattr(torch.cuda, "is_available", lambda: False)
        return devices_on_a_rank(sharding)


@pytest.mark.parametrize(
    "sharding",
    ["by_size", {"search": "greedy", "constraints": {"*": {"sharding_types": ["row_wise"]}}}],
)
def test_ranks_have_their_machines_devices_whatever_nodes_are_named(
    gloo_pool: GlooPool, sharding: Any
) -> None:
    assert gloo_pool.run(on_machine, 2, sharding) == [[(0, 0), (1, 1)]] * 2


def test_ranks_share_the_device_of_a_machine_that_has_one(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(on_machine, 1, "by_size") == [[(0, 0), (1, 0)]] * 2


@dataclass
class Growing(ParameterConstraints):
    """A constraint of another library's planner."""

    grows: bool = False
    options: dict[str, int] = field(default_factory=dict)


def planned_past_constraints() -> list[str]:
    """On a rank: the notices of a planner that was built before, and heeds no constraints."""
    stack = rp.load({"plugins": [BY_SIZE], "sharding": "by_size"})
    stack.planner()
    given = {
        "item": ParameterConstraints(sharding_types=["column_wise"]),
        "shop": Growing(sharding_types=["table_wise"], compute_kernels=["fused"]),
        "itme": ParameterConstraints(sharding_types=["row_wise"]),
    }
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        stack.plan(Probe(), constraints=given)
    planner: Any = stack.planner()
    assert planner.context.constraints == given
    with pytest.raises(CapabilityError, match=r"'shop', Growing, say grows, which TorchRec"):
        stack.plan(Probe(), constraints={"shop": Growing(grows=True)})
    return [str(one.message) for one in found if one.category is NoticeWarning]


def test_constraints_that_a_plan_does_not_keep_are_named(gloo_pool: GlooPool) -> None:
    (notice, unknown), none = gloo_pool.run(planned_past_constraints)
    assert not none
    assert (
        "is not used: it does not allow item (table_wise, fused), as `sharding: by_size`" in notice
    )
    assert "itme" in unknown
    assert "is not used: there is no such table; did you mean 'item'? Known: history" in unknown


@pytest.mark.parametrize(
    ("constraint", "asks"),
    [
        ({"sharding_types": ["row_wise"]}, "row_wise"),
        ({"sharding_types": ["table_wise"], "compute_kernels": ["fused_uvm"]}, "table_wise with"),
    ],
)
def test_constraints_of_a_trainer_that_leave_nothing_to_its_sharder_are_named(
    constraint: dict[str, Any], asks: str
) -> None:
    """As they do on a CPU what is asked for on CUDA: TorchRec offers no row-wise bags there."""
    made = planner(given={"item": ParameterConstraints(**constraint)})
    with pytest.raises(RegistryError) as caught:
        made.propose(Probe(), Topology(), 2)
    says = str(caught.value)
    assert says.startswith("stack.plan(constraints={'item': ...}): no sharding type and kernel is")
    assert f"the constraints ask for {asks}" in says
    assert "on cpu its sharder, EmbeddingBagCollectionSharder, offers data_parallel (dense)" in says


def warned_of_in_planning() -> list[str]:
    """On a rank: what TorchRec's planner makes Python warn of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        rp.load({}).plan(Probe())
    return [str(one.message) for one in found if one.category is FutureWarning]


def test_the_choice_of_a_reservation_is_ours_and_warns_nobody(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(warned_of_in_planning) == [[], []]


def test_no_table_is_divided_among_ranks_that_torchrec_would_not_find() -> None:
    """It goes by the launcher's nodes, and these ranks are told to be nodes of their own."""
    table = EmbeddingBagConfig(
        name="word", embedding_dim=8, num_embeddings=300, feature_names=["word"]
    )
    bags = EmbeddingBagCollection([table], device=torch.device("meta"))
    model, sharders = nn.ModuleDict({"bags": bags}), default_sharders()
    for per_node, divided in ((1, False), (2, True)):
        within = finds_these_nodes(Topology(ranks_per_node=per_node), 4)
        found = parameter_constraints(model, {}, sharders, "cuda", 16, within_nodes=within)
        assert ("table_row_wise" in (found["word"].sharding_types or ())) == divided


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_feature_processor_sees_whole_bags_unless_rows_are_asked_for(device: str) -> None:
    """A processor of a trainer's own would see parts of bags: TorchRec's planner leaves it so."""
    table = EmbeddingBagConfig(
        name="word", embedding_dim=8, num_embeddings=300, feature_names=["word"]
    )
    bags = EmbeddingBagCollection([table], is_weighted=True, device=torch.device("meta"))
    weighted = FeatureProcessedEmbeddingBagCollection(bags, {"word": PositionWeightedModule(9)})
    model, sharders = nn.ModuleDict({"bags": weighted}), default_sharders()
    (left,) = parameter_constraints(model, {}, sharders, device, 16).values()
    assert {*(left.sharding_types or ())} == {"table_wise", "column_wise", "table_column_wise"}
    rows = {"word": TableConstraint(sharding_types=("row_wise",))}
    (asked,) = parameter_constraints(model, rows, sharders, device, 16).values()
    assert asked.sharding_types == ["row_wise"]


def test_ranks_that_fill_no_node_are_one_node() -> None:
    """A preset has 8 ranks a node, and a job may have 4 GPUs of one."""

    def placed(ranks: int, per_node: int, **options: Any) -> dict[str, tuple[str, Any]]:
        topology = Topology(device="cuda", ranks_per_node=per_node)
        modules = propose(ranks, topology, **options).values()
        every = (one for module in modules for one in module.items())
        return {name: (how.sharding_type, how.ranks) for name, how in every}

    for kind in ("table_row_wise", "grid_shard"):
        within = {"item": {"sharding_types": [kind]}}
        assert placed(4, 8, constraints=within)["item"] == (kind, [0, 1, 2, 3])
    # An all-reduce over half a node would take TorchRec no time, and one over less less than none.
    for ranks in (2, 4):
        for options in ({}, {"named": False}, {"search": "torchrec"}):
            assert placed(ranks, 8, **options) == placed(ranks, ranks, **options)


def test_small_tables_that_nobody_names_an_optimizer_of_are_named() -> None:
    """TorchRec may have them on every rank, and then another optimizer steps them."""
    (notice,) = small_ones_sharded()  # of 300 rows, by batches of 64
    assert "names no optimizer of table few; each has no more rows than a batch has" in notice
    assert "or than the 512 by which TorchRec's planner goes unless it is told" in notice
    assert "TorchRec's EXACT_SGD, learning_rate 0.01 steps it; on every rank, the dense" in notice
    assert "`sharding.constraints: {few: {sharding_types: [data_parallel]}}`" in notice
    for kind in ("data_parallel", "table_wise"):
        assert not small_ones_sharded(few={"sharding_types": [kind]})
    fused = ["fused"]  # no kernel of a table that every rank has
    assert not small_ones_sharded(few={"compute_kernels": fused})
    assert not small_ones_sharded({"few": ParameterConstraints(compute_kernels=fused)})


def test_tables_that_links_alone_have_on_every_rank_are_named() -> None:
    """The trainer's own planner knows no slow links and shards them: another optimizer steps them
    there, unless it is named."""
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=64, num_embeddings=rows, feature_names=[name])
        for name, rows in {"pages": 60_000, "few": 44}.items()
    ]
    bags = EmbeddingBagCollection(tables, device=torch.device("meta"))
    model, slow = nn.ModuleDict({"bags": bags}), Topology(ranks_per_node=1, inter_node_gbps=0.02)
    for named, kind, told in ((False, "data_parallel", 1), (True, "table_wise", 0)):
        if named:
            _apply_optimizer_in_backward(torch.optim.SGD, bags.parameters(), {"lr": 0.1})
        made = planner(named=False)
        plan: Mapping[str, Mapping[str, Any]] = made.propose(model, slow, 2).plan
        assert plan["bags"]["few"].sharding_type == kind
        notices = [str(one) for one in made.notices()]
        assert len(notices) == told
        for one in notices:
            assert "names no optimizer of table few; each is on every rank, where TorchRec" in one
            assert "torchrec may train otherwise: " in one


@pytest.mark.parametrize("batch_size", [8, 64, 512])
def test_tables_that_torchrec_has_on_every_rank_by_the_batch_size_that_it_takes_are_named(
    batch_size: int,
) -> None:
    """Nobody tells TorchRec's own planner the batch size where DistributedModelParallel asks it."""
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=8, num_embeddings=rows, feature_names=[name])
        for name, rows in {"shops": 50, "tags": 40, "towns": 30}.items()
    ]
    bags = EmbeddingBagCollection(tables, device=torch.device("meta"))
    _apply_optimizer_in_backward(torch.optim.SGD, bags.parameters(), {"lr": 0.1})
    model = nn.ModuleDict({"bags": bags})
    made = planner(batch_size=batch_size, named=False, search="torchrec")
    made.propose(model, Topology(), 2)
    (notice,) = map(str, made.notices())
    assert (
        "names an optimizer of tables shops, tags, towns, which steps sharded tables alone"
        in notice
    )
    assert ("of the 512 by which its planner goes" in notice) == (batch_size != 512)


@pytest.mark.parametrize(
    ("kinds", "searches"), [({}, 2), ({"pages": "table_wise", "few": "data_parallel"}, 1)]
)
def test_what_torchrec_itself_would_do_is_searched_once_a_plan(
    kinds: dict[str, str], searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not where constraints leave nothing to be said. Nobody keeps the model for it."""
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=64, num_embeddings=rows, feature_names=[name])
        for name, rows in {"pages": 60_000, "few": 44}.items()
    ]
    bags = EmbeddingBagCollection(tables, device=torch.device("meta"))
    model, slow = nn.ModuleDict({"bags": bags}), Topology(ranks_per_node=1, inter_node_gbps=0.02)
    made = planner(
        named=False,
        given={name: ParameterConstraints(sharding_types=[kind]) for name, kind in kinds.items()},
    )
    made_plans: list[Any] = []
    searched = ConstrainedSearch.best

    def counted(*given: Any) -> Any:
        made_plans.append(searched(*given))
        return made_plans[-1]

    monkeypatch.setattr(ConstrainedSearch, "best", counted)
    made.propose(model, slow, 2)
    first = made.notices()
    assert len(first) == (not kinds)
    assert made.notices() == first
    assert len(made_plans) == searches
    kept = weakref.ref(model)
    del model, bags
    gc.collect()
    assert kept() is None


def test_the_dense_kernel_says_that_a_table_is_data_parallel() -> None:
    """So a trainer has it on every rank, whose other tables' optimizer it names."""
    dense = ParameterConstraints(compute_kernels=["dense"])
    for options in (
        {"given": {"item": dense}},
        {"constraints": {"item": {"compute_kernels": ["dense"]}}},
    ):
        how = propose(**options)["bags"]["item"]
        assert (how.sharding_type, how.compute_kernel) == ("data_parallel", "dense")


def test_collections_of_a_kind_that_nobody_here_knows_are_planned() -> None:
    table = EmbeddingBagConfig(
        name="word", embedding_dim=8, num_embeddings=300, feature_names=["word"]
    )
    sgd: dict[str, Any] = {"optimizer_type": torch.optim.SGD, "optimizer_kwargs": {"lr": 0.1}}
    bags = FusedEmbeddingBagCollection([table], **sgd, device=torch.device("meta"))
    plan = planner().propose(nn.ModuleDict({"bags": bags}), Topology(), 2)
    assert set(plan.plan["bags"]) == {"word"}


def test_a_glob_is_for_all_that_fit_and_the_last_one_counts() -> None:
    column, table = ({"sharding_types": [kind]} for kind in ("column_wise", "table_wise"))
    assert constrained(**{"*": column}) == dict.fromkeys(("item", "shop", "history"), "column_wise")
    assert constrained(**{"*": column, "*o*": table}) == {
        "item": "column_wise",
        "shop": "table_wise",
        "history": "table_wise",
    }
    assert set(constrained(**{"*o*": table, "*": column}).values()) == {"column_wise"}


def test_the_narrowest_column_shard() -> None:
    column = {"sharding_types": ["column_wise"]}
    for narrowest, widths in ((4, [4, 4]), (8, [8])):
        how = propose(constraints={"item": {**column, "min_partition": narrowest}})["bags"]["item"]
        assert [shard.shard_sizes[1] for shard in how.sharding_spec.shards] == widths


def test_nothing_is_data_parallel_unless_it_is_asked_for() -> None:
    assert "data_parallel" not in constrained().values()
    for search in ("greedy", "torchrec"):  # tiny tables: replicas would be cheapest
        plan = propose(search=search)
        kinds = {how.sharding_type for tables in plan.values() for how in tables.values()}
        assert "data_parallel" not in kinds
    assert constrained(item={"sharding_types": ["data_parallel"]})["item"] == "data_parallel"


@pytest.mark.parametrize(
    ("constraints", "says"),
    [
        ({"itm": {}}, "no table matches 'itm'; did you mean 'item'? Known: history, item, shop."),
        ({"t_*": {}}, "no table matches 't_*'; Known: history, item, shop."),
        (
            {"shop": {"sharding_types": ["row_wise", "grid_shard"]}},
            "for table 'shop', of the model's EmbeddingBagCollection, TorchRec offers no such "
            "sharding type and kernel here. Choose from: data_parallel (dense), table_wise (fused)",
        ),
        (
            {"history": {"sharding_types": ["data_parallel"]}},  # a wrong shape on the CPU
            "for table 'history', of the model's EmbeddingCollection, TorchRec offers no such",
        ),
        ({"*": {"compute_kernels": ["fused_uvm"]}}, "offers no such sharding type and kernel here"),
        (
            {"item": {"sharding_types": ["table_wise"], "compute_kernels": ["dense"]}},
            "for table 'item', of the model's EmbeddingBagCollection, TorchRec offers no such",
        ),
        (
            {"item": {"pooling_factors": [1.0]}},
            "pooling_factors are 1, but table 'item' serves 2: give one for each of item, seen.",
        ),
    ],
)
def test_a_constraint_that_cannot_be_kept_is_named(constraints: Any, says: str) -> None:
    with pytest.raises(RegistryError) as caught:
        propose(constraints=constraints)
    assert str(caught.value).startswith("sharding.constraints")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("sharding_types", ["row_wisee"], "unknown value 'row_wisee'; did you mean 'row_wise'?"),
        ("compute_kernels", ["fusedd"], "unknown value 'fusedd'; did you mean 'fused'?"),
        ("min_partition", 3, "must be >= 4, but is 3"),
        ("pooling_factors", [0], "must be > 0, but is 0"),
    ],
)
def test_a_constraint_that_torchrec_does_not_know_is_named(
    option: str, value: Any, says: str
) -> None:
    with pytest.raises(RegistryError) as caught:
        rp.load({"sharding": {"constraints": {"item": {option: value}}}})
    assert str(caught.value).startswith(f"sharding.constraints.item.{option}")
    assert says in str(caught.value)


def test_a_collection_that_no_planner_can_place_is_named() -> None:
    """TorchRec's sharder of bags with managed collision offers nothing on a CPU."""
    tables = [
        EmbeddingBagConfig(name="user", feature_names=["user"], embedding_dim=8, num_embeddings=64)
    ]
    manager = MCHManagedCollisionModule(
        zch_size=64,
        device=torch.device("cpu"),
        input_hash_size=1000,
        eviction_interval=2,
        eviction_policy=DistanceLFU_EvictionPolicy(),
    )
    bags = ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection(tables, device=torch.device("meta")),
        ManagedCollisionCollection({"user": manager}, tables),
    )
    says = (
        r"^ManagedCollisionEmbeddingBagCollection with table user: its sharder, "
        r"ManagedCollisionEmbeddingBagCollectionSharder, offers no sharding type on cpu"
    )
    with pytest.raises(CapabilityError, match=says):
        planner().propose(nn.ModuleDict({"bags": bags}), Topology(), 2)
    (found,) = parameter_constraints(bags, {}, default_sharders(), "cuda", 64).values()
    assert found.sharding_types == ["row_wise"]


def test_the_names_are_torchrecs() -> None:
    assert set(get_args(ShardingKind)) == {kind.value for kind in ShardingType}
    inference = {"quant", "quant_uvm", "quant_uvm_caching"}
    kernels = {kernel.value for kernel in EmbeddingComputeKernel} - inference
    assert kernels - {"unfused_tpu"} <= set(get_args(ComputeKernel))  # since 1.9, and not for us
    assert MINOR < 8 or set(get_args(ComputeKernel)) <= kernels


def test_more_ids_a_sample_cost_more() -> None:
    costs = []
    for factors in ([1.0, 1.0], [100.0, 100.0]):
        made = planner(constraints={"item": {"pooling_factors": factors}})
        made.propose(Probe(), Topology(), 2)
        (line,) = [line for line in made.explain().splitlines() if line.startswith("item ")]
        costs.append(float(line.split()[-2]))
    assert costs[1] > 10 * costs[0]


def test_a_slower_link_costs_more() -> None:
    costs = []
    for gbps in (1000.0, 0.01):
        made = planner(constraints={"*": {"sharding_types": ["table_wise"]}})
        made.propose(Probe(), Topology(ranks_per_node=1, inter_node_gbps=gbps), 2)
        (line,) = [line for line in made.explain().splitlines() if line.startswith("item ")]
        costs.append(float(line.split()[-1]))
    assert costs[1] > 100 * max(costs[0], 1e-3)


def test_a_larger_batch_costs_more_and_takes_more_memory() -> None:
    costs = []
    for batch_size in (64, 6400):
        made = planner(batch_size, constraints={"*": {"sharding_types": ["table_wise"]}})
        made.propose(Probe(), Topology(), 2)
        (line,) = [line for line in made.explain().splitlines() if line.startswith("item ")]
        costs.append(float(line.split()[-2]))
    assert costs[1] > 10 * costs[0]
    # TorchRec keeps 20 copies of a batch's ids: 512 samples x 3 tables x 8 bytes of them.
    little = Topology(host_memory_gb=20 * 512 * 3 * 8 / 2**30)
    planner(64).propose(Probe(), little, 2)
    with pytest.raises(CapabilityError, match=r"lower train\.batch_size"):
        planner(512).propose(Probe(), little, 2)


def test_the_explanation_has_a_line_for_every_table() -> None:
    made = planner(constraints={"history": {"sharding_types": ["row_wise"]}})
    assert made.explain() == "No plan has been made yet."
    made.propose(Probe(), Topology(), 2)
    head, columns, *lines = made.explain().splitlines()
    assert head.startswith("plan: cheapest of ")
    assert columns.split()[0] == "table"
    assert [line.split()[0] for line in lines] == ["history", "item", "shop"]
    assert lines[0].startswith("history  40 x 8 ")
    assert "row_wise" in lines[0]
    assert "0,1" in lines[0]


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (
            Topology(host_memory_gb=1e-5),
            "do not fit on 2 ranks of 1e-05 GB host memory. Set topology.host_memory_gb to",
        ),
        (
            Topology(device="cuda", device_memory_gb=2e-5),
            "do not fit on 2 ranks of 2e-05 GB device memory. Set topology.device_memory_gb to",
        ),
    ],
)
def test_tables_that_fit_nowhere_are_reported_with_sizes_and_a_fix(
    topology: Topology, says: str
) -> None:
    with pytest.raises(CapabilityError) as caught:
        propose(topology=topology)
    message = str(caught.value)
    bytes_ = 4 * 8 * (30 + 7 + 40)
    assert message.startswith(f"sharding: tables of {bytes_ / 2**30:.3g} GB, ")
    assert says in message
    assert "TorchRec's planner says: " in message
    assert "\n" not in message


def test_the_reserve_is_kept_free_of_tables() -> None:
    cluster = Topology(device="cuda", device_memory_gb=0.002)
    propose(topology=cluster, reserve=0.0)
    with pytest.raises(CapabilityError, match="do not fit"):
        propose(topology=cluster, reserve=0.99)


ANEW = """
import sys
sys.path[:0] = {path!r}
from test_plan import wide
print(wide())
"""


def wide() -> str:
    """The plan of many equal tables: ties wherever one looks."""
    features = [SparseFeature(name=f"f{i}", num_ids=50, sequence=i % 2 == 1) for i in range(8)]
    schema = Schema(session_id=None, timestamp=None, sparse=tuple(features))
    return str(planner().propose(Probe(schema), Topology(), 3))


class Backwards(set[Any]):
    """A set that comes in one order, and not in that of its texts."""

    def __and__(self, other: Any) -> Backwards:
        return Backwards(super().__and__(other))

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), reverse=True))


class Forwards(Backwards):
    """The same, the other way about."""

    def __and__(self, other: Any) -> Forwards:
        return Forwards(super().__and__(other))

    def __iter__(self) -> Iterator[Any]:
        return reversed([*super().__iter__()])


@pytest.mark.slow
def test_a_plan_is_the_same_in_every_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchRec's options come in the order of a set of texts, which differs by hash seed."""
    here = os.path.dirname(__file__)
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    run = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", ANEW.format(path=[here, os.path.dirname(here)])],
        env=os.environ | {"PYTHONHASHSEED": other},
        stdout=subprocess.PIPE,
        text=True,
    )
    plans = {wide().strip()}
    for order in (Backwards, Forwards):
        monkeypatch.setattr(enumerators, "set", order, raising=False)
        plans.add(wide().strip())
    plans.add(run.communicate(timeout=300)[0].strip())
    assert run.returncode == 0
    assert len(plans) == 1


REGISTRY = {"sharding": {"use": "torchrec", "search": "greedy"}, "train": {"device": "cpu"}}


def plan_on_a_rank(registry: dict[str, Any]) -> tuple[str, str]:
    stack = rp.load(registry)
    model = Probe()
    try:
        plan = stack.plan(model)
    except RecdError as error:
        return type(error).__name__, str(error)
    sharded = DistributedModelParallel(model, plan=plan, sharders=stack.sharders())
    assert str(sharded.plan) == str(plan)
    return str(plan), stack.explain()


def test_all_ranks_have_the_plan_of_rank_0(gloo_pool: GlooPool) -> None:
    """It is TorchRec's own, tiny tables on every rank, where there is nothing to count either."""
    (first, why), (second, other) = gloo_pool.run(plan_on_a_rank, REGISTRY)
    assert first == second
    own = planner(batch_size=512, named=False)  # 512 is train.batch_size
    assert first == str(own.propose(Probe(), Topology(), 2))
    assert "data_parallel" in first
    assert why.startswith("plan: cheapest of ")
    of_plan, of_rows = other.splitlines()
    assert of_plan == "Planned on rank 0, which knows why."
    assert of_rows.startswith("lookups of rows: on this rank, history as bags of one")


def test_all_ranks_hear_why_there_is_no_plan(gloo_pool: GlooPool) -> None:
    registry = {**REGISTRY, "topology": {"host_memory_gb": 1e-5}}
    found = gloo_pool.run(plan_on_a_rank, registry)
    assert found[0] == found[1]
    assert found[0][0] == "CapabilityError"
    assert "do not fit on 2 ranks" in found[0][1]
    wrong = {**REGISTRY, "sharding": {"constraints": {"itm": {}}}}
    for kind, message in gloo_pool.run(plan_on_a_rank, wrong):
        assert kind == "RegistryError"
        assert "no table matches 'itm'; did you mean 'item'?" in message


def plan_of_a_real_model(folder: str, constraints: dict[str, Any]) -> dict[str, str] | str:
    """On a rank: table to sharding type for sequence_dlrm on generated sessions."""
    stack = rp.load(
        {
            "plugins": ["recd_dlrm"],
            "folder": folder,
            "dataset": {"use": "sessions", "samples": 256},
            "model": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
            "pooling": {"*": "sum"},
            **REGISTRY,
            "sharding": {**REGISTRY["sharding"], "constraints": constraints},
        }
    )
    try:
        plan = stack.plan(stack.model())
    except RecdError as error:
        return str(error)
    names = [name for tables in plan.plan.values() for name in tables]
    if dist.get_rank() == 0:
        assert all(f"\n{name} " in stack.explain() for name in names)
    return {name: how.sharding_type for m in plan.plan.values() for name, how in m.items()}


def test_a_real_models_tables_are_constrained_by_name(tmp_path: Path, gloo_pool: GlooPool) -> None:
    folder = str(tmp_path / "data")
    kinds = {"t_*": {"sharding_types": ["table_wise"]}, "t_items": {"sharding_types": ["row_wise"]}}
    for found in gloo_pool.run(plan_of_a_real_model, folder, kinds):
        assert isinstance(found, dict)
        assert len(found) > 4
        assert found == {**dict.fromkeys(found, "table_wise"), "t_items": "row_wise"}
    for found in gloo_pool.run(plan_of_a_real_model, folder, {"items": {}}):
        assert "no table matches 'items'; did you mean 't_items'?" in found


def plan_alone() -> list[str]:
    """On one of two ranks: the plan for a group of its own."""
    group = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    plan = rp.load(REGISTRY).plan(Probe(), process_group=group)
    return sorted({str(how.ranks) for tables in plan.plan.values() for how in tables.values()})


def test_a_plan_is_for_the_group_that_is_given(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(plan_alone) == [["[0]"], ["[0]"]]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_options_of_an_accelerators_memory_are_named_on_a_cpu(device: str) -> None:
    cached = {"compute_kernels": ["fused", "fused_uvm_caching"], "load_factor": 0.4}
    lfu = {"cache_algorithm": "lfu"}
    options = {"reserve": 0.4, "constraints": {"few": cached, "*": lfu}}
    made = TorchRecPlanner(
        parse(TorchRecPlannerConfig, options, "sharding"),
        device=device,  # type: ignore[arg-type]  # one of both
        batch_size=8,
        sharders=default_sharders,
    )
    found = [str(one).split(":")[:2] for one in made.notices() if "CPU" in str(one)]
    names = ["reserve", "constraints.few.load_factor", "constraints.*.cache_algorithm"]
    expected = [["sharding", f" {name} is not used"] for name in names]
    assert found == (expected if device == "cpu" else [])
