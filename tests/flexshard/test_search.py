"""Value tests: what `goal: auto` finds for pooled tables, against every way of every table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from recd_flexshard.policy.best_so_far import LEAVING, WORTH
from recd_flexshard.policy.considered_plans import considered_plans
from recd_flexshard.policy.search import FAR_APART, PlanSearch, way_of
from recd_flexshard.policy.sized_ledgers import SizedLedgers
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.access.parametric import uniform, zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Link, Topology
from recd_plugins.planning.prices.cost import Cost, Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.prices.sharded_cost import sharded_cost
from recd_plugins.planning.remembered import remembering
from recd_plugins.planning.tables.planned_shards import PlannedShard, PlannedShards
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes

CLUSTER = Cluster.of(Topology(ranks_per_node=2, inter_node_gbps=0.01, intra_node_gbps=1), 4)
PRICES = Prices(cluster=CLUSTER, batch_size=512, k=1.7)
MUCH = float(1 << 30)


def pooled(
    name: str, rank: int, *, rows: int, lookups: float, exponent: float = 1.05, bags: float = 1
) -> ProfiledTable:
    shards = PlannedShards(kind="table_wise", shards=(PlannedShard(rank, 1.0, 1.0),))
    law = zipf(rows, lookups, exponent) if exponent else uniform(rows, lookups)
    return ProfiledTable(name=name, rows=law, dim=64, bags=bags, collection="bags", shards=shards)


def searched(*tables: ProfiledTable, budget: float = MUCH) -> PlanSearch:
    search = PlanSearch({one.name: one for one in tables}, PRICES, budget=budget)
    search.run()
    return search


def test_long_bags_of_cold_rows_are_left_to_torchrec() -> None:
    tables = [pooled(f"t{n}", n, rows=10**6, lookups=20, exponent=0) for n in range(4)]
    search = searched(*tables)
    assert search.best is search.own
    (considered,) = considered_plans(search).values()
    assert [one.way for one in considered if one.chosen] == ["TorchRec's own plan (table_wise)"]
    assert min(one.ms for one in considered if not one.chosen) > search.own.ms


def test_short_bags_of_hot_rows_travel() -> None:
    tables = [pooled(f"t{n}", n, rows=1000, lookups=1) for n in range(4)]
    search = searched(*tables)
    assert search.best.ms < search.own.ms / 2
    for one in search.best.tables.values():
        assert not one.sizes.as_torchrec
    (considered,) = considered_plans(search).values()
    assert sum(one.chosen for one in considered) == 1
    chosen = next(one for one in considered if one.chosen)
    assert (1 - WORTH) * chosen.ms <= min(one.ms for one in considered if one.fits)
    assert chosen.ms == search.best.ms


def test_a_collection_is_split_where_its_tables_differ() -> None:
    """As good as the best of all ways of all tables, without replicas for any."""
    hot = [pooled(f"hot{n}", n, rows=100, lookups=1) for n in range(3)]
    cold = [pooled(f"cold{n}", n, rows=10**6, lookups=20, exponent=0) for n in range(4)]
    search = searched(*hot, *cold)
    split = {name: one.sizes.as_torchrec for name, one in search.best.tables.items()}
    assert split == {one.name: one in cold for one in (*hot, *cold)}
    ways = (AS_TORCHREC, TableSizes(coalesce="rank"), TableSizes(coalesce="node"))
    every = [
        search.ledgers.by(dict(zip(search.tables, sizes, strict=True)))
        for sizes in product(ways, repeat=7)
    ]
    assert search.best.ms <= min(one.ms for one in every)
    (considered,) = considered_plans(search).values()
    assert next(one.way for one in considered if one.chosen) == "each table its own way"


def test_tables_of_fewer_rows_than_ranks_are_row_wise_beside_others_alone() -> None:
    tiny = [pooled(f"t{n}", n, rows=3, lookups=1) for n in range(4)]
    assert searched(*tiny).best.ms == searched(*tiny).own.ms
    search = searched(*tiny, pooled("more", 0, rows=100, lookups=1))
    assert search.best.ms < search.own.ms / 2
    assert not search.best.tables["t0"].sizes.as_torchrec


def test_coalescing_alone_is_no_matter_of_memory() -> None:
    """Its buffers are a step's: at a budget of 0 they do not stand against it."""
    sequences = ProfiledTable(name="s", rows=zipf(3_000, 1.5, 0.8), dim=64, collection="sequences")
    prices = dataclasses.replace(PRICES, batch_size=2048)
    coalesced = Ledger.of({"s": sequences}, {"s": TableSizes(coalesce="rank")}, prices)
    search = PlanSearch({"s": sequences}, prices, budget=0.0)
    assert search.run().ms <= coalesced.ms
    # What replicas take beside counts.
    for one in search.best.tables.values():
        alone = search.ledgers.by({"s": TableSizes(coalesce=one.sizes.coalesce)})
        assert search.best.memory <= max(alone.memory, search.own.memory) + 1e-3
    strict = PlanSearch({"s": sequences}, prices, budget=-1.0)
    assert strict.run().memory <= search.own.memory - 1


def test_one_tier_is_coalescing_without_replicas() -> None:
    """However much memory smaller exchanges leave, and whichever plan of replicas is faster."""
    sequences = ProfiledTable(name="s", rows=zipf(3_000, 1.5, 1.2), dim=64, collection="sequences")
    tables = {"s": sequences, "b": pooled("b", 0, rows=1000, lookups=1)}
    search = PlanSearch(tables, PRICES, budget=MUCH, tiers=1)
    assert PlanSearch(tables, PRICES, budget=MUCH).run().ms < search.run().ms < search.own.ms
    for one in (search.best, *search.candidates(search.ways)):
        assert not any(each.has_replicas for each in one.tables.values())
    considered = considered_plans(search).values()
    assert not any("replicas" in one.way for each in considered for one in each)
    with pytest.raises(CapabilityError, match="can be at most"):
        PlanSearch(tables, PRICES, budget=-MUCH, tiers=1).run()


def test_torchrecs_plan_is_left_only_if_it_is_slower_where_ranks_work_meanwhile_too() -> None:
    """Coalescing spares bytes and takes operations. Where ranks share a processor, bytes that they
    would wait for are worth less: a step that is long by its calls stays TorchRec's."""
    each = tuple(PlannedShard(rank, 0.25, 1.0) for rank in range(4))
    table = ProfiledTable(
        name="s",
        rows=zipf(2_000, 4, 1.05),
        dim=64,
        collection="s",
        shards=PlannedShards(kind="row_wise", shards=each),
    )

    def searched_by(**measured: float) -> PlanSearch:
        link = Link(gbps=0.1, latency_ms=5)
        topology = Topology(device="cpu", ranks_per_node=2, a2a_global=link, op_us=50, **measured)
        prices = dataclasses.replace(PRICES, cluster=Cluster.of(topology, 4))
        search = PlanSearch({"s": table}, prices, tiers=1)
        search.run()
        return search

    alone, shared = searched_by(crowded=1.0), searched_by(crowded=3.0)
    assert alone.best is not alone.own
    assert shared.best is shared.own
    left = shared.ledgers.by({"s": alone.best.tables["s"].sizes})
    assert left.ms < (1 - LEAVING) * shared.own.ms
    assert left.ms_working_meanwhile > shared.own.ms_working_meanwhile


def test_rows_are_copied_only_if_that_is_faster_where_ranks_work_meanwhile_too() -> None:
    """Prices as measured on two nodes of two ranks that share processors, behind 1,000 mbit: by the
    one price replicas save 5%, by the other they take 29% more, and steps took 82 ms for 79.
    Behind a tenth of the bandwidth both prices have them."""
    table = ProfiledTable(name="s", rows=zipf(100_000, 40, 1.05), dim=64, collection="s")

    def searched_behind(gbps: float) -> PlanSearch:
        cluster = Cluster(
            n_nodes=2,
            ranks_per_node=2,
            a2a_global=Link(gbps=gbps, latency_ms=4.6),
            a2a_intra=Link(gbps=1.9, latency_ms=2.4),
            a2a_cross=Link(gbps=gbps, latency_ms=3.2),
            ar_global=Link(gbps=gbps * 2 / 3, latency_ms=5.3),
            ar_cross=Link(gbps=gbps / 2, latency_ms=4.1),
            gather_gbps=5.0,
            chunk_gbps=19.5,
            unique_ns=36.0,
            update_ns=291.0,
            marks_ns=3.9,
            op_us=30.6,
            crowded=2.54,
            link_shared=1.94,
            beside=0.7,
            side_stream=False,
        )
        prices = Prices(cluster=cluster, batch_size=1024, k=1.2)
        search = PlanSearch({"s": table}, prices, budget=MUCH)
        search.run()
        return search

    fast, slow = searched_behind(0.113), searched_behind(0.0113)
    alone = fast.best.tables["s"].sizes
    assert alone == TableSizes(coalesce="rank")
    copies = [one for one in considered_plans(fast)["s"] if one.way.endswith("with replicas")]
    copied = min(copies, key=lambda one: one.ms)
    assert copied.ms < (1 - WORTH) * fast.best.ms
    assert copied.unworthy == "is no faster if ranks work while others wait for bytes"
    assert slow.best.tables["s"].has_replicas
    without = slow.ledgers.by({"s": alone})
    assert slow.best.ms < without.ms
    assert slow.best.ms_working_meanwhile < without.ms_working_meanwhile


@pytest.mark.parametrize(("ranks_per_node", "rows"), [(1, 2_000), (2, 20_000)])
def test_sequences_alone_may_have_replicas_beside_bags(ranks_per_node: int, rows: int) -> None:
    """Those of bags must save more, and would have kept both without. With one rank a node, ids
    that are coalesced by node are coalesced by rank: that is no way of its own."""
    bags, items = pooled("bags", 0, rows=rows, lookups=1), pooled("items", 1, rows=rows, lookups=8)
    items = dataclasses.replace(items, bags=0, collection="seq")
    tables = {one.name: one for one in (bags, items)}
    topology = Topology(ranks_per_node=ranks_per_node, inter_node_gbps=0.01, intra_node_gbps=1)
    prices = dataclasses.replace(PRICES, cluster=Cluster.of(topology, 2 * ranks_per_node))
    search = PlanSearch(tables, prices, budget=1e6)
    search.run()
    best = search.best.tables
    assert [best[name].has_replicas for name in ("bags", "items")] == [False, True]
    assert best["bags"].travels
    of_node = ["node" in search.ways_of((name,)) for name in tables]
    assert of_node == [ranks_per_node > 1] * 2
    both = [
        one
        for one in search.candidates(search.ways)
        if all(table.has_replicas for table in one.tables.values())
    ]
    assert any(one.ms < search.ledgers.by(search.without_replicas(search.ways)).ms for one in both)
    for one in both:
        assert search.so_far.unworthy(one)


def test_a_plan_over_the_budget_says_which_budget_it_fits() -> None:
    sequences = dataclasses.replace(pooled("s", 0, rows=20_000, lookups=3), bags=0)
    poor = searched(sequences, budget=0.0)
    rich = poor.ledgers.by({"s": TableSizes(replicated=2_000)})
    needs = poor.so_far.needs(rich)
    assert not poor.so_far.fits(rich)
    assert 0 < needs < MUCH
    assert searched(sequences, budget=needs).so_far.fits(rich)
    assert not searched(sequences, budget=0.99 * needs).so_far.fits(rich)
    assert poor.so_far.needs(poor.best) == 0


@pytest.mark.parametrize("rows", [3, 5])
def test_no_budget_fits_a_plan_that_leaves_a_rank_without_rows(rows: int) -> None:
    """Of 5 rows four ranks have two, two, one and none."""
    tiny = searched(pooled("tiny", 0, rows=rows, lookups=1), budget=0.0)
    one_empty = tiny.ledgers.by({"tiny": TableSizes(replicated=rows)})
    assert not tiny.so_far.fits(one_empty)
    assert tiny.so_far.needs(one_empty) == 0


def test_a_plan_that_is_hardly_faster_is_not_told_to_lack_memory() -> None:
    search = searched(*(pooled(f"t{n}", n, rows=1_000, lookups=1) for n in range(2)), budget=0.0)
    (considered,) = considered_plans(search).values()
    fastest = min(considered, key=lambda one: one.ms)
    assert fastest.needs > 0
    assert fastest.ms < search.best.ms
    assert fastest.unworthy.startswith("saves less than the ")
    much = searched(*search.tables.values(), budget=2 * fastest.needs)
    assert {way_of(one) for one in much.best.tables.values()} == {"rank"}


@pytest.mark.parametrize("budget", [0.0, MUCH])
def test_what_is_chosen_fits_and_is_worth_leaving_torchrec(budget: float) -> None:
    tables = [
        pooled("a", 0, rows=50, lookups=3),
        pooled("b", 0, rows=100_000, lookups=3, exponent=1.2),
        pooled("c", 1, rows=5_000, lookups=20),
        dataclasses.replace(pooled("s", 2, rows=5_000, lookups=20), bags=0, collection="seq"),
    ]
    search = searched(*tables, budget=budget)
    assert search.so_far.fits(search.best)
    if search.best is not search.own:
        assert search.best.ms <= (1 - LEAVING) * search.own.ms
    considered = considered_plans(search)
    assert set(considered) == {"bags", "seq"}
    for every in considered.values():
        assert sum(one.chosen for one in every) == 1
        assert every[0].way.startswith("TorchRec's own plan")


def test_a_table_is_priced_once_however_many_splits_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the prices that are put together are those of the whole plan."""
    hot = [pooled(f"hot{n}", n % 4, rows=100 + n, lookups=1) for n in range(8)]
    cold = [pooled(f"cold{n}", n % 4, rows=10**5 + n, lookups=20, exponent=0) for n in range(12)]
    placed: list[str] = []

    def counting(prices: Prices, table: ProfiledTable, shards: PlannedShards) -> Cost:
        placed.append(table.name)
        return sharded_cost(prices, table, shards)

    monkeypatch.setattr("recd_flexshard.policy.sized_ledgers.sharded_cost", counting)
    search = searched(*hot, *cold)
    assert len(search.collections["bags"]) == len(placed) == len(set(placed)) == 20
    assert {one.sizes.as_torchrec for one in search.best.tables.values()} == {True, False}
    tables = {name: one.table for name, one in search.best.tables.items()}
    sizes = {name: one.sizes for name, one in search.best.tables.items()}
    assert search.best.ms == pytest.approx(Ledger.of(tables, sizes, PRICES).ms, rel=1e-12)


def test_a_search_with_another_budget_makes_no_ledger_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While `recd advise` remembers; and it finds what it finds by itself."""
    tables = [pooled(f"t{n}", n % 4, rows=500 + n, lookups=3) for n in range(6)]
    alone = searched(*tables, budget=2 * MUCH).best
    made: list[tuple[TableSizes, ...]] = []
    make = SizedLedgers._make

    def counting(self: SizedLedgers, every: Mapping[str, TableSizes]) -> Ledger:
        made.append(tuple(every.values()))
        return make(self, every)

    monkeypatch.setattr(SizedLedgers, "_make", counting)
    with remembering():
        searched(*tables)
        again = searched(*tables, budget=2 * MUCH).best
    assert {name: one.sizes for name, one in again.tables.items()} == {
        name: one.sizes for name, one in alone.tables.items()
    }
    assert again.ms == alone.ms
    assert len(made) == len({*made}) > 1


@pytest.mark.parametrize("best", [1, 2, 20, 38, 39])
def test_the_best_split_is_found_by_those_beside_it(
    monkeypatch: pytest.MonkeyPatch, best: int
) -> None:
    """Of 39 splits in a row few are priced, where what lies nearer to the best is better."""
    rows = [(f"t{n}", TableSizes(coalesce="rank")) for n in range(40)]
    weighed: list[int] = []

    def by(self: SizedLedgers, sizes: Mapping[str, TableSizes]) -> Any:
        weighed.append(len(sizes))
        return SimpleNamespace(ms=abs(len(sizes) - best), count=len(sizes))

    search = searched(pooled("t", 0, rows=500, lookups=3))
    monkeypatch.setattr(SizedLedgers, "by", by)
    found: Any = search._fastest_split({}, rows)
    assert found.count == best
    assert len({*weighed}) <= FAR_APART + 10


def test_other_sizes_of_one_table_are_priced_without_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bags = [pooled(f"t{n}", n, rows=1000, lookups=1) for n in range(2)]
    sequences = [
        dataclasses.replace(pooled(f"s{n}", n, rows=500, lookups=8), bags=0) for n in (2, 3)
    ]
    ledgers = SizedLedgers({one.name: one for one in (*bags, *sequences)}, PRICES)
    sizes = {"t0": TableSizes(replicated=40, coalesce="rank"), "s2": TableSizes(coalesce="rank")}
    tries = [
        TableSizes(replicated=8, coalesce="node"),
        TableSizes(),
        AS_TORCHREC,
    ]
    before = ledgers.by(sizes)
    expected = [ledgers.by(sizes | {"s2": own}) for own in tries]
    assert ledgers.changed(before, "s2", sizes["s2"]) is before
    made: list[Any] = []
    monkeypatch.setattr(SizedLedgers, "_make", lambda self, every: made.append(every))
    found = [ledgers.changed(before, "s2", own) for own in tries]
    assert not made
    for one, other in zip(found, expected, strict=True):
        assert list(one.tables.items()) == list(other.tables.items())
        assert one.ms == other.ms
