"""Ladder: what TorchRec's placement costs each rank, as values; then beside the bytes it sends."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_bag_cost import LOOKUPS, ROWS, Bags
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.planning.access.distribution import RowDistribution, appears
from recd_plugins.planning.access.parametric import uniform, zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.prices.codecs import torchrec_codecs
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.prices.row_wise_cost import home_load, row_wise_cost
from recd_plugins.planning.prices.sharded_cost import sharded_cost
from recd_plugins.planning.tables.model_tables import model_tables
from recd_plugins.planning.tables.planned_shards import PlannedShard, PlannedShards, planned_shards
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.measure.traffic import Traffic, TrafficCounter

W, B = 2, 64
U = 2 * W
PRICES = Prices(
    cluster=Cluster.of(Topology(ranks_per_node=W, inter_node_gbps=0.02, intra_node_gbps=2), U),
    batch_size=B,
    k=1.5,
)


def whole(rank: int) -> PlannedShards:
    return PlannedShards(kind="table_wise", shards=(PlannedShard(rank, 1.0, 1.0),))


def table(name: str, rank: int, bags: float = 1) -> ProfiledTable:
    return ProfiledTable(
        name=name, rows=zipf(1000, 5), dim=16, bags=bags, collection="bags", shards=whole(rank)
    )


TWO_BYTES = ProfiledTable(
    name="t", rows=RowDistribution.of([10], [0.5]), dim=16, element_bytes=2, bags=2
)
"""10 rows of 32 bytes; of a rank's batch 320 lookups (x: 3,072 bytes), 128 sums (y: 8,192)."""
PART = (PlannedShard(rank=1, rows=0.5, columns=0.25),)
OF_ONE_RANK = {"static_memory": 40.0, "rows_accessed": 4 * 160.0}


@pytest.mark.parametrize(
    ("kind", "shards", "bags", "everywhere", "at_one"),
    [
        (
            "column_wise",
            PART,
            2,
            {"ids_sent": 160, "dynamic_memory": 1_024, "between_nodes": 2 * 0.5 * (3_072 + 4_096)},
            OF_ONE_RANK
            | {
                "dynamic_memory": 4 * 1_024,
                "a2a_global": 4 * 0.5 * (3_072 + 4_096),
                "local": 4 * (3 * 160 * 8 + 2_048),
            },
        ),
        (  # rows travel: 320 of 32 bytes, 2,560 bytes of ids
            "column_wise",
            PART,
            0,
            {"ids_sent": 160, "dynamic_memory": 1_280, "between_nodes": 2 * 0.5 * (2_560 + 5_120)},
            OF_ONE_RANK
            | {
                "dynamic_memory": 4 * 1_280,
                "a2a_global": 4 * 0.5 * (2_560 + 5_120),
                "local": 4 * 4 * 1_280,
                "updated": 5,  # all ten of them are looked up
            },
        ),
        (
            "table_row_wise",
            PART,
            2,
            {
                "ids_sent": 160,
                "coalesced": 160,
                "dynamic_memory": 1_024,
                "between_nodes": 2 * 0.5 * 3_072 + 4_096,
            },
            OF_ONE_RANK
            | {
                "dynamic_memory": 6 * 2_048,
                "a2a_global": 4 * 0.5 * 3_072,
                "a2a_intra": 2 * 4 * 2_048,
                "a2a_cross": 2 * 2 * 2_048,
                "local": 4 * 160 * 3 * 8 + 2 * 4 * 2_048,
            },
        ),
        *(
            (
                kind,
                shards,
                2,
                {
                    "static_memory": 2 * 320,
                    "rows_accessed": 320,
                    "dynamic_memory": 8_192,
                    "ar_global": 320,
                    "between_nodes": 3 * 320,
                    "local": 4 * 320 + 3 * 320 * 32 + 2 * 8_192,
                },
                {},
            )
            for kind, shards in (("data_parallel", PART), ("table_wise", ()))
        ),
    ],
)
def test_every_number_of_a_part_of_a_table(
    kind: str,
    shards: tuple[PlannedShard, ...],
    bags: int,
    everywhere: dict[str, float],
    at_one: dict[str, float],
) -> None:
    """Of one rank that has half of the rows and a quarter of their columns, by the formulas."""
    one = dataclasses.replace(TWO_BYTES, bags=bags)
    found = sharded_cost(PRICES, one, PlannedShards(kind=kind, shards=shards))
    for name, value in vars(found).items():
        expected = np.full(U, everywhere.get(name, 0.0))
        expected[1] += at_one.get(name, 0.0)
        np.testing.assert_allclose(np.broadcast_to(value, U), expected, err_msg=name)


def test_the_owner_of_a_table_serves_all_ranks() -> None:
    cost = sharded_cost(PRICES, table("t", 1), whole(1))
    ids, sums = 5 * B * 8 + B * 4, B * 16 * 4
    np.testing.assert_allclose(cost.a2a_global, [0, U * (ids + 2 * sums), 0, 0])
    np.testing.assert_allclose(cost.static_memory, [0, 1000 * 64, 0, 0])
    np.testing.assert_allclose(cost.dynamic_memory, [sums, (U + 1) * sums, sums, sums])
    assert cost.between_nodes == pytest.approx((U - W) * (ids + 2 * sums))
    # Half of the columns each: half of the sums, and all of the ids.
    halves = PlannedShards(
        kind="column_wise", shards=(PlannedShard(0, 1.0, 0.5), PlannedShard(1, 1.0, 0.5))
    )
    cost = sharded_cost(PRICES, table("t", 0), halves)
    np.testing.assert_allclose(cost.a2a_global, [U * (ids + sums)] * 2 + [0, 0])


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("table_wise", [4, 0, 0, 0]),
        ("column_wise", [4, 0, 0, 0]),
        ("row_wise", [2, 0, 0, 1]),
        ("table_row_wise", [2, 2, 2, 0]),
        ("grid_shard", [2, 2, 2, 0]),
        ("data_parallel", [0, 0, 0, 1]),
    ],
)
def test_an_exchange_calls_what_its_kind_calls(kind: str, calls: list[int]) -> None:
    """All-to-alls of splits, ids, sums and gradients; parts of sums, and of tables that every rank
    has, are all-reduced."""
    shards = dataclasses.replace(whole(1), kind=kind)
    one = dataclasses.replace(table("t", 1), shards=shards)
    ledger = Ledger.of({"t": one}, {"t": AS_TORCHREC}, PRICES)
    names = ("a2a_global", "a2a_intra", "a2a_cross", "ar_global")
    assert [ledger.home_calls[name] for name in names] == calls
    entries = ledger.tables["t"].entries
    assert [entry.share for entry in entries.values()] == [0, 0, 1]
    assert ledger.tables["t"].interval("home") == (1, 1)


@pytest.mark.parametrize("kind", ["table_wise", "table_row_wise", "row_wise"])
def test_codecs_carry_sums_in_fewer_bytes_and_take_work(kind: str) -> None:
    """Half of the bytes that are no ids; 4 (1 + 1/2) of each sum that is encoded and decoded."""
    shards = dataclasses.replace(whole(1), kind=kind)
    one = dataclasses.replace(table("t", 1), shards=shards)
    half = dataclasses.replace(PRICES, carried=0.5)
    coded, plain = (sharded_cost(prices, one, shards) for prices in (half, PRICES))
    ids, sums = B * (5 * 8 + 4), B * 16 * 4
    if kind == "table_wise":
        assert coded.a2a_global[1] == pytest.approx(U * (ids + sums))
        assert plain.a2a_global[1] == pytest.approx(U * (ids + 2 * sums))
        more = np.full(U, 3 * sums)
        more[1] += U * 3 * sums
        np.testing.assert_allclose(coded.local - plain.local, more)
    if kind == "table_row_wise":
        np.testing.assert_allclose(coded.a2a_cross, plain.a2a_cross / 2)
        np.testing.assert_allclose(coded.a2a_intra, plain.a2a_intra / 2)
        np.testing.assert_allclose(coded.a2a_global, plain.a2a_global)
    if kind == "row_wise":
        assert coded.ar_global == pytest.approx(plain.ar_global / 2)
        assert coded.a2a_global == plain.a2a_global
        assert coded.local - plain.local == pytest.approx(6 * sums * (U + 1) / 2)
    assert np.mean(coded.between_nodes) < np.mean(plain.between_nodes)


def test_a_step_waits_for_the_rank_that_has_the_most() -> None:
    def ms(*ranks: int) -> float:
        tables = {f"t{n}": table(f"t{n}", rank) for n, rank in enumerate(ranks)}
        return Ledger.of(tables, dict.fromkeys(tables, AS_TORCHREC), PRICES).ms

    assert ms(0, 1, 2, 3) < ms(0, 0, 2, 3) < ms(0, 0, 0, 0)
    even, crowded = (ms(*ranks) for ranks in ((0, 1, 2, 3), (0, 0, 0, 0)))
    latency = 4 * PRICES.cluster.a2a_global.latency_ms
    assert crowded - latency == pytest.approx(4 * (even - latency), rel=1e-6)


def test_a_table_whose_place_nobody_knows_is_row_wise() -> None:
    unknown = {"t": dataclasses.replace(table("t", 0), shards=None)}
    ledgers = [Ledger.of(unknown, {"t": one}, PRICES) for one in (AS_TORCHREC, TableSizes())]
    assert ledgers[0].cost == ledgers[1].cost


def exchanged(kind: str, coded: bool) -> tuple[Traffic, dict[str, PlannedShards]]:
    """What a rank hands to collectives in a step of plain TorchRec, and where the tables were."""
    model = Bags()
    codecs = torchrec_codecs("fp16", "fp16", 1.0, "cpu") if coded else None
    sharder = EmbeddingBagCollectionSharder(OptimizerSettings().fused_params(), codecs)
    each = {
        "a": table_wise(rank=1, compute_kernel="fused")
        if kind == "table_wise"
        else column_wise(ranks=[0, 1, 2, 3], compute_kernel="fused"),
        "b": table_wise(rank=1, compute_kernel="fused"),
    }
    placed = construct_module_sharding_plan(model.bags, each, sharder=sharder, device_type="cpu")
    plan = ShardingPlan(plan={"bags": placed})
    shards = planned_shards(plan, model_tables(model))
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=[sharder]
    )
    draw = torch.Generator().manual_seed(dist.get_rank())
    features = KeyedJaggedTensor(
        keys=["x", "y", "z"],
        values=torch.randint(0, ROWS, (3 * B * LOOKUPS,), generator=draw),
        lengths=torch.full((3 * B,), LOOKUPS, dtype=torch.int32),
    )
    counter = TrafficCounter()
    with counter:
        sharded(features).backward()
    return counter.traffic, shards


@pytest.mark.parametrize("coded", [False, True], ids=["as they are", "by codecs"])
@pytest.mark.parametrize("kind", ["table_wise", "column_wise"])
def test_each_rank_hands_over_what_its_shards_cost(
    kind: str, coded: bool, gloo_pool: GlooPool
) -> None:
    found = gloo_pool.run(exchanged, kind, coded, world_size=U)
    prices = dataclasses.replace(PRICES, carried=0.5 if coded else 1.0)
    shards = found[0][1]
    a = RowDistribution.of([ROWS], [2 * LOOKUPS / ROWS])
    b = RowDistribution.of([ROWS], [LOOKUPS / ROWS])
    tables = [
        ProfiledTable(name="a", rows=a, dim=16, bags=2),
        ProfiledTable(name="b", rows=b, dim=32, bags=1, element_bytes=2),
    ]
    cost = sum(
        (sharded_cost(prices, one, shards[one.name]) for one in tables[1:]),
        sharded_cost(prices, tables[0], shards["a"]),
    )
    # A rank is handed ids and gradients, and hands over sums: in all phases together each moves as
    # much as the prices have it move for its own tables, on average over ranks.
    sent = [sum(traffic["all_to_all"].values()) for traffic, _ in found]
    assert np.mean(sent) == pytest.approx(np.mean(cost.a2a_global), rel=0.05)
    forward = [traffic["all_to_all"].get("forward", 0) for traffic, _ in found]
    sums = U * B * 4 * np.array([2 * 4, 2 * 4 + 32, 2 * 4, 2 * 4])
    if kind == "table_wise":
        sums = U * B * 4 * np.array([0, 2 * 16 + 32, 0, 0])
    np.testing.assert_allclose(forward, prices.carried * sums)


def on_four_ranks(first: float, second: float, others: float) -> ProfiledTable:
    """Four rows, one on each rank, the first of which are looked up more often."""
    rows = RowDistribution.of([1, 1, 2], [first, second, others], ids=np.arange(4))
    return ProfiledTable(name="t", rows=rows, dim=16)


def test_each_sharding_type_of_a_collection_has_exchanges_of_its_own() -> None:
    """Of a collection's sequences TorchRec sends those of whole tables by calls of their own, and
    those of row-wise ones by others, be they TorchRec's or in tiers; all say at once how many."""
    rows = uniform(1000, 5)
    spread = PlannedShards(
        kind="row_wise", shards=tuple(PlannedShard(rank, 0.25, 1.0) for rank in range(U))
    )
    tables = {
        name: ProfiledTable(name=name, rows=rows, dim=16, collection="s", shards=shards)
        for name, shards in {"a": whole(0), "b": whole(1), "c": spread}.items()
    }

    def calls(*names: str, coalesced: str = "") -> int:
        sizes = {
            name: TableSizes(coalesce="rank") if name in coalesced else AS_TORCHREC
            for name in names
        }
        every = {name: tables[name] for name in names}
        return Ledger.of(every, sizes, PRICES).home_calls["a2a_global"]

    assert calls("a", "b") == calls("c") == calls("b", "c", coalesced="bc") == 1 + 3
    assert calls("a", "b", "c") == calls("a", "b", coalesced="b") == 1 + 2 * 3


def test_how_many_times_its_share_a_rank_serves() -> None:
    busy = on_four_ranks(0.008, 0.002, 0.001)
    np.testing.assert_allclose(home_load(PRICES, busy), np.array([8, 2, 1, 1]) * 4 / 12)
    np.testing.assert_allclose(home_load(PRICES, busy, first=1), np.array([0, 2, 1, 1]))
    assert home_load(PRICES, busy, first=4).tolist() == [1, 1, 1, 1]


def test_every_number_of_a_rank_that_serves_more_than_its_share() -> None:
    """As the docstring has it, beside what all ranks have on average."""
    busy = on_four_ranks(0.008, 0.002, 0.001)
    for coalesce in ("none", "node"):
        load = home_load(PRICES, busy, coalesce=coalesce)
        mean = PRICES.row_wise(busy.rows, 64, coalesce).total(busy.rows.counts)
        found = row_wise_cost(PRICES, busy, coalesce=coalesce)
        more = (load - 1) * mean.rows_accessed * 64
        # Of two nodes of two: ranks 0 and 2 have one place, 1 and 3 the other.
        place = np.array([load[0] + load[2], load[1] + load[3]] * 2) / 2
        expected = vars(mean) | {
            "rows_accessed": mean.rows_accessed * load,
            "dynamic_memory": mean.dynamic_memory + more,
            "a2a_global": mean.a2a_global * load,
            "a2a_cross": mean.a2a_cross * load,
            "a2a_intra": mean.a2a_intra * place,
            "local": mean.local + 2 * more,
            "updated": appears(np.array([0.008, 0.002, 0.001, 0.001]), U * B),
        }
        for name, value in vars(found).items():
            np.testing.assert_allclose(value, expected[name], err_msg=f"{coalesce} {name}")
        assert np.mean(found.local) == pytest.approx(mean.local)
    even = on_four_ranks(0.002, 0.002, 0.002)
    assert row_wise_cost(PRICES, even) == PRICES.row_wise(even.rows, 64).total(even.rows.counts)


def test_ids_given_by_popularity_keep_the_first_rank_busy() -> None:
    two = Cluster.of(Topology(ranks_per_node=1, inter_node_gbps=0.02), 2)
    prices = dataclasses.replace(PRICES, cluster=two)
    each = zipf(1_000, 1.0, 1.1)
    order = np.random.default_rng(0).permutation(1_000)
    ordered, shuffled = (
        ProfiledTable(
            name="t",
            rows=RowDistribution.of(each.counts, each.p, each.presence, ids=ids),
            dim=16,
        )
        for ids in (np.arange(1_000), order)
    )
    even = prices.row_wise(each, 64, "rank").total(each.counts)
    busy, fair = (
        row_wise_cost(prices, table, coalesce="rank").a2a_global for table in (ordered, shuffled)
    )
    asked = appears(each.presence, prices.batch_size)
    first = float((asked * each.counts)[:500].sum() / (asked @ each.counts))
    np.testing.assert_allclose(busy / even.a2a_global, [2 * first, 2 - 2 * first])
    assert np.max(fair) < 1.2 * even.a2a_global < np.max(busy)
    # Behind replicas of the hottest rows, what is left is shared more evenly.
    rest = home_load(prices, ordered, first=400, coalesce="rank")
    assert rest.max() < home_load(prices, ordered, coalesce="rank").max()
