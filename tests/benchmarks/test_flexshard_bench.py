"""Rung 1 and 4 (values; ranks in nodes, as root): FlexShard's suite on tiny settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cluster.network import available
from benchmarks.flexshard.coverage_curve import through_points
from benchmarks.flexshard.emulated import EmulatedCluster, Measured
from benchmarks.flexshard.figures import Bench
from benchmarks.flexshard.grid import GRID, NO_SKEW, SATURATED, candidates, chosen
from benchmarks.flexshard.memory import memory_multiplier
from benchmarks.flexshard.observed import draw
from benchmarks.flexshard.router import router
from benchmarks.flexshard.sides import COALESCED, ROW_WISE, Side
from benchmarks.flexshard.steps import SideSteps
from recd_plugins.api import DataError
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Link
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.testing.gloo import GlooPool

PRICES = Prices(
    cluster=Cluster(
        n_nodes=2,
        ranks_per_node=4,
        a2a_global=Link(gbps=0.01, latency_ms=4),
        a2a_intra=Link(gbps=0.5, latency_ms=1),
        a2a_cross=Link(gbps=0.009, latency_ms=4),
        ar_cross=Link(gbps=0.006, latency_ms=2),
    ),
    batch_size=1024,
    k=1.6,
)
TINY = {"num_rows": 4_000, "dim": 16, "batch_size": 64, "lookups": 20}


def test_the_grid_varies_what_the_choice_depends_on() -> None:
    assert len(GRID) >= 8
    for name in ("n_nodes", "ranks_per_node", "mbit", "exponent", "batch_size"):
        assert len({getattr(setting, name) for setting in GRID}) >= 2


def test_batches_follow_the_distribution_that_is_planned_with() -> None:
    workload = dataclasses.replace(SATURATED, hot=(100, 0.9), **TINY).workload
    (batch,) = workload.batches(1, seed=3)
    rank = np.argsort(workload.ids.numpy())[batch.features.values().numpy()]
    assert len(rank) == 64 * 20
    assert np.mean(rank < 100) == pytest.approx(0.9, abs=0.03)
    assert workload.rows.coverage(100) == pytest.approx(0.9)
    skewed = dataclasses.replace(GRID[0], **TINY).workload
    (batch,) = skewed.batches(1, seed=3)
    rank = np.argsort(skewed.ids.numpy())[batch.features.values().numpy()]
    assert np.mean(rank < 100) == pytest.approx(skewed.rows.coverage(100), abs=0.05)


def test_candidates_are_each_way_once_and_the_choice_last() -> None:
    choice = chosen(SATURATED.workload, PRICES)
    sides = candidates(SATURATED.workload, PRICES, choice)
    assert sides[-1] is choice
    assert sides[0] is ROW_WISE
    assert COALESCED in sides
    assert len({side.sizes for side in sides}) == len(sides) >= 7
    assert {side.sizes.coalesce for side in sides} == {"none", "rank", "node"}
    assert choice.sizes.replicated + choice.sizes.per_node >= 8_000  # most of the hot rows
    # Rows that are looked up alike are not worth a replica; one exchange for a node is.
    assert chosen(NO_SKEW.workload, PRICES).sizes == TableSizes(coalesce="node")


def test_what_was_measured_is_reported_by_round_and_node() -> None:
    ranks = [
        {
            "row-wise": SideSteps([2.0, 4.0], [0.5, 0.5], [80, 120]),
            "ours": SideSteps([1.0, 1.0], [0.25, 0.25], [sent, sent]),
        }
        for sent in [20] * 4 + [30] * 4
    ]
    ours = Side(name="ours", sizes=TableSizes(replicated=8))
    measured = Measured([ROW_WISE, ours], SATURATED.workload, PRICES, ranks)
    assert measured.gains(ours, ROW_WISE) == [2.0, 4.0]
    assert measured.faster(ours, ROW_WISE)[0] == 3.0
    assert measured.computed(ours) == 8 * 0.25
    assert [measured.node_bytes(side) for side in (ROW_WISE, ours)] == [100, 25]
    assert [one.observed for one in measured.observed] == [100, 25]


def test_the_router_is_explained_by_id_and_row() -> None:
    time, memory = router(1, num_rows=64_000, hot=5_000, ids=10_000)
    assert time.value > 0
    assert memory.met
    assert memory.value > 64 / 48  # a word for 48 rows, and the second bitmap
    assert time.limit is not None
    assert time.limit.value > 0
    assert memory.share == pytest.approx((0.3955 + 5 / 64 * 0.2864) / memory.value, abs=1e-3)


def test_the_suite_on_a_tiny_cluster(tmp_path: Path) -> None:
    if missing := available():
        pytest.skip(f"no emulated cluster: it needs {missing}")
    bench = Bench(k=1.6, rounds=1)
    # So slow a link that replicas are worth their operations in steps as small as these.
    small = {**TINY, "mbit": 20, "ranks_per_node": 1}
    saturated = dataclasses.replace(SATURATED, hot=(200, 0.95), **small)
    with EmulatedCluster(2, 1, 20, rounds=2) as cluster:
        figures = list(bench.saturated(cluster, saturated))
        figures += bench.no_skew(cluster, dataclasses.replace(NO_SKEW, **small))
        figures += bench.regret(cluster, dataclasses.replace(GRID[0], **small))
    figures.append(bench.bytes())
    targets = {figure.name: (figure.target, figure.at_most) for figure in figures}
    assert targets == {
        "saturated hot rows, bytes against plain row-wise": (5, False),
        "saturated hot rows, step against plain row-wise": (5, False),
        "saturated hot rows, bytes against row-wise coalesced per rank": (1.3, False),
        "saturated hot rows, step against row-wise coalesced per rank": (1.3, False),
        "no skew, step against plain row-wise": (0.95, False),
        f"regret, {dataclasses.replace(GRID[0], **small)}": (10, True),
        "predicted vs observed bytes": (5, True),
    }
    by_name = {figure.name: figure for figure in figures}
    # Tiny steps are headers as much as rows, but fewer rows are fewer bytes.
    assert by_name["saturated hot rows, bytes against plain row-wise"].value > 1.5
    for plans in bench.observed.values():
        assert all(one.observed > one.predicted * 0.95 for one in plans)
    draw(bench.observed, picture := tmp_path / "figures" / "observed.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_replicas_take_more_than_their_rows(gloo_pool: GlooPool) -> None:
    """On each rank at least the rows and their optimizer's numbers."""
    for found in gloo_pool.run(memory_multiplier, 40_000, 64, 1, 10_000):
        assert found > 1 + 1 / 64


def test_a_curve_goes_through_its_points_and_falls_between() -> None:
    points = [(100_064, 0.368), (346_144, 0.525), (1_284_608, 0.674)]
    rows = through_points(30_000_000, 1000, points)
    for count, share in points:
        # A point within a run is interpolated: a run is 1/512 of its rank.
        assert rows.coverage(count) == pytest.approx(share, abs=1e-6)
    assert rows.num_rows == 30_000_000
    assert rows.lookups == pytest.approx(1000)
    with pytest.raises(DataError, match="must rise in rows and in coverage"):
        through_points(1000, 10, [(10, 0.5), (20, 0.4)])
