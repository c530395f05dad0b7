"""Value tests: which tables leave memory where it has no room for all, and what they take there."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from trio import in_mapped_files

from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.parametric import uniform, zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB, Topology
from recd_plugins.planning.homes import fewest, homes_in_words, may_leave, with_less_memory
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.prices.milliseconds import marginal_ms
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.tables.model_tables import ModelTable
from recd_plugins.planning.tables.planned_shards import PlannedShard, PlannedShards
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlanner,
    TorchRecPlannerConfig,
)

RANKS, B = 4, 64
CLUSTER = Cluster.of(Topology(ranks_per_node=2, mapped_ns=5_000), RANKS)
PRICES = Prices(cluster=CLUSTER, batch_size=B, k=2.0)


@pytest.mark.parametrize("needed", range(1, 8))
def test_as_few_as_are_needed(needed: int) -> None:
    def attempt(count: int) -> str:
        if count < needed:
            raise CapabilityError(f"no room with {count}")
        return f"room with {count}"

    assert fewest(attempt, 1, 7) == (needed, f"room with {needed}")
    assert fewest(attempt, min(needed + 1, 7), 7)[0] == min(needed + 1, 7)
    with pytest.raises(CapabilityError, match=f"no room with {needed - 1}"):
        fewest(attempt, 0, needed - 1)


def table(name: str, num_rows: int, dim: int = 16) -> ModelTable:
    return ModelTable(
        name=name,
        module="rows",
        pooled=False,
        num_rows=num_rows,
        dim=dim,
        element_bytes=4,
        features=(name,),
    )


@in_mapped_files
def test_the_first_to_leave_have_the_fewest_rows_a_step_and_byte() -> None:
    tables = [table("hot", 1000), table("cold", 1000), table("wide", 1000, 64)]
    tables += [table("few", 5), table("stepped otherwise", 1000)]
    profile = Profile(
        rows={one.name: uniform(one.num_rows, 0.1 if one.name == "cold" else 4) for one in tables}
    )
    fused = {one.name: {} for one in tables} | {
        "wide": {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD},
        "stepped otherwise": {"optimizer": EmbOptimType.ADAM},
    }
    named = {one.name: one for one in tables}
    found = may_leave(named, profile, fused, batch_size=B, world_size=RANKS)
    assert [one.name for one in found] == ["cold", "wide", "hot"]  # row-wise, `few` is on 3 ranks
    assert [one.size for one in found] == [64e3, (4 * 64 + 4) * 1e3, 64e3]
    assert found[0].touched == pytest.approx(1000 * (1 - (1 - 1e-4) ** (B * RANKS)))
    assert found[0].ms(CLUSTER) == pytest.approx(found[0].touched / 4 * 5e-3)
    text = list(homes_in_words(found, ["cold"], CLUSTER))
    assert "5,000 ns" in text[0]
    assert [line.split()[:2] for line in text[2:]] == [
        ["cold", "mapped"],
        ["wide", "memory"],
        ["hot", "memory"],
    ]


@pytest.mark.parametrize(
    ("kind", "shards", "share"),
    [
        ("row_wise", [PlannedShard(n, 1 / 4, 1.0) for n in range(4)], [0.25] * 4),
        ("table_wise", [PlannedShard(2, 1.0, 1.0)], [0, 0, 1, 0]),
        ("column_wise", [PlannedShard(0, 1.0, 0.5), PlannedShard(3, 1.0, 0.5)], [1, 0, 0, 1]),
    ],
)
@pytest.mark.parametrize("bags", [0, 1])
def test_each_different_row_of_a_step_is_paged_where_it_lies(
    kind: str, shards: list[PlannedShard], share: list[float], bags: float
) -> None:
    rows = uniform(1000, 3)
    here = ProfiledTable(
        name="t", rows=rows, dim=16, bags=bags, shards=PlannedShards(kind=kind, shards=(*shards,))
    )
    there = dataclasses.replace(here, mapped=True)
    touched = 1000 * (1 - (1 - 3e-3) ** (B * RANKS))
    before, after = (
        Ledger.of({"t": one}, {"t": AS_TORCHREC}, PRICES).cost for one in (here, there)
    )
    assert np.mean(before.static_memory) > 0
    assert np.mean(after.static_memory) == np.mean(before.paged) == 0
    assert (after.paged * np.ones(4)).tolist() == pytest.approx([touched * one for one in share])
    for field in dataclasses.fields(before):
        if field.name not in ("static_memory", "paged"):
            assert np.array_equal(getattr(before, field.name), getattr(after, field.name))


def test_a_table_on_every_rank_lies_in_no_file() -> None:
    here = ProfiledTable(
        name="t", rows=uniform(1000, 3), dim=16, shards=PlannedShards(kind="data_parallel")
    )
    there = dataclasses.replace(here, mapped=True)
    before, after = (
        Ledger.of({"t": one}, {"t": AS_TORCHREC}, PRICES).cost for one in (here, there)
    )
    assert before == after


def test_rows_that_have_replicas_are_not_paged() -> None:
    rows = zipf(1000, 10)
    there = ProfiledTable(name="t", rows=rows, dim=16, mapped=True)
    sizes = TableSizes(replicated=40, per_node=8, coalesce="rank")
    one = Ledger.of({"t": there}, {"t": sizes}, PRICES).tables["t"]
    touched = rows.part(48, 1000).appearing(B * RANKS)
    assert np.sum(one.entries["home"].cost.paged) == pytest.approx(touched)
    assert one.replica_cost.paged == 0
    in_memory = dataclasses.replace(there, mapped=False)
    other = Ledger.of({"t": in_memory}, {"t": sizes}, PRICES).tables["t"]
    more = marginal_ms(one.cost.mean, CLUSTER) - marginal_ms(other.cost.mean, CLUSTER)
    assert more == pytest.approx(touched / RANKS * 5e-3)
    # As the price of the rows has it, one by one.
    each = PRICES.row_wise(rows, 64, "rank", mapped=1)
    assert each.total(np.ones_like(rows.counts)).static_memory == 0
    whole = Ledger.of({"t": there}, {"t": TableSizes(coalesce="rank")}, PRICES).cost
    assert each.total(rows.counts).paged == pytest.approx(np.mean(whole.paged))


def test_memory_that_is_taken_is_no_more_there() -> None:
    assert with_less_memory(Topology(host_memory_gb=3), 2 * GB).host_memory_gb == 1
    assert with_less_memory(Topology(), 28 * GB).host_memory_gb == 100
    with pytest.raises(RegistryError, match="host_memory_gb"):
        with_less_memory(Topology(host_memory_gb=3), 3 * GB)


def test_torchrecs_planner_counts_no_rows_of_tables_in_files() -> None:
    names = ("a", "b")
    model = nn.ModuleDict(
        {
            "bags": EmbeddingBagCollection(
                tables=[
                    EmbeddingBagConfig(
                        name=n, embedding_dim=16, num_embeddings=100_000, feature_names=[n]
                    )
                    for n in names
                ],
                device=torch.device("meta"),
            )
        }
    )
    planner = TorchRecPlanner(
        TorchRecPlannerConfig(search="greedy"),
        device="cpu",
        batch_size=16,
        sharders=default_sharders,
    )
    room = Topology(host_memory_gb=8e-3)  # for one of them, of 6.4 MB
    with pytest.raises(CapabilityError, match=r"0\.0119 GB.* lie in mapped files, as `sharding"):
        planner.propose(model, room, 1)
    for name in names:
        assert set(planner.in_files([name]).propose(model, room, 1).plan["bags"]) == {*names}
    held = planner.row_wise(names).in_files(["a"])
    assert held.propose(model, room, 1).plan["bags"]["a"].sharding_type == "row_wise"
    with pytest.raises(CapabilityError, match=r"tables of 0\.00596 GB, .* do not fit"):
        planner.in_files(["a"]).propose(model, Topology(host_memory_gb=2e-3), 1)
    with pytest.raises(
        CapabilityError, match="batches, beside tables that all lie in mapped"
    ) as no:
        planner.in_files(names).propose(model, Topology(host_memory_gb=1e-7), 1)
    assert "make the tables smaller" not in str(no.value)
