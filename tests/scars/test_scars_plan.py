"""Ladder: sizes of the hot set as values, against counting; then plans for ranks not there."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from typer.testing import CliRunner

import recd_scars
from recd_plugins.cli.main import app
from recd_plugins.config import parse
from recd_plugins.data.batch import Batch
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.access.parametric import half_normal, uniform, zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB, Topology
from recd_plugins.planning.kernels_without_rows import without_rows
from recd_plugins.planning.planner_bases import OrdersBatches, Retiers, Tiered
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.tables.model_tables import ModelTable
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.merged_rows import MergedRows
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes
from recd_plugins.planning.tier_plans.tier_plan import Coalesce
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlannerConfig,
    build_torchrec_planner,
)
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.slots import Context, Loader
from recd_plugins.stack import load
from recd_plugins.testing.batches import random_batches
from recd_plugins.testing.conformance import check_record
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import SCHEMA, Probe
from recd_plugins.tiers.sharder import TierSharder
from recd_scars.config import ScarsConfig
from recd_scars.device_memory import DeviceMemory
from recd_scars.hot_batches import HotBatches
from recd_scars.hot_set import covering, optimum, within, worth
from recd_scars.scars_planner import ScarsPlanner, build_scars
from recd_scars.theory import Memory, optimal_cache
from recd_scars.traffic_report import rows_per_batch

TABLES = {
    "wide": ProfiledTable(name="wide", rows=RowDistribution.of([2, 5], [0.6, 0.1]), dim=8),
    "slim": ProfiledTable(name="slim", rows=RowDistribution.of([1, 3], [0.5, 0.05]), dim=2),
}
"""Hottest first: 2 rows of 32 bytes, 1 of 8, 5 of 32, 3 of 8; 1.2 + 0.5 + 0.5 + 0.15 lookups."""


def per_table(tables: dict[str, ProfiledTable], taken: Any) -> dict[str, int]:
    return dict(zip(tables, MergedRows.of(tables).per_table(taken).tolist(), strict=True))


@pytest.mark.parametrize(
    ("size", "wide", "slim"),
    [(0, 0, 0), (31, 0, 0), (63, 1, 0), (72, 2, 1), (140, 4, 1), (1e9, 7, 4)],
)
def test_a_budget_takes_the_hottest_rows_of_all_tables_that_fit(
    size: float, wide: int, slim: int
) -> None:
    assert per_table(TABLES, within(MergedRows.of(TABLES), size)) == {"wide": wide, "slim": slim}


@pytest.mark.parametrize(
    ("share", "wide", "slim"),
    [(0.6 / 2.35, 1, 0), (0.5, 2, 0), (1.7 / 2.35, 2, 1), (1.8 / 2.35, 3, 1), (1.0, 7, 4)],
)
def test_a_hit_rate_takes_as_few_rows_as_it_needs(share: float, wide: int, slim: int) -> None:
    assert per_table(TABLES, covering(MergedRows.of(TABLES), share)) == {"wide": wide, "slim": slim}


def test_a_hit_rate_of_all_lookups_takes_no_row_that_nobody_looks_up() -> None:
    seen = {"t": ProfiledTable(name="t", rows=RowDistribution.of([2, 5], [0.5, 0.0]), dim=4)}
    assert covering(MergedRows.of(seen), 1.0).tolist() == [2, 0]


@given(st.floats(0.01, 1.0), st.floats(0.5, 1.5))
@settings(max_examples=at_most(50), deadline=None)
def test_a_hit_rate_is_met_and_no_row_is_too_many(share: float, exponent: float) -> None:
    tables = {"t": ProfiledTable(name="t", rows=zipf(5_000, 3.0, exponent), dim=4)}
    rows = per_table(tables, covering(MergedRows.of(tables), share))["t"]
    coverage = tables["t"].rows.coverage
    assert coverage(rows) >= share * (1 - 1e-6)
    # Rows of a run are alike, so one row fewer falls short.
    assert coverage(rows - 1) < share * (1 + 1e-6)


def test_the_optimum_is_the_theorys_in_bytes_and_rows_never_seen_stay_out() -> None:
    law = half_normal(20_000, 4.0)
    tables = {"t": ProfiledTable(name="t", rows=law, dim=16)}
    numbers = Memory(capacity=100_000, per_sample=128, width=16)
    in_bytes = Memory(capacity=400_000, per_sample=512, width=1)
    found, expected = optimum(MergedRows.of(tables), in_bytes), optimal_cache(law, numbers)
    assert 0 < expected.cached < law.num_rows
    assert found.taken.sum() == pytest.approx(expected.cached, rel=0.02)
    assert found.size.batch_size == pytest.approx(expected.batch_size, rel=0.02)
    seen = RowDistribution.of([10, 990], [0.1, 0.0])
    plenty = {"t": ProfiledTable(name="t", rows=seen, dim=16)}
    assert per_table(plenty, optimum(MergedRows.of(plenty), in_bytes).taken) == {"t": 10}


def test_rows_that_few_ranks_look_up_are_not_worth_a_replica_on_all() -> None:
    on_4 = Prices(cluster=Cluster.of(Topology(ranks_per_node=4), 4), batch_size=512, k=1.6)
    rare = {"t": ProfiledTable(name="t", rows=uniform(100_000, 10), dim=16)}
    often = {"t": ProfiledTable(name="t", rows=uniform(100, 10), dim=16)}
    for tables, kept in ((rare, 0), (often, 100)):
        merged = MergedRows.of(tables)
        assert worth(merged, merged.rows.counts, on_4, "rank").sum() == kept
    alone = Prices(cluster=Cluster.of(Topology(), 1), batch_size=512, k=1.6)
    merged = MergedRows.of(rare)
    assert worth(merged, merged.rows.counts, alone, "rank").sum() == 100_000


def test_rows_a_step_are_the_formulas() -> None:
    rows = RowDistribution.of([1, 1], [0.5, 0.25])
    table = ProfiledTable(name="t", rows=rows, dim=1)
    moved = rows_per_batch(table, batch_size=2, cached=1)
    assert moved == pytest.approx((1.5, 0.75 + 0.4375, 0.4375))


def skewed(batches: int = 20, batch_size: int = 64) -> Iterator[Batch]:
    """Of every feature, mostly the first few ids."""
    draw = np.random.default_rng(0)
    lengths = torch.ones(4 * batch_size, dtype=torch.int32)
    lengths[-batch_size:] = 8
    for _ in range(batches):
        ids = [
            (draw.zipf(1.5, batch_size * (8 if feature.sequence else 1)) - 1) % feature.num_ids
            for feature in SCHEMA.sparse
        ]
        yield Batch(
            dense=torch.zeros(batch_size, 2),
            features=KeyedJaggedTensor(
                keys=list(SCHEMA.sparse_names),
                values=torch.from_numpy(np.concatenate(ids).astype(np.int64)),
                lengths=lengths,
            ),
            labels=torch.zeros(batch_size),
            weights=torch.ones(batch_size),
        )


def context(batches: Any = skewed, others: Any = None, **constraints: Any) -> Context:
    fused = OptimizerSettings().fused_params()
    config = parse(TorchRecPlannerConfig, {"search": "greedy", "constraints": constraints}, "x")
    others = others or build_torchrec_planner(config, Context(batch_size=64, fused=fused))
    return Context(batch_size=64, fused=fused, batches=batches, others=others)


def planner(batches: Any = skewed, *, constraints: Any = None, **options: Any) -> ScarsPlanner:
    config = parse(ScarsConfig, options, "cache")
    return build_scars(config, context(batches, **(constraints or {})))


def test_all_tables_are_row_wise_and_coalesced_with_their_hottest_rows_cached() -> None:
    made = planner(size="hit_rate", hit_rate=0.75)
    plan = made.propose(Probe(), Topology(), 4)
    assert isinstance(made, Tiered)
    assert isinstance(made, Retiers)
    assert made.tier_plan is not None
    assert set(made.tier_plan.tables) == {"item", "shop", "history"}
    for module, name in (("bags", "item"), ("bags", "shop"), ("sequences", "history")):
        assert plan.plan[module][name].sharding_type == "row_wise"
        table = made.tier_plan.tables[name]
        assert table.coalesce == "rank"
        assert 0 in table.replicated.tolist()
        assert not len(table.per_node)
    assert made.profile is not None
    hits = sum(
        made.profile[name].coverage(len(table.replicated)) * made.profile[name].lookups
        for name, table in made.tier_plan.tables.items()
    )
    lookups = sum(made.profile[name].lookups for name in made.tier_plan.tables)
    assert 0.75 <= hits / lookups < 0.85
    tiered = {one.module_type for one in made.sharders() if isinstance(one, TierSharder)}
    assert tiered == {EmbeddingBagCollection, EmbeddingCollection}


def test_batches_without_ids_leave_nothing_to_cache_and_that_is_told() -> None:
    def empty() -> Iterator[Batch]:
        for batch in skewed(batches=2):
            features = batch.features
            none = torch.zeros_like(features.lengths())
            kjt = KeyedJaggedTensor(features.keys(), features.values()[:0], lengths=none)
            yield dataclasses.replace(batch, features=kjt)

    made = planner(empty, size="hit_rate", hit_rate=0.75, coalesce="none")
    plan = made.propose(Probe(), Topology(), 4)
    assert made.tier_plan is None
    assert plan.plan["bags"]["item"].sharding_type == "row_wise"
    (notice,) = made.notices()
    says = "cache: scars is not used: by its prices for 4 ranks no replica and no coalescing of ids"
    assert str(notice).startswith(says)
    assert "so that these are plainly row-wise" in str(notice)
    assert str(notice).endswith("or say what the network is: `topology` in registry.yaml.")

    made.propose(Probe(), Topology(ranks_per_node=1, inter_node_gbps=10), 4)
    (notice,) = made.notices()
    assert "say what the network is" not in str(notice)  # it was said
    assert "or correct `topology`, if the links are slower than it says" in str(notice)


def test_it_says_what_is_cached_and_what_that_saves() -> None:
    made = planner(size="budget", budget_gb=1e-6)
    made.propose(Probe(), Topology(), 4)
    assert made.report is not None
    assert made.report.budget == pytest.approx(1e-6 * GB)
    cached = {name: one.sizes.replicated for name, one in made.report.ledger.tables.items()}
    # 32 bytes a row, of which k = 1.6 and its state of 4 bytes.
    assert sum(cached.values()) == int(1e-6 * GB / (32 * (1.64 + 4 / 32)))
    text = made.explain()
    assert "scars: size budget, coalesce rank, k = 1.77" in text
    assert "cached ones left out" in text
    assert "goal scars, budget" in text
    assert "by TorchRec's performance model" in text
    line = next(line for line in text.splitlines() if line.startswith("history"))
    assert line.split()[1] == str(cached["history"])
    assert line.split()[5] == "512"  # 64 samples of 8 lookups


def test_the_optimum_leaves_room_for_the_batch_and_takes_the_memory_given() -> None:
    made = planner(memory_gb=1.0, force=True)
    made.propose(Probe(), Topology(), 1)
    assert "M = 1 GB (cache.memory_gb) less" in made.explain()
    planned = made.tier_plan
    assert planned is not None
    assert made.profile is not None
    for name, table in planned.tables.items():  # all that was ever looked up fits
        rows = made.profile[name]
        assert len(table.replicated) == rows.counts[rows.p > 0].sum()
    smaller = planner()
    smaller.propose(Probe(), Topology(host_memory_gb=2.0), 1)
    assert "M = 2 GB (topology.host_memory_gb) less" in smaller.explain()
    default = planner()
    default.propose(Probe(), Topology(), 1)
    assert "M = 128 GB (TorchRec's default host_memory_gb) less" in default.explain()
    gpu = Topology(device="cuda", device_memory_gb=80)
    on_cuda = planner()
    on_cuda.propose(Probe(), gpu, 1)
    assert "M = 80 GB (topology.device_memory_gb) less 15% (sharding.reserve) and" in (
        on_cuda.explain()
    )
    all_of_it = planner(memory_gb=80.0)
    all_of_it.propose(Probe(), gpu, 1)
    assert "M = 80 GB (cache.memory_gb) less 3.1e-06 GB" in all_of_it.explain()
    with pytest.raises(CapabilityError, match="does not hold a batch of 64 samples"):
        planner(memory_gb=1e-4, activation_bytes=1e6).propose(Probe(), Topology(), 1)


def test_tables_that_share_a_parameter_take_nothing_off_the_dense_ones() -> None:
    """TorchRec shards each of them by itself, so each takes its memory."""
    configs = [
        EmbeddingBagConfig(name=name, embedding_dim=4, num_embeddings=10, feature_names=[name])
        for name in ("read", "bought")
    ]
    first, second = (EmbeddingBagCollection(tables=[one]) for one in configs)
    second.embedding_bags["bought"].weight = first.embedding_bags["read"].weight
    model = torch.nn.ModuleList([first, second, torch.nn.Linear(3, 1)])
    own = DeviceMemory.of(model, Topology(), 1, device="cpu", memory_gb=1.0, reserve=0.15, fused={})
    assert own.capacity == GB - 2 * 40 * 4 - 4 * 4 * 4


def test_what_is_slower_than_torchrecs_own_plan_is_not_taken_unless_forced() -> None:
    made = planner()
    plan = made.propose(Probe(), Topology(), 4)
    assert made.tier_plan is None
    assert "row_wise" not in {one.sharding_type for one in plan.plan["bags"].values()}
    assert "x slower than TorchRec's own" in made.explain()
    assert "Set cache.force to take it" in made.explain()
    slow = Topology(ranks_per_node=2, inter_node_gbps=0.001, intra_node_gbps=2)
    faster = planner()
    faster.propose(Probe(), slow, 4)
    assert faster.tier_plan is not None
    asked = planner(size="hit_rate", hit_rate=0.5)
    asked.propose(Probe(), Topology(), 4)
    assert asked.tier_plan is not None
    assert "it is taken as asked" in asked.explain()


def test_what_is_worth_nothing_on_many_ranks_is_coalesced_all_the_same() -> None:
    made = planner(force=True)
    made.propose(Probe(), Topology(), 4)
    assert made.tier_plan is not None
    assert made.tier_plan.tables["history"].coalesce == "rank"
    alone = planner(force=True)
    alone.propose(Probe(), Topology(), 1)
    assert alone.tier_plan is not None
    few, many = (
        sum(len(table.replicated) for table in plan.tables.values())
        for plan in (made.tier_plan, alone.tier_plan)
    )
    assert 0 < few < many
    assert f"{many - few:,} of these rows are not cached" in made.explain()


def test_a_collection_without_rows_on_some_rank_is_left_to_torchrec() -> None:
    """fbgemm looks nothing up there; of several tables one with rows everywhere is enough."""
    whole = Probe()
    sequences = whole.sequences.embedding_configs()[0].num_embeddings
    ranks = sequences - 1  # two rows each, as far as they go: to half of the ranks
    made = planner(size="hit_rate", hit_rate=0.75, force=True)
    plan = made.propose(whole, Topology(), ranks)
    assert made.tier_plan is None or "history" not in made.tier_plan.tables
    assert plan.plan["sequences"]["history"].sharding_type != "row_wise"
    why = f"table history is left to TorchRec, for row-wise on {ranks} ranks its kernel would"
    assert why in made.explain()


@pytest.mark.parametrize(
    ("rows", "ranks", "left"),
    [
        ([1], 2, True),
        ([2], 2, False),
        ([5], 4, True),  # 2, 2, 1 and 0
        ([5, 4], 4, False),
        ([1, 5], 4, True),
        ([9], 4, True),  # 3, 3, 3 and 0
        ([10], 4, False),
    ],
)
def test_ranks_without_rows_are_known_beforehand(rows: list[int], ranks: int, left: bool) -> None:
    tables = {
        f"t{n}": ModelTable(
            name=f"t{n}",
            module="bags",
            pooled=True,
            num_rows=num_rows,
            dim=4,
            element_bytes=4,
            features=(f"f{n}",),
        )
        for n, num_rows in enumerate(rows)
    }
    found = without_rows(dict.fromkeys(tables, TableSizes()), tables, ranks)
    assert found == (list(tables) if left else [])
    assert not without_rows(dict.fromkeys(tables, AS_TORCHREC), tables, ranks)


def test_tables_that_share_no_kernel_with_others_need_rows_on_all_ranks_themselves() -> None:
    """Of another pooling, of an optimizer of its own, in another part, in files or as rows that
    travel of another dimension."""
    large, small = (
        ModelTable(
            name=name,
            module="bags",
            pooled=True,
            pooling="SUM",
            num_rows=num_rows,
            dim=4,
            element_bytes=4,
            features=(name,),
        )
        for name, num_rows in (("large", 40), ("small", 5))
    )

    def left(coalesce: Coalesce = "none", **changed: Any) -> list[str]:
        given = {name: changed.pop(name) for name in ("mapped", "fused") if name in changed}
        tables = {"large": large, "small": dataclasses.replace(small, **changed)}
        sizes = dict.fromkeys(tables, TableSizes(coalesce=coalesce))
        return without_rows(sizes, tables, 4, **given)

    every = ("large", "small")
    assert left() == left("rank") == left(mapped=every) == []
    assert left(dim=2) == left("rank", pooling="MEAN") == []
    assert left(pooling="MEAN") == left(part=1) == left("rank", dim=2) == ["small"]
    assert left(element_bytes=2) == ["small"]
    assert left(dim=2, mapped=every) == ["small"]
    assert left(fused={"large": {"eps": 1e-8}, "small": {"eps": 1e-2}}) == ["small"]


@pytest.mark.parametrize(
    ("coalesce", "pooling", "dim"), [("none", PoolingType.MEAN, 8), ("rank", PoolingType.SUM, 4)]
)
def test_a_small_table_that_shares_no_kernel_with_a_large_one_is_left_to_torchrec(
    coalesce: Coalesce, pooling: PoolingType, dim: int
) -> None:
    """It would have rows on three of four ranks: 2, 2 and 1."""
    item, shop = (
        EmbeddingBagConfig(
            name=name,
            embedding_dim=width,
            num_embeddings=rows,
            feature_names=[name],
            pooling=kind,
        )
        for name, width, rows, kind in (
            ("item", 8, 30, PoolingType.SUM),
            ("shop", dim, 5, pooling),
        )
    )
    bags = EmbeddingBagCollection(tables=[item, shop], device=torch.device("meta"))
    made = planner(size="hit_rate", hit_rate=0.9, coalesce=coalesce)
    plan = made.propose(torch.nn.Sequential(bags), Topology(), 4)
    assert made.tier_plan is not None
    assert set(made.tier_plan.tables) == {"item"}
    assert plan.plan["0"]["shop"].sharding_type != "row_wise"
    assert "table shop is left to TorchRec, for row-wise on 4 ranks" in made.explain()


def test_what_the_sharding_slot_keeps_is_left_to_it() -> None:
    made = planner(
        size="hit_rate", hit_rate=0.5, constraints={"history": {"sharding_types": ["table_wise"]}}
    )
    plan = made.propose(Probe(), Topology(), 4)
    assert made.tier_plan is not None
    assert set(made.tier_plan.tables) == {"item", "shop"}
    assert plan.plan["sequences"]["history"].sharding_type == "table_wise"


def test_some_bags_of_a_collection_may_be_cached_alone() -> None:
    options = {"size": "hit_rate", "hit_rate": 0.5, "tables": ["item", "history"]}
    some = planner(**options)
    some.propose(Probe(), Topology(), 4)
    assert some.tier_plan is not None
    assert set(some.tier_plan.tables) == {"item", "history"}
    made = planner(**options, coalesce="none")
    made.propose(Probe(), Topology(), 4)
    assert made.tier_plan is not None
    assert set(made.tier_plan.tables) == {"item", "history"}
    assert made.report is not None
    # Plain bags send parts of their sums, which are all-reduced.
    assert made.report.row_wise.cost.ar_global > 0
    with pytest.raises(RegistryError, match=r"cache\.tables: no table matches 'itm'; did you"):
        planner(tables=["itm"]).propose(Probe(), Topology(), 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"size": "budget"}, "cache.size: needs budget_gb"),
        ({"size": "hit_rate"}, "cache.size: needs hit_rate"),
        ({"hit_rate": 0.5}, "cache.hit_rate: is for `size: hit_rate`, but size is optimum"),
        ({"size": "budget", "budget_gb": 0}, "cache.budget_gb: must be > 0"),
        ({"profile_batches": 0, "coalesce": "none"}, "cache.profile_batches: is 0"),
        ({"profile_batches": 2**63}, "cache.profile_batches: must be >= 0 and <= 1e+09"),
        ({"window": 2**63}, "cache.window: must be >= 1 and <= 1e+06"),
        ({"mapped_folder": "x"}, "cache.mapped_folder: is for `home: mapped`"),
        ({"size": "hit_rate", "hit_rate": 1.5}, "cache.hit_rate: must be > 0 and <= 1"),
    ],
)
def test_options_that_clash_are_reported_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RegistryError) as caught:
        parse(ScarsConfig, options, "cache")
    assert says in str(caught.value)


def test_planners_that_it_cannot_stand_before_are_reported() -> None:
    made = planner()
    with pytest.raises(RegistryError, match=r"is optimum, but sharding: scars gives rows"):
        build_scars(ScarsConfig(), context(others=made))
    with pytest.raises(CapabilityError, match="no `may_be_row_wise` and `row_wise`"):
        build_scars(ScarsConfig(), context(others=object()))


def test_mapped_tables_need_no_memory_and_no_gpu() -> None:
    little = Topology(host_memory_gb=1e-5)
    with pytest.raises(CapabilityError, match="do not fit on 4 ranks"):
        planner(size="hit_rate", hit_rate=0.5).propose(Probe(), little, 4)
    mapped = ScarsConfig(home="mapped", size="hit_rate", hit_rate=0.5)
    made = build_scars(mapped, context())
    assert set(made.propose(Probe(), little, 4).plan) == {"bags", "sequences"}
    with pytest.raises(CapabilityError, match="mapped tables are for the CPU"):
        build_scars(mapped, dataclasses.replace(context(), device="cuda"))


def test_what_is_hot_can_be_left_to_training() -> None:
    made = planner(None, size="hit_rate", hit_rate=0.5, profile_batches=0)
    made.context = context()
    plan = made.propose(Probe(), Topology(), 1)
    assert made.tier_plan is not None
    for table in made.tier_plan.tables.values():
        assert (len(table.replicated), table.coalesce) == (0, "rank")
    assert plan.plan["bags"]["item"].sharding_type == "row_wise"
    assert "nothing is cached until train.retier_every" in made.explain()


def test_what_was_left_to_torchrec_stays_there_once_it_is_known_what_is_hot() -> None:
    """Of a collection that has no row on some rank no table was made ready for replicas."""
    made = planner(None, size="hit_rate", hit_rate=0.5, profile_batches=0)
    made.context = context()
    made.propose(Probe(), Topology(), 15)  # three of history's 40 rows each, and the last has none
    assert made.tier_plan is not None
    assert set(made.tier_plan.tables) == {"item", "shop"}
    moved = made.hotter(skewed())
    assert set(moved.tables) == {"item", "shop"}
    assert sum(len(table.replicated) for table in moved.tables.values())


def test_a_trainers_profile_counts_where_nothing_else_is_to_be_counted() -> None:
    known = planner(size="hit_rate", hit_rate=0.5)
    known.propose(Probe(), Topology(), 4)
    made = planner(None, size="hit_rate", hit_rate=0.5, profile_batches=0)
    made.context = dataclasses.replace(context(None), profile=known.profile)
    made.propose(Probe(), Topology(), 4)
    assert made.tier_plan is not None
    assert made.tier_plan == known.tier_plan


def told_of_both(sharding: dict[str, Any], **cache: Any) -> list[str]:
    """What is said of a plan that FlexShard makes of the rows, and SCARS of all else."""
    table = EmbeddingBagConfig(
        name="item", embedding_dim=16, num_embeddings=50_000, feature_names=["item"]
    )
    model = nn.ModuleDict({"bags": EmbeddingBagCollection([table], device=torch.device("meta"))})
    lookups = np.arange(1, 50_001) ** -1.1
    rows = RowDistribution.of(np.ones(50_000), 8 * lookups / lookups.sum(), ids=np.arange(50_000))
    profile = Profile(rows={"item": rows})
    both = {
        "plugins": ["recd_flexshard", "recd_scars"],
        "sharding": {"use": "flexshard", **sharding},
        "cache": {"use": "scars", "size": "plan", **cache},
        "train": {"batch_size": 256},
    }
    slow = Topology(ranks_per_node=2, inter_node_gbps=0.001, intra_node_gbps=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)
        planner: Any = load(both).planned_for(model, 4, slow, profile)
    return [str(one) for one in planner.notices() if one.what == "cache: scars"]


def test_who_plans_rows_by_two_slots_is_told_to_take_out_both() -> None:
    """Without the cache, FlexShard would plan as before."""
    (none,) = told_of_both({})
    assert "but what is fastest exchanges more bytes than TorchRec's own plan" in none
    assert "Take `cache` and `sharding` out. stack.explain() shows" in none
    rows = {"goal": "budget", "budget_gb": 0, "coalesce": "rank", "tables": ["item"]}
    (slower,) = told_of_both(rows)
    assert slower.startswith("cache: scars makes steps slower")
    assert re.search(r"exchanges of tables take [\d.]+ ms a step in place of [\d.]+\. Take", slower)
    assert "Take `cache` and `sharding` out of registry.yaml for TorchRec's own plan." in slower


def test_a_cache_that_leaves_all_to_the_sharding_slot_is_told() -> None:
    *_, idle = told_of_both({}, hot_batches=False)
    assert idle.startswith("cache: scars is not used: with `size: plan` rows, tiers and coalescing")
    assert "are those of `sharding: flexshard`" in idle
    for own in ({}, {"force": True}, {"home": "mapped"}):
        says = told_of_both({}, **{"hot_batches": not own, **own})
        assert not any("are those of" in one for one in says)


def test_hot_batches_can_be_had_or_not() -> None:
    loader = cast("Loader", Epoch())
    assert isinstance(planner(), OrdersBatches)
    assert isinstance(planner(window=4).order(loader, 0, 1), HotBatches)
    assert planner(hot_batches=False).order(loader, 0, 1) is loader
    made = planner(size="hit_rate", hit_rate=0.5, tables=["item"], coalesce="none")
    assert made.features_of == {}
    made.propose(Probe(), Topology(), 4)
    # Of the shop's rows none is cached, so a sample that has one is not hot.
    assert made.features_of == {"item": ("item", "seen"), "shop": ("shop",)}


class Epoch:
    """No more of a loader than a stage needs to be made."""

    def state_dict(self) -> dict[str, Any]:
        return {}


def test_without_batches_it_says_how_to_have_them(tmp_path: Path) -> None:
    made = planner(None)
    made.propose(Probe(), Topology(), 4)
    assert made.tier_plan is None
    assert "Pass the trainer's own" in made.explain()
    assert "or `cache.profile`" in made.explain()
    first = planner(force=True)
    first.propose(Probe(), Topology(), 4)
    assert first.profile is not None
    first.profile.save(tmp_path / "profile.arrow")
    again = planner(None, profile=str(tmp_path / "profile.arrow"), force=True)
    again.propose(Probe(), Topology(), 4)
    assert first.tier_plan is not None
    assert again.tier_plan == first.tier_plan


def probed() -> list[Batch]:
    return [step[0] for step in random_batches(SCHEMA, steps=8)]


@pytest.mark.parametrize("coalesce", ["none", "rank"])
def test_the_record_keeps_its_contract(gloo_pool: GlooPool, coalesce: str) -> None:
    """Weights equal unsharded ones."""
    (record,) = recd_scars.recd_cache()
    check_record(
        record,
        options={"size": "hit_rate", "hit_rate": 0.5, "coalesce": coalesce},
        context=dataclasses.replace(context(probed), others=None, schema=SCHEMA, batch_size=16),
        pool=gloo_pool,
    )


@pytest.mark.parametrize("command", ["plan", "train"])
def test_two_tier_plans_are_refused_before_tables_are_written(command: str, tmp_path: Path) -> None:
    values = {
        "plugins": ["recd_dlrm", "recd_flexshard", "recd_scars"],
        "folder": str(tmp_path / "data"),
        "dataset": {"use": "sessions", "samples": 100},
        "model": {"use": "sequence_dlrm"},
        "sharding": {"use": "flexshard"},
        "cache": {"use": "scars", "size": "optimum"},
        "train": {"ranks": 1, "device": "cpu", "run": str(tmp_path / "run")},
    }
    (tmp_path / "registry.yaml").write_text(json.dumps(values))  # JSON is YAML
    refused = CliRunner().invoke(app, [command, "-r", str(tmp_path / "registry.yaml")])
    assert refused.exit_code == 2
    assert "a table has one tier plan" in refused.stderr
    assert not (tmp_path / "data").exists()
