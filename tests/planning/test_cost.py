"""Ladder: prices and ledgers as values, against draws of real batches and the paper's times."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode

from benchmarks.flexshard.paper import MODELS, PRICES
from recd_plugins.errors import DataError, PluginError
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.access.parametric import zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB, Link, Topology
from recd_plugins.planning.fused_params import state_bytes
from recd_plugins.planning.prices.cost import PAPER_K, Cost, Prices, priced
from recd_plugins.planning.prices.ledger import FURTHER, Ledger
from recd_plugins.planning.prices.milliseconds import (
    Lane,
    marginal_ms,
    milliseconds,
    overlapped,
    working_meanwhile,
)
from recd_plugins.planning.prices.replica_factor import replica_factor, replica_passes, row_factor
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.plan_of_sizes import tier_plan
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.registry.settings import OptimizerSettings

N, W = 2, 4
CLUSTER = Cluster.of(Topology(ranks_per_node=W), N * W)
B, K, R = 100, 5.0, 64
ONE = RowDistribution.of([1], [0.02])
"""A row that 2 of a rank's 100 samples look up."""


def prices(reduce: str = "dense") -> Prices:
    return Prices(cluster=CLUSTER, batch_size=B, k=K, reduce=reduce, ask_once=False)  # type: ignore[arg-type]


def appears(samples: int) -> float:
    return float(1 - (1 - 0.02) ** samples)


def test_a_row_wise_row_crosses_the_network_once_per_access() -> None:
    cost = prices().row_wise(ONE, R).total(ONE.counts)
    assert cost.static_memory == R / 8
    assert cost.ids_sent == cost.rows_accessed == 2
    assert cost.dynamic_memory == 2 * 2 * R
    assert cost.a2a_global == 2 * (2 * R + 8)
    assert cost.between_nodes == 8 * 2 * (2 * R + 8) / 2
    assert (cost.a2a_intra, cost.ar_global, cost.ar_cross) == (0, 0, 0)
    assert cost.coalesced == 2, "ids are sorted by rank"
    assert cost.local == 8 * 2 * R, "looked up and updated there, put in order here"


def test_coalesced_it_crosses_once_per_rank_or_node_that_touches_it() -> None:
    per_rank = prices().row_wise(ONE, R, "rank").total(ONE.counts)
    assert per_rank.a2a_global == pytest.approx(appears(B) * (2 * R + 8))
    assert per_rank.dynamic_memory == pytest.approx((2 * appears(B) + 2) * R)
    assert per_rank.coalesced == pytest.approx(2 + appears(B))
    node = prices().row_wise(ONE, R, "node").total(ONE.counts)
    assert node.a2a_global == 0
    assert node.a2a_cross == pytest.approx(appears(B * W) / W * (2 * R + 8))
    assert node.a2a_intra == pytest.approx(appears(B) * (2 * R + 8))
    # E[nodes that touch it] crossings, each with the chance (N - 1) / N to leave its node.
    assert node.between_nodes == pytest.approx(N * appears(B * W) * (2 * R + 8) / 2)


def test_a_column_wise_row_sends_its_ids_to_everyone() -> None:
    cost = prices().column_wise(ONE, R).total(ONE.counts)
    assert cost.static_memory == R / 8
    assert cost.ids_sent == cost.rows_accessed == 8 * 2
    assert cost.dynamic_memory == 2 * 2 * R
    assert cost.a2a_global == 2 * (2 * R + 8 * 8)


def test_a_row_on_every_rank_costs_memory_and_a_reduce() -> None:
    cost = prices().replicated(ONE, R).total(ONE.counts)
    assert cost.static_memory == K * R
    assert cost.ids_sent == cost.a2a_global == cost.a2a_intra == cost.ar_cross == 0
    assert cost.dynamic_memory == 2 * R
    assert cost.ar_global == R
    # A ring of 8 ranks, each of which sends the next 2 * 7 / 8 R, leaves both nodes once.
    assert cost.between_nodes == 2 * 2 * 7 / 8 * R


def test_touched_rows_alone_are_reduced_node_by_node() -> None:
    union, sparse = appears(B * 8), appears(B * W) * N / 2
    bits = 1 / 8
    for reduce, carried in (
        ("union", union),
        ("sparse", sparse),
        ("touched", min(union, sparse)),
    ):
        cost = prices(reduce).replicated(ONE, R).total(ONE.counts)
        assert cost.ar_global == 0
        assert cost.a2a_intra == pytest.approx((appears(B) + union) * R + 2 * bits)
        assert cost.ar_cross == pytest.approx((carried * R + bits * N / 2) / W)
        # Of the bits, each of W ranks a node sends a W-th to the N - 1 other nodes.
        assert cost.between_nodes == pytest.approx(2 * carried * R + N * (N - 1) * bits)
        per_node = prices(reduce).per_node(ONE, R).total(ONE.counts)
        assert per_node.ar_cross == cost.ar_cross
        assert per_node.between_nodes == cost.between_nodes


def test_a_row_in_every_node_costs_a_share_of_both() -> None:
    cost = prices().per_node(ONE, R).total(ONE.counts)
    assert cost.static_memory == K * R / W
    assert cost.a2a_intra == 2 * (2 * R + 8)
    assert cost.ar_cross == R / W
    assert cost.a2a_global == cost.ar_global == 0
    assert cost.dynamic_memory == 2 * 2 * R
    assert cost.between_nodes == 2 * R
    coalesced = prices().per_node(ONE, R, "rank").total(ONE.counts)
    assert coalesced.a2a_intra == pytest.approx(appears(B) * (2 * R + 8))
    once = dataclasses.replace(prices(), ask_once=True).per_node(ONE, R).total(ONE.counts)
    assert once == coalesced


def test_torchrecs_exchanges_carry_what_codecs_leave_of_a_row() -> None:
    """Half of rows and gradients to home and back, and 4 (1 + 1/2) of each byte to encode and
    decode them; within a node, and of replicas, all."""
    plain, half = prices(), dataclasses.replace(prices(), carried=0.5)

    def both(way: str, *options: Any) -> tuple[Cost, Cost]:
        made = (getattr(one, way)(ONE, R, *options).total(ONE.counts) for one in (plain, half))
        before, after = made
        return before, after

    before, after = both("row_wise")
    assert (before.a2a_global, after.a2a_global) == (2 * (2 * R + 8), 2 * (R + 8))
    assert after.local - before.local == 6 * 2 * R
    assert after.between_nodes / before.between_nodes == pytest.approx((R + 8) / (2 * R + 8))
    before, after = both("row_wise", "node")
    assert after.a2a_cross / before.a2a_cross == pytest.approx((R + 8) / (2 * R + 8))
    assert after.a2a_intra == before.a2a_intra
    before, after = both("column_wise")
    assert before.a2a_global - after.a2a_global == 2 * R
    for way in ("replicated", "per_node"):
        before, after = both(way)
        assert after == before


def test_every_number_of_every_way_to_place_a_row() -> None:
    """Three nodes of four ranks, so U = 12, of which 2 / 3 are in other nodes; p B = 2."""
    cluster = Cluster.of(Topology(ranks_per_node=4), 12)
    ours = Prices(cluster=cluster, batch_size=B, k=K)
    paper = dataclasses.replace(ours, reduce="dense", ask_once=False)
    alone, by_any, node = appears(B), appears(12 * B), appears(4 * B)
    crossing = node / 4
    sent = 2 * R + 8
    # Rows gathered by 3 nodes carry as much as an all-reduce of 3 / 2 as many; and N / 16 of bits.
    across = min(1.5 * node, by_any) * R + 3 / 16

    def total(cost: Cost) -> dict[str, float]:
        return vars(cost.total(ONE.counts))

    def numbers(**found: float) -> object:
        return pytest.approx(vars(Cost()) | found)

    assert total(ours.row_wise(ONE, R)) == numbers(
        static_memory=R / 12, ids_sent=2, rows_accessed=2, dynamic_memory=4 * R,
        a2a_global=2 * sent, between_nodes=8 * 2 * sent, local=16 * R, coalesced=2,
        updated=by_any / 12,
    )  # fmt: skip
    for pooled in (0, 1):
        assert total(ours.row_wise(ONE, R, "rank", pooled)) == numbers(
            static_memory=R / 12, ids_sent=alone, rows_accessed=alone,
            dynamic_memory=(2 * alone + (0 if pooled else 2)) * R, a2a_global=alone * sent,
            between_nodes=8 * alone * sent, local=(8 * alone + (6 if pooled else 8)) * R,
            coalesced=2 + alone, updated=by_any / 12,
        )  # fmt: skip
        assert total(ours.row_wise(ONE, R, "node", pooled)) == numbers(
            static_memory=R / 12, ids_sent=crossing + alone, rows_accessed=crossing,
            dynamic_memory=(2 * crossing + 2 * alone + (0 if pooled else 2)) * R,
            a2a_cross=crossing * sent, a2a_intra=alone * sent, between_nodes=8 * crossing * sent,
            local=(8 * crossing + 4 * alone + (6 if pooled else 8)) * R,
            coalesced=2 + crossing, updated=by_any / 12,
        )  # fmt: skip
        assert total(ours.replicated(ONE, R, pooled)) == numbers(
            static_memory=K * R, rows_accessed=2, dynamic_memory=0 if pooled else 2 * R,
            a2a_intra=(alone + by_any) * R + 1 / 4, ar_cross=across / 4, between_nodes=4 * across,
            local=((6 if pooled else 16) + 4 * by_any) * R,
            summed=(4 * alone + 12 * by_any / 4) * R, marked=1,
        )  # fmt: skip
        assert total(ours.per_node(ONE, R, "none", pooled)) == numbers(
            static_memory=K * R / 4, ids_sent=alone, rows_accessed=alone,
            dynamic_memory=(2 * alone + (0 if pooled else 2)) * R, a2a_intra=alone * sent,
            ar_cross=across / 4, between_nodes=4 * across,
            local=(4 * alone + (6 if pooled else 16) + by_any) * R, coalesced=2,
            summed=(4 * alone + 12 * by_any / 4) * R, marked=1 / 4,
        )  # fmt: skip
    assert total(ours.per_node(ONE, R)) == total(ours.per_node(ONE, R, "rank", 0))
    assert total(ours.column_wise(ONE, R)) == numbers(
        static_memory=R / 12, ids_sent=24, rows_accessed=24, dynamic_memory=4 * R,
        a2a_global=2 * (2 * R + 96), between_nodes=8 * 2 * (2 * R + 96), local=8 * R,
        updated=by_any,
    )  # fmt: skip
    assert total(paper.replicated(ONE, R)) == numbers(
        static_memory=K * R, rows_accessed=2, dynamic_memory=2 * R, ar_global=R,
        between_nodes=2 * 3 * 11 / 12 * R, local=12 * R,
    )  # fmt: skip
    assert total(paper.per_node(ONE, R)) == numbers(
        static_memory=K * R / 4, ids_sent=2, rows_accessed=2, dynamic_memory=4 * R,
        a2a_intra=2 * sent, ar_cross=R / 4, between_nodes=4 * R, local=9 * R,
    )  # fmt: skip


def test_on_a_cpu_rows_that_a_node_seldom_touches_are_numbered() -> None:
    cpu = Cluster.of(Topology(ranks_per_node=W, device="cpu"), N * W)
    for q, marked in ((1e-5, 32 * (1 - (1 - 1e-5) ** (B * W))), (0.02, 1)):
        row = RowDistribution.of([1], [q])
        ours = Prices(cluster=cpu, batch_size=B, k=K)
        theirs = dataclasses.replace(ours, cluster=CLUSTER)
        cost, with_bits = (one.per_node(row, R).total(row.counts) for one in (ours, theirs))
        fewer = 1 / 8 * (1 - marked) * N / 2 / W
        assert cost.ar_cross == pytest.approx(with_bits.ar_cross - fewer)
        assert cost.between_nodes == pytest.approx(with_bits.between_nodes - N * W * fewer)
        assert cost.marked == pytest.approx(marked / W)
        assert cost.summed == with_bits.summed


def test_gradients_of_replicas_are_summed_chunk_by_chunk() -> None:
    """Two nodes of a rank: each gathers the rows that the other touched, in 7 + 2 * 3 passes."""
    pair = Cluster.of(Topology(ranks_per_node=1), 2)
    alone, by_any = appears(B), appears(2 * B)
    for reduce, gathers in (("sparse", 1), ("touched", 1), ("union", 0), ("dense", None)):
        ours = Prices(cluster=pair, batch_size=B, k=K, reduce=reduce)  # type: ignore[arg-type]
        passes = 0 if gathers is None else 4 * alone + 12 * by_any + 13 * gathers * alone
        for cost in (ours.replicated(ONE, R), ours.per_node(ONE, R)):
            found = cost.total(ONE.counts)
            assert found.summed == pytest.approx(passes * R)
            assert found.marked == (gathers is not None)
    alike = RowDistribution.of([1], [1.0])  # which both touch, so that an all-reduce is as cheap
    both = Prices(cluster=pair, batch_size=B, k=K).replicated(alike, R)
    assert both.total(alike.counts).summed == (4 + 12 + 13) * R


def test_nothing_is_exchanged_within_a_node_of_one_rank_or_between_nodes_of_which_there_is_one():
    for nodes, ranks in ((3, 1), (1, 3)):
        cluster = Cluster.of(Topology(ranks_per_node=ranks), 3)
        prices = Prices(cluster=cluster, batch_size=B, k=K)
        by_any, node = appears(3 * B), appears(ranks * B)
        copies = (prices.replicated(ONE, R), prices.per_node(ONE, R))
        for cost in (*copies, prices.row_wise(ONE, R, "node")):
            found = cost.total(ONE.counts)
            assert (found.a2a_intra > 0) == (ranks > 1)
            assert (found.between_nodes > 0) == (nodes > 1)
        carried = min(1.5 * node, by_any) * R + 3 / 16 if nodes > 1 else 0
        for cost in copies:
            assert cost.total(ONE.counts).ar_cross == pytest.approx(carried / ranks)


def test_a_row_that_nobody_looks_up_costs_its_memory_and_the_bits_alone() -> None:
    never = RowDistribution.of([7], [0.0])
    ours = dataclasses.replace(prices("touched"), ask_once=True)
    bits = 7 / 8
    for cost, memory in (
        (ours.row_wise(never, R), R / 8),
        (ours.row_wise(never, R, "rank"), R / 8),
        (ours.row_wise(never, R, "node"), R / 8),
        (ours.per_node(never, R), K * R / 4),
        (ours.replicated(never, R), K * R),
    ):
        found = cost.total(never.counts)
        assert found.memory == found.static_memory == pytest.approx(7 * memory)
        copied = found.ar_cross > 0
        assert found.between_nodes == pytest.approx(2 * bits if copied else 0)
        assert found.local == found.ids_sent == found.coalesced == found.a2a_global == 0
        assert found.summed == 0
        marks = {K * R: 1, K * R / 4: 1 / 4}  # which all replicas have
        assert found.marked == pytest.approx(7 * marks.get(memory, 0))


@pytest.mark.parametrize(("nodes", "ranks"), [(3, 1), (1, 3)])
def test_a_row_that_nobody_looks_up_is_free_to_exchange(nodes: int, ranks: int) -> None:
    never = RowDistribution.of([7], [0.0])
    cluster = Cluster.of(Topology(ranks_per_node=ranks), nodes * ranks)
    ours = Prices(cluster=cluster, batch_size=B, k=K)
    for cost in (ours.row_wise(never, R, "node"), ours.per_node(never, R)):
        found = cost.total(never.counts)
        assert found.a2a_cross == found.a2a_intra == 0
    assert ours.replicated(never, R).total(never.counts).ar_cross == pytest.approx(
        7 * 3 / 16 if nodes > 1 else 0
    )


def test_memory_and_what_is_exchanged_are_sums_and_ranks_are_averaged() -> None:
    cost = Cost(
        static_memory=np.array([1.0, 3.0]), dynamic_memory=10, a2a_global=np.array([2.0, 4.0]),
        a2a_intra=10, a2a_cross=100, ar_global=1_000, ar_cross=10_000, between_nodes=1e9,
    )  # fmt: skip
    assert cost.memory.tolist() == [11, 13]
    assert cost.exchanged == 11_113
    assert cost.mean.memory == 12
    assert vars((cost + cost).mean) == {name: 2 * one for name, one in vars(cost.mean).items()}


def test_sums_of_costs_are_those_of_each_field() -> None:
    every = [
        Cost(static_memory=1, a2a_global=np.array([1.0, 2.0]), local=3.0),
        Cost(static_memory=2, a2a_global=np.array([3.0, 4.0]), updated=np.array([5.0, 6.0])),
        Cost(a2a_global=7.0, local=8.0),
    ]
    total = Cost.of_all(every)
    for field in dataclasses.fields(Cost):
        found = getattr(total, field.name)
        assert np.array_equal(found, sum(getattr(one, field.name) for one in every))
    assert total.local == 11
    assert Cost.of_all([]) == Cost()


def test_the_prices_are_the_means_of_drawn_batches() -> None:
    """Rows drawn by their p: crossings per access, rank and node as the ledger expects them."""
    rows = zipf(300, 5.0, 1.1)
    each = np.repeat(rows.p, rows.counts)
    draw = np.random.default_rng(0)
    counts = np.zeros((3, 40))
    for trial in range(40):
        looked_up = draw.random((N, W, B, 300)) < each
        counts[:, trial] = (
            looked_up.sum(),
            looked_up.any(axis=2).sum(),
            looked_up.any(axis=(1, 2)).sum(),
        )
    per_row = 2 * R + 8
    for level, found in zip(("none", "rank", "node"), counts, strict=True):
        expected = prices().row_wise(rows, R, level).total(rows.counts)  # type: ignore[arg-type]
        drawn = found.mean() * per_row / N
        # The mean of 40 trials, held to four of its standard errors.
        error = 4 * found.std() / np.sqrt(40) * per_row / N
        assert abs(expected.between_nodes - drawn) < error


def test_costs_add_up_over_rows_and_tables() -> None:
    rows = zipf(1000, 10)
    whole = prices().row_wise(rows, R).total(rows.counts)
    parts = [rows.part(0, 100), rows.part(100, 1000)]
    halves = [prices().row_wise(part, R).total(part.counts) for part in parts]
    assert vars(sum(halves, Cost())) == pytest.approx(vars(whole))
    table = ProfiledTable(name="a", rows=rows, dim=R // 4)
    sizes = TableSizes(replicated=16, per_node=64)
    ledger = Ledger.of({"a": table, "b": table}, {"a": sizes}, prices())
    entries = ledger.tables["a"].entries
    assert [entry.rows for entry in entries.values()] == [16, 64, 920]
    assert sum(entry.share for entry in entries.values()) == pytest.approx(1)
    assert entries["replicated"].share == pytest.approx(rows.coverage(16))
    assert ledger.tables["b"].entries["home"].rows == 1000
    assert ledger.cost.memory == pytest.approx(
        sum(e.cost.memory for t in ledger.tables.values() for e in t.entries.values())
    )


def test_a_tiers_share_lies_within_what_both_its_ends_leave_open() -> None:
    """Three bands of 10 rows with 5, 3 and 2 of 10 lookups, the first of which are surest."""
    rows = RowDistribution.of([10, 10, 10], [0.5, 0.3, 0.2])
    rows = dataclasses.replace(rows, uncertainty=np.array([0.03, 0.04, 0.0]))
    table = ProfiledTable(name="t", rows=rows, dim=16)
    sizes = TableSizes(replicated=10, per_node=10)
    one = Ledger.of({"t": table}, {"t": sizes}, prices()).tables["t"]
    assert one.interval("replicated") == pytest.approx((0.5 - 0.03, 0.5 + 0.03))
    assert one.interval("per_node") == pytest.approx((0.3 - 0.05, 0.3 + 0.05))  # 3, 4, 5
    assert one.interval("home") == pytest.approx((0.2 - 0.04, 0.2 + 0.04))


@pytest.mark.parametrize(
    ("sizes", "torchrecs"),
    [
        (TableSizes(), True),
        (TableSizes(as_torchrec=True), True),
        (TableSizes(replicated=8), False),
        (TableSizes(per_node=8), False),
        (TableSizes(coalesce="rank"), False),
    ],
)
def test_a_table_is_torchrecs_without_tiers_and_coalescing(
    sizes: TableSizes, torchrecs: bool
) -> None:
    table = ProfiledTable(name="t", rows=zipf(100, 10), dim=8)
    assert Ledger.of({"t": table}, {"t": sizes}, prices()).tables["t"].is_torchrecs is torchrecs


def test_time_is_latencies_of_what_is_called_and_bytes() -> None:
    slow = Link(gbps=1, latency_ms=2)
    cluster = Cluster(
        n_nodes=2, ranks_per_node=2, a2a_global=slow, a2a_intra=slow, a2a_cross=slow,
        ar_global=slow, ar_cross=slow, gather_gbps=2, chunk_gbps=4, unique_ns=100,
        update_ns=50, marks_ns=5, op_us=10,
    )  # fmt: skip
    gb = 1 << 30
    cost = Cost(
        a2a_global=gb, ar_global=gb / 2, local=gb, coalesced=1e6, updated=1e5, summed=gb / 5,
        marked=1e6,
    )  # fmt: skip
    assert milliseconds(cost, cluster, {"a2a_global": 4, "ar_global": 1}, operations=700) == {
        "a2a_global": 1008,
        "a2a_intra": 0,
        "a2a_cross": 0,
        "ar_global": 502,
        "ar_cross": 0,
        "local": 660 + 7,
    }
    assert marginal_ms(cost, cluster) == 1000 + 500 + 660


@pytest.mark.parametrize(
    ("crowded", "local", "intra"),
    [
        (1.0, 400, 400),  # the busiest rank's, on processors of its own
        (2.0, 200, 200),  # twice as fast once the others have ended, beside whom it is as fast
        (4.0, 125, 125),  # one processor has all: the mean of the busier node's
    ],
)
def test_ranks_that_share_processors_leave_them_to_the_busiest(
    crowded: float, local: float, intra: float
) -> None:
    cluster = Cluster(
        n_nodes=2, ranks_per_node=4, crowded=crowded, gather_gbps=1,
        a2a_global=Link(gbps=1), a2a_intra=Link(gbps=1),
    )  # fmt: skip
    each = np.array([0.4, 0.1, 0, 0, 0.1, 0.1, 0.1, 0.1]) * GB
    found = milliseconds(Cost(local=each, a2a_intra=each, a2a_global=each), cluster, {})
    assert found["local"] == pytest.approx(local)
    assert found["a2a_intra"] == pytest.approx(intra)
    assert found["a2a_global"] == pytest.approx(400)  # links are shared by nobody


@pytest.mark.parametrize(
    ("link_shared", "ms"),
    [
        (1.0, 400),  # the busiest rank's, on a link of its own
        (2.0, 200),  # twice as fast once the others have ended
        (4.0, 125),  # one link has all: the mean of the busier node's
    ],
)
def test_ranks_that_share_a_nodes_link_leave_it_to_the_busiest(
    link_shared: float, ms: float
) -> None:
    cluster = Cluster(
        n_nodes=2, ranks_per_node=4, link_shared=link_shared, gather_gbps=1,
        a2a_global=Link(gbps=1), a2a_intra=Link(gbps=1), ar_cross=Link(gbps=2),
    )  # fmt: skip
    each = np.array([0.4, 0.1, 0, 0, 0.1, 0.1, 0.1, 0.1]) * GB
    cost = Cost(local=each, a2a_intra=each, a2a_global=each, ar_cross=each)
    found = milliseconds(cost, cluster, {})
    assert found["a2a_global"] == pytest.approx(ms)
    assert found["ar_cross"] == pytest.approx(ms / 2)
    assert found["local"] == found["a2a_intra"] == pytest.approx(400)  # not of the link


def test_what_is_on_the_links_between_nodes_is_no_work_of_a_ranks_own() -> None:
    slow = Link(gbps=1, latency_ms=2)
    cluster = Cluster(
        n_nodes=2, ranks_per_node=2, a2a_global=slow, a2a_intra=slow, a2a_cross=slow,
        ar_global=slow, ar_cross=slow, gather_gbps=2, unique_ns=100, op_us=10,
    )  # fmt: skip
    gb = 1 << 30
    cost = Cost(a2a_global=gb, a2a_intra=gb, ar_global=gb / 2, local=gb, coalesced=1e6)
    calls = {"a2a_global": 4, "a2a_intra": 3, "ar_global": 1}
    assert milliseconds(cost, cluster, calls)["local"] == 600
    # 1000 ms and 500; four calls and one of 2 ms, three of 2 ms with 1000, and 600.
    assert Lane.of(cost, cluster, calls) == Lane(traffic=1500, own=10 + 1006 + 600)


@pytest.mark.parametrize(
    ("crowded", "own", "traffic", "ms"),
    [
        (1.0, 10, 6, 16),  # a rank that waits has its processor to itself
        (2.0, 10, 6, 13),  # the other one of the processor works for half of the wait
        (4.0, 10, 6, 11.5),
        (2.0, 4, 6, 8),  # as long as there is work
    ],
)
def test_ranks_of_one_processor_may_work_while_another_waits_for_bytes(
    crowded: float, own: float, traffic: float, ms: float
) -> None:
    cluster = Cluster(n_nodes=2, ranks_per_node=4, crowded=crowded)
    assert working_meanwhile(cluster, own, traffic) == ms


@pytest.mark.parametrize(
    ("beside", "overlap", "replicas", "cross", "hidden"),
    [
        (0.5, 0.0, Lane(traffic=10, own=3), 2, 0.5 * (3 + 3)),
        (0.5, 0.0, Lane(traffic=1, own=9), 2, 0.5 * (4 + 1)),
        (0.0, 0.5, Lane(traffic=10, own=3), 2, 0.5 * 7),
        (0.0, 0.5, Lane(traffic=10, own=3), -6, 0.5 * 4),
        (0.5, 0.5, Lane(traffic=10, own=3), 2, 3.5),
        (0.5, 0.4, Lane(traffic=10, own=3), 2, 3.0),
    ],
)
def test_the_longer_of_what_runs_beside_the_rest_is_hidden(
    beside: float, overlap: float, replicas: Lane, cross: float, hidden: float
) -> None:
    cluster = dataclasses.replace(CLUSTER, beside=beside, overlap=overlap)
    home = Lane(traffic=8, own=6)
    each = {
        "a2a_global": 10, "a2a_cross": cross, "a2a_intra": 3, "ar_cross": 4, "local": 5,
    }  # fmt: skip
    assert overlapped(each, cluster, home, replicas) == pytest.approx(sum(each.values()) - hidden)


def test_on_a_cpu_replicas_are_summed_before_or_after_what_backward_waits_for() -> None:
    """Of what could hide, 3 ms of the replicas' own work and 3 of home's, the latter alone."""
    topology = Topology(device="cpu", ranks_per_node=W, beside=0.5)
    home, replicas = Lane(traffic=8, own=6), Lane(traffic=10, own=3)
    each = {"a2a_global": 10, "a2a_cross": 0, "a2a_intra": 3, "ar_cross": 4, "local": 5}
    on_cpu = overlapped(each, Cluster.of(topology, N * W), home, replicas)
    assert on_cpu == pytest.approx(22 - 0.5 * 3)
    on_gpu = Cluster.of(dataclasses.replace(topology, device="cuda"), N * W)
    assert overlapped(each, on_gpu, home, replicas) == pytest.approx(22 - 0.5 * (3 + 3))


@pytest.mark.parametrize(
    ("n_nodes", "crowded", "own", "hidden"),
    [
        (2, 1.0, 6, 0.0),  # each has a processor of its own
        (2, 4.0, 6, 0.75 * 6),
        (2, 4.0, 20, 0.75 * 8),  # the traffic of forward and backward, and no more
        (1, 4.0, 6, 0.0),  # processors carry what stays in a node
    ],
)
def test_ranks_that_share_processors_compute_for_replicas_while_others_wait_for_home(
    n_nodes: int, crowded: float, own: float, hidden: float
) -> None:
    cluster = dataclasses.replace(
        CLUSTER, n_nodes=n_nodes, crowded=crowded, side_stream=False, beside=0.5, overlap=0.0
    )
    each = {"a2a_global": 10, "a2a_cross": 0, "a2a_intra": 3, "ar_cross": 4, "local": 5}
    found = overlapped(each, cluster, Lane(traffic=8, own=0), Lane(traffic=0, own=own))
    assert found == pytest.approx(22 - hidden)


def test_operations_of_tiers_are_work_that_hides_where_ranks_share_processors() -> None:
    rows = ProfiledTable(name="t", rows=zipf(1000, 20.0, 1.2), dim=64)
    sizes = {"t": TableSizes(per_node=96)}
    cluster = dataclasses.replace(
        CLUSTER, a2a_global=Link(gbps=1e-3), crowded=2.0, side_stream=False, beside=0.5
    )

    def hidden(op_us: float) -> float:
        prices = Prices(cluster=dataclasses.replace(cluster, op_us=op_us), batch_size=64, k=1.6)
        ledger = Ledger.of({"t": rows}, sizes, prices)
        return sum(ledger.ms_by_collective.values()) - ledger.ms

    assert hidden(0.1) - hidden(0.0) == pytest.approx(0.5 * 230 * 0.1e-3)


def test_what_overlaps_is_paid_for_what_it_does_not_hide() -> None:
    """A GB at 1 GB/s is a second; three quarters of what other links carry are hidden."""
    link, gb = Link(gbps=1), 1 << 30
    cluster = Cluster(
        n_nodes=2, ranks_per_node=2, a2a_global=link, a2a_intra=link, a2a_cross=link,
        ar_global=link, ar_cross=link, overlap=0.75,
    )  # fmt: skip
    for name, ms in (
        ("a2a_global", 1000), ("a2a_cross", 1000), ("ar_global", 1000),
        ("a2a_intra", 250), ("ar_cross", 250),
    ):  # fmt: skip
        assert marginal_ms(Cost(**{name: gb}), cluster) == pytest.approx(ms)


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        ("EXACT_SGD", 0),
        ("EXACT_ADAGRAD", 64),
        ("EXACT_ROWWISE_ADAGRAD", 4),
        ("ADAM", 128),
        ("LAMB", 128),
        ("PARTIAL_ROWWISE_ADAM", 68),
        ("PARTIAL_ROWWISE_LAMB", 68),
    ],
)
def test_what_an_optimizer_keeps_of_a_row_of_16_floats(optimizer: str, state: int) -> None:
    assert state_bytes({"optimizer": EmbOptimType[optimizer]}, 16) == state
    assert state_bytes({}, 16) == 0


def test_the_prices_of_the_paper_and_ours() -> None:
    def fused(optimizer: str) -> dict[str, object]:
        return OptimizerSettings(tables=optimizer).fused_params()  # type: ignore[arg-type]

    tables = [
        ProfiledTable(name="a", rows=ONE, dim=16),
        ProfiledTable(name="b", rows=ONE, dim=64, element_bytes=2),
    ]
    # Of a row of 16 floats: 64 bytes, 0.64 of them under way; a float of state, 16, or 2 times 16.
    assert row_factor(fused("sgd"), 16) == pytest.approx(1.64)
    assert row_factor(fused("rowwise_adagrad"), 16) == pytest.approx(1.64 + 4 / 64)
    assert row_factor(fused("adagrad"), 16) == pytest.approx(1.64 + 1)
    assert row_factor(fused("adagrad"), 64, element_bytes=2) == pytest.approx(1.64 + 2)
    both = {"a": fused("adagrad"), "b": fused("adagrad")}
    assert replica_factor(tables, both) == pytest.approx(1.64 + 2)
    with pytest.raises(PluginError, match=r"no fused params of b\. Pass"):
        replica_factor(tables, {"a": fused("adagrad")})
    ours = priced("ours", cluster=CLUSTER, batch_size=B, k=2.0)
    assert (ours.k, ours.reduce, ours.ask_once) == (2.0, "touched", True)
    assert ours == Prices(cluster=CLUSTER, batch_size=B, k=2.0)
    paper = priced("paper", cluster=CLUSTER, batch_size=B, k=2.0)
    assert (paper.reduce, paper.ask_once) == ("dense", False)
    assert PAPER_K == 6.25


def test_tiers_cost_operations_whatever_their_size() -> None:
    rows = zipf(100, 10)
    tables = {
        name: ProfiledTable(name=name, rows=rows, dim=dim)
        for name, dim in (("a", 8), ("b", 8), ("c", 16))
    }
    counts = [
        Ledger.of(tables, sizes, prices()).operations
        for sizes in (
            {},
            {"a": TableSizes(replicated=4)},
            {"a": TableSizes(replicated=4), "b": TableSizes(replicated=8)},
            {"a": TableSizes(replicated=4), "c": TableSizes(replicated=8)},
            {"a": TableSizes(replicated=4, per_node=4, coalesce="rank")},
        )
    ]
    none, one, shared, separate, every = counts
    assert none == 0
    assert one == shared
    assert one < separate < 2 * one
    assert every > one
    tables["b"] = dataclasses.replace(tables["b"], collection="bags")
    both = {"a": TableSizes(replicated=4), "b": TableSizes(replicated=8)}
    assert Ledger.of(tables, both, prices()).operations == 2 * one


def test_tables_alike_share_their_calls() -> None:
    rows = zipf(100, 10)
    tables = {
        name: ProfiledTable(name=name, rows=rows, dim=dim)
        for name, dim in (("a", 8), ("b", 8), ("c", 16))
    }

    def calls(reduce: str, **sizes: TableSizes) -> list[int]:
        found = Ledger.of(tables, sizes, prices(reduce)).calls
        return [found[name] for name in ("a2a_global", "a2a_intra", "ar_global", "ar_cross")]

    one = TableSizes(replicated=8)
    assert calls("touched") == [4, 0, 0, 0]
    assert calls("touched", a=one) == calls("touched", a=one, b=one) == [4, 4, 0, 2]
    assert calls("touched", a=one, c=one) == [4, 8, 0, 4]
    tables["b"] = dataclasses.replace(tables["b"], collection="bags")
    assert calls("touched", a=one, b=one) == [7, 8, 0, 4]  # they are updated at different times
    tables["b"] = dataclasses.replace(tables["b"], collection="")
    assert calls("touched", a=TableSizes(replicated=8, per_node=8)) == [4, 5, 0, 4]
    assert calls("touched", a=TableSizes(coalesce="rank")) == [4, 0, 0, 0]
    assert calls("touched", a=TableSizes(coalesce="node")) == [4, 4, 0, 0]
    assert calls("dense", a=TableSizes(replicated=8, per_node=8)) == [4, 1, 1, 1]


def test_what_other_links_carry_hides_behind_the_global_exchange() -> None:
    link = Link(gbps=1 / 1024)  # a MB takes a second
    serial = Cluster(n_nodes=2, ranks_per_node=2, a2a_global=link, a2a_intra=link, ar_cross=link)
    table = ProfiledTable(name="t", rows=RowDistribution.of([4, 4], [0.5, 0.5]), dim=16)
    sizes = {"t": TableSizes(per_node=4)}

    def ms(overlap: float) -> float:
        cluster = dataclasses.replace(serial, overlap=overlap)
        return Ledger.of(
            {"t": table}, sizes, Prices(cluster=cluster, batch_size=64, k=1, ask_once=False)
        ).ms

    prices = Prices(cluster=serial, batch_size=64, k=1, ask_once=False)
    each = Ledger.of({"t": table}, sizes, prices).ms_by_collective
    # In backward, half of the global exchange is there to hide behind, and half of that is used.
    assert ms(0) == pytest.approx(sum(each.values()) - each["a2a_global"] / 4, rel=1e-6)
    # As many rows go either way, and the all-reduce comes on top: the longer one stays.
    assert ms(1) == pytest.approx(each["a2a_intra"] + each["ar_cross"] + each["local"])


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_replicas_and_tables_work_while_the_other_is_on_the_links(share: float) -> None:
    link = Link(gbps=1 / 1024)  # a MB takes a second
    cluster = Cluster(
        n_nodes=2, ranks_per_node=2, a2a_global=link, a2a_intra=link, ar_cross=link,
        gather_gbps=1 / 512, beside=share,
    )  # fmt: skip
    table = ProfiledTable(name="t", rows=RowDistribution.of([8], [0.5]), dim=16)

    def found(replicated: int) -> tuple[float, dict[str, float]]:
        sizes = {"t": TableSizes(replicated=replicated)}
        ledger = Ledger.of({"t": table}, sizes, Prices(cluster=cluster, batch_size=64, k=1))
        return ledger.ms, ledger.ms_by_collective

    for all_in_one in (0, 8):  # nothing is beside
        ms, each = found(all_in_one)
        assert ms == pytest.approx(sum(each.values()))
    ms, each = found(4)
    half, whole = (found(count)[1] for count in (4, 8))
    replicas = Lane(traffic=half["ar_cross"], own=half["a2a_intra"] + whole["local"] / 2)
    home = Lane(traffic=half["a2a_global"], own=half["local"] - whole["local"] / 2)
    beside = min(replicas.own, home.traffic / 2) + min(home.own / 2, replicas.traffic)
    assert beside > 0
    assert ms == pytest.approx(sum(each.values()) - share * beside)


def test_sizes_become_row_ids_where_they_are_known() -> None:
    counted = RowDistribution.of([1, 1, 2], [3, 2, 1], ids=np.array([7, 5, 1, 0]))
    table = ProfiledTable(name="t", rows=counted, dim=4)
    sizes = {"t": TableSizes(replicated=1, per_node=2, coalesce="rank")}
    plan = tier_plan({"t": table}, sizes, CLUSTER)
    assert (plan.n_nodes, plan.ranks_per_node) == (N, W)
    assert plan.tables["t"].replicated.tolist() == [7]
    assert plan.tables["t"].per_node.tolist() == [5, 1]
    assert plan.tables["t"].coalesce == "rank"
    with pytest.raises(DataError, match="has 4 rows, fewer than the 5"):
        tier_plan({"t": table}, {"t": TableSizes(replicated=5)}, CLUSTER)
    formula = ProfiledTable(name="t", rows=zipf(9, 1), dim=4)
    with pytest.raises(DataError, match="formulas have no ids"):
        tier_plan({"t": formula}, {"t": TableSizes(replicated=5)}, CLUSTER)


@pytest.mark.parametrize("name", MODELS)
def test_the_papers_measured_times(name: str) -> None:
    """Table 6, with the sizes that the paper itself chose. Nothing is timed here: how near the
    model comes is arithmetic, alike to 1e-9 on all processors."""
    model = MODELS[name]
    for design, sizes in model.sizes().items():
        ledger = Ledger.of(model.tables(), {"table": sizes}, PRICES)
        found = ledger.ms_by_collective
        for collective, printed in model.ms[design].items():
            if (name, design, collective) == ("RM-1", "2-tier", "ar_global"):
                # 3 ms for 354 MB, but 5 for RM-4's 189 and 2 for RM-3's 38: no start-up time
                # and rate are within 25% of all three.
                assert found[collective] < 1.75 * printed
                continue
            assert found[collective] == pytest.approx(printed, rel=0.25), (design, collective)


@pytest.mark.parametrize("ranks", [2, 4])
def test_replicas_hand_over_what_a_rank_touched_and_its_share_of_sums(ranks: int) -> None:
    """Of one node: s r and the rows' bits through the all-to-all, (W - 1) v r / W and bits sent.
    Two ranks: v r through the all-reduce, and bits sent."""
    rows = RowDistribution.of([4, 96], [0.05, 0.001])
    table = ProfiledTable(name="t", rows=rows, dim=16)
    prices = Prices(cluster=Cluster.of(Topology(ranks_per_node=ranks), ranks), batch_size=8, k=1.0)
    sizes = {"t": TableSizes(replicated=4, coalesce="rank")}
    ledger, plain = (Ledger.of({"t": table}, one, prices) for one in (sizes, {}))
    assert plain.handed_over == plain.cost.exchanged
    home = ledger.tables["t"].entries["home"].cost.exchanged
    touched, by_any = (4 * (1 - 0.95**samples) * 64 for samples in (8, 8 * ranks))
    summed = by_any + 4 / 8 if ranks == 2 else touched + 3 / 4 * by_any + 2 * 4 / 8
    assert ledger.handed_over == pytest.approx(home + summed)
    assert ledger.replica_calls["a2a_intra"] == (2 if ranks == 2 else 4)


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (1, 2), (1, 4)])
def test_each_further_chunk_is_summed_by_calls_and_operations_of_its_own(
    nodes: int, ranks: int
) -> None:
    """Of 30,000 touched rows DP has four chunks; Flex two, for a rank has a share of its own."""
    cluster = Cluster.of(Topology(ranks_per_node=ranks, device="cpu"), nodes * ranks)
    ours = Prices(cluster=cluster, batch_size=512, k=1.0)

    def ledger(rows: int, tier: str) -> Ledger:
        table = ProfiledTable(name="t", rows=RowDistribution.of([rows], [1.0]), dim=16)
        return Ledger.of({"t": table}, {"t": TableSizes(**{tier: rows})}, ours)

    further = {"replicated": 3, "per_node": -(-30_000 // (8_192 * ranks)) - 1}
    for tier, chunks in further.items():
        one, several = ledger(8_192, tier), ledger(30_000, tier)
        more = {
            name: called - one.replica_calls[name] for name, called in several.replica_calls.items()
        }
        within = {"replicated": 1 if (nodes, ranks) == (1, 2) else 2, "per_node": 0}[tier]
        assert more["a2a_intra"] == chunks * within
        assert more["ar_cross"] == (chunks if nodes > 1 else 0)
        assert sum(more.values()) == more["a2a_intra"] + more["ar_cross"]
        part = "in common" if (nodes, ranks, tier) == (1, 2, "replicated") else tier
        assert several.operations - one.operations == chunks * FURTHER[part]
        dense = dataclasses.replace(several, prices=dataclasses.replace(ours, reduce="dense"))
        assert dense.operations == one.operations


def test_replicas_are_stepped_in_fewer_passes_by_one_kernel() -> None:
    cpu = Cluster.of(Topology(ranks_per_node=2, device="cpu"), 4)
    adagrad = OptimizerSettings(tables="rowwise_adagrad").fused_params()
    fused = {"a": adagrad, "b": OptimizerSettings(tables="sgd").fused_params(), "c": adagrad}
    table = {name: ProfiledTable(name=name, rows=ONE, dim=16) for name in fused}
    halves = dataclasses.replace(table["c"], element_bytes=2)
    assert replica_passes([table["a"], table["c"]], fused, cpu) == 5
    for tables, cluster in (
        ([table["a"], table["b"]], cpu),
        ([table["a"], halves], cpu),
        ([table["a"]], CLUSTER),
    ):
        assert replica_passes(tables, fused, cluster) == 10
    slow, fast = (
        Prices(cluster=cpu, batch_size=B, k=K, stepped=passes).replicated(ONE, R).total(ONE.counts)
        for passes in (10, 5)
    )
    assert slow.summed - fast.summed == pytest.approx(5 * appears(4 * B) * R / 2)
    decayed = {"a": {**adagrad, "weight_decay_mode": WeightDecayMode.L2}}
    assert replica_passes([table["a"]], decayed, cpu) == 10
