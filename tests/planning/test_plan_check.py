"""Value tests: a plan that does not fit its model is told with the planner's name, and by what.
Rung 3 (two gloo ranks): so is one that ranks have differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
)
from torchrec.distributed import sharding_plan
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan

from recd_plugins.errors import PluginError
from recd_plugins.planning.plan_check import check_plan, check_same, dense_tables
from recd_plugins.testing.gloo import GlooPool

SHARDERS = get_default_sharders()


class OwnSharder(EmbeddingBagCollectionSharder):
    """A trainer's own, which shards in a way of its own."""

    def shard(self, *given: Any, **more: Any) -> Any:
        raise NotImplementedError


def model() -> nn.Module:
    """Two tables."""
    size: dict[str, Any] = {"embedding_dim": 4, "num_embeddings": 9}
    tables = [EmbeddingBagConfig(name=name, feature_names=[name], **size) for name in ("a", "b")]
    return nn.ModuleDict({"bags": EmbeddingBagCollection(tables=tables)})


def plan_of(made: nn.Module) -> ShardingPlan:
    """TorchRec's, table-wise with the fused kernel."""
    fused = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
    topology, constraints = Topology(1, "cpu"), {"a": fused, "b": fused}
    return EmbeddingShardingPlanner(topology=topology, constraints=constraints).plan(made, SHARDERS)


def planned(change: Callable[[dict[str, Any]], object]) -> str:
    """What is said of a plan of TorchRec's that was changed."""
    made = model()
    plan = plan_of(made)
    change(plan.plan)
    with pytest.raises(PluginError) as caught:
        check_plan(plan, made, SHARDERS, 1, "P returned")
    return str(caught.value)


def sized(plan: dict[str, Any]) -> None:
    plan["bags"]["a"].sharding_spec.shards[0].shard_sizes[0] = 1


def parted(*offsets: tuple[int, int], sizes: tuple[int, int]) -> Callable[[dict[str, Any]], object]:
    """A plan that has a table of 9 x 4 in shards which begin there."""

    def change(plan: dict[str, Any]) -> None:
        spec = plan["bags"]["a"].sharding_spec
        place = spec.shards[0].placement
        spec.shards = [ShardMetadata([*at], [*sizes], place) for at in offsets]

    return change


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "module": (
        lambda plan: plan.update(bag=plan["bags"]),
        "P returned a plan of module 'bag', which the model does not have; did you mean 'bags'?",
    ),
    "text": (lambda plan: plan.update(bags="abc"), "P returned 'abc' for module 'bags', where"),
    "unknown": (
        lambda plan: plan["bags"].update(c=plan["bags"]["a"]),
        "a place for table 'c', which module 'bags' does not have",
    ),
    "left out": (lambda plan: plan["bags"].pop("b"), "no place for table b of module 'bags'."),
    "nothing": (lambda plan: plan["bags"].update(a=None), "for table 'a' of 'bags' None, where"),
    "kind": (
        lambda plan: setattr(plan["bags"]["a"], "sharding_type", "row_wize"),
        "sharding_type 'row_wize'; did you mean 'row_wise'?",
    ),
    "kernel": (
        lambda plan: setattr(plan["bags"]["a"], "compute_kernel", "warp"),
        "compute_kernel 'warp'; ",
    ),
    "kernel that serves": (
        lambda plan: setattr(plan["bags"]["a"], "compute_kernel", "quant"),
        "compute_kernel 'quant'; ",
    ),
    "no shards": (
        lambda plan: setattr(plan["bags"]["a"], "sharding_spec", None),
        "table_wise without `ranks` and a `sharding_spec` of shards.",
    ),
    "no ranks": (
        lambda plan: setattr(plan["bags"]["a"], "ranks", None),
        "table_wise without `ranks`",
    ),
    "rank": (
        lambda plan: setattr(plan["bags"]["a"], "ranks", [7]),
        "rank 7, of a group of 1 rank, counted from 0. Plan for `group.size()`.",
    ),
    "overlapping rows": (
        parted((0, 0), (2, 0), (6, 0), sizes=(3, 4)),
        "for table 'a' of 'bags' shards that overlap or lie outside of the table; they begin at "
        "(0, 0), (2, 0), (6, 0). Let each begin where others end",
    ),
    "overlapping columns": (parted((0, 0), (0, 1), sizes=(9, 2)), "overlap or lie outside"),
    "overlapping cells": (
        parted(*[(row, column) for row in (0, 3, 5) for column in (0, 2)], sizes=(3, 2)),
        "overlap or lie outside",
    ),
    "outside": (parted((0, 0), (3, 0), (7, 0), sizes=(3, 4)), "overlap or lie outside"),
    "size": (sized, "shards that hold 4 numbers, and the table has 9 x 4."),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(name: str) -> None:
    change, says = WRONG[name]
    assert says in planned(change)


@pytest.mark.parametrize(
    ("part", "value", "found"),
    [
        ("compute_kernel", "dense", "table_wise with the dense kernel"),
        ("sharding_type", "data_parallel", "data_parallel"),
    ],
)
def test_sequences_have_no_dense_kernel_on_a_cpu(part: str, value: str, found: str) -> None:
    size: dict[str, Any] = {"embedding_dim": 4, "num_embeddings": 9}
    tables = [EmbeddingConfig(name=name, feature_names=[name], **size) for name in ("a", "b")]
    made = nn.ModuleDict({"bags": EmbeddingCollection(tables=tables)})
    plan: Any = plan_of(made)
    check_plan(plan, made, SHARDERS, 1, "P returned")
    setattr(plan.plan["bags"]["b"], part, value)
    with pytest.raises(PluginError) as caught:
        check_plan(plan, made, SHARDERS, 1, "P returned")
    assert f"P returned for table 'b' of 'bags' {found}: on a CPU the dense" in str(caught.value)
    check_plan(plan, made, SHARDERS, 1, "P returned", device="cuda")
    bags = model()
    of_bags: Any = plan_of(bags)
    setattr(of_bags.plan["bags"]["b"], part, value)
    check_plan(of_bags, bags, SHARDERS, 1, "P returned")
    assert dense_tables(of_bags) == ["b"]


@pytest.mark.parametrize("kind", ["table_row_wise", "grid_shard"])
def test_sequences_are_sharded_in_the_ways_that_torchrec_has_for_them(kind: str) -> None:
    """It would raise an error as the model is sharded, with no word of the table or the plan."""
    tables = [EmbeddingConfig(name="b", feature_names=["b"], embedding_dim=4, num_embeddings=9)]
    made = nn.ModuleDict({"rows": EmbeddingCollection(tables=tables)})
    plan: Any = plan_of(made)
    plan.plan["rows"]["b"].sharding_type = kind
    with pytest.raises(PluginError) as caught:
        check_plan(plan, made, SHARDERS, 1, "P returned")
    assert f"P returned for table 'b' of 'rows' {kind}, by which TorchRec shards no" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "change",
    [
        parted((3, 0), (0, 0), (6, 0), sizes=(3, 4)),
        parted((0, 2), (0, 0), sizes=(9, 2)),
        parted(*[(row, column) for row in (0, 3, 6) for column in (0, 2)], sizes=(3, 2)),
    ],
)
def test_shards_that_are_a_tables_parts_fit(change: Callable[[dict[str, Any]], object]) -> None:
    made = model()
    plan = plan_of(made)
    change(plan.plan)
    check_plan(plan, made, [OwnSharder()], 1, "P returned")


def row_wise(*sizes: int, ranks: tuple[int, ...] = (0, 1)) -> Callable[[dict[str, Any]], object]:
    """A plan that has a table of 9 x 4 row-wise on two ranks, in parts of so many rows."""

    def change(plan: dict[str, Any]) -> None:
        table = plan["bags"]["a"]
        table.sharding_type, table.ranks = "row_wise", [*ranks]
        begins = [sum(sizes[:part]) for part in range(len(sizes))]
        table.sharding_spec.shards = [
            ShardMetadata([begin, 0], [size, 4], f"rank:{rank}/cpu")
            for begin, size, rank in zip(begins, sizes, ranks, strict=False)
        ]

    return change


def on_others(plan: dict[str, Any]) -> None:
    plan["bags"]["a"].ranks = [1]


PARTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "uneven": (
        row_wise(3, 6),
        "row_wise with 3, 6 rows, in this order, and TorchRec looks up as "
        "if they were 5, 4: it would train other rows. `construct_module_sharding_plan` of Torch",
    ),
    "too even": (row_wise(4, 5), "row_wise with 4, 5 rows, in this order"),
    "on one rank": (row_wise(9, ranks=(0,)), "row_wise in 1 shard. `construct_module_sharding_pl"),
    "on fewer": (row_wise(9), "row_wise on ranks 0, 1, and 1 shard on rank 0. Give each rank"),
    "turned": (row_wise(5, 4, ranks=(1, 0)), "row_wise on ranks 1, 0: TorchRec looks rows up on"),
    "elsewhere": (on_others, "table_wise on rank 1, and 1 shard on rank 0."),
    "halves": (
        parted((0, 0), (0, 2), sizes=(9, 2)),
        "table_wise on rank 0, and 2 shards on ranks 0, 0.",
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_torchrec_would_not_look_up_in_are_named(name: str) -> None:
    """It takes their number, order and ranks for granted; a sharder of somebody else's may not."""
    change, says = PARTS[name]
    made = model()
    plan = plan_of(made)
    change(plan.plan)
    with pytest.raises(PluginError) as caught:
        check_plan(plan, made, SHARDERS, 2, "P returned")
    assert f"P returned for table 'a' of 'bags' {says}" in str(caught.value)
    check_plan(plan, made, [OwnSharder()], 2, "P returned")


@pytest.mark.parametrize(
    "way",
    [
        sharding_plan.row_wise(compute_kernel="fused"),
        sharding_plan.column_wise(ranks=[3, 1], compute_kernel="fused"),
        sharding_plan.table_wise(rank=3, compute_kernel="fused"),
        sharding_plan.table_row_wise(host_index=1),
        sharding_plan.data_parallel(),
    ],
)
def test_parts_that_torchrec_makes_fit(way: Any) -> None:
    made: Any = model()
    places = sharding_plan.construct_module_sharding_plan(
        made["bags"],
        {"a": way, "b": way},
        EmbeddingBagCollectionSharder(),
        local_size=2,
        world_size=4,
        device_type="cuda",
    )
    check_plan(ShardingPlan({"bags": places}), made, SHARDERS, 4, "P returned", device="cuda")


def test_torchrecs_own_plan_fits() -> None:
    made = model()
    check_plan(plan_of(made), made, SHARDERS, 1, "P returned")
    check_plan(ShardingPlan({}), made, SHARDERS, 1, "P returned")  # every rank has all of it


def differ(*ranks: list[int]) -> str:
    """On a rank: what is said of a plan that has the columns of a table on its own of `ranks`."""
    table = EmbeddingBagConfig(name="a", feature_names=["a"], embedding_dim=24, num_embeddings=9)
    way = sharding_plan.column_wise(ranks=ranks[dist.get_rank()], compute_kernel="fused")
    places = sharding_plan.construct_module_sharding_plan(
        EmbeddingBagCollection(tables=[table]),
        {"a": way},
        EmbeddingBagCollectionSharder(),
        local_size=2,
        world_size=2,
        device_type="cpu",
    )
    assert dist.group.WORLD is not None
    with pytest.raises(PluginError) as caught:
        check_same(ShardingPlan({"bags": places}), dist.group.WORLD, "P returned")
    return str(caught.value)


def test_ranks_compare_where_each_shard_is(gloo_pool: GlooPool) -> None:
    first, second = gloo_pool.run(differ, [0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 1, 0])
    assert first == second
    for rank, on in enumerate(("0, 1, 0, 1, 0, 1", "0, 1, 0, 1, 1, 0")):
        assert f"rank {rank} has column_wise with the fused kernel on ranks {on} in" in first
