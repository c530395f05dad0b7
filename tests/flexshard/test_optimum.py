"""Rung 1 (values): what tiers offer for each row, and the plans that follow, by hand."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from recd_flexshard.policy.breakpoints import breakpoints
from recd_flexshard.policy.offers import PER_NODE, REPLICATED, ROW_WISE, Offers
from recd_flexshard.policy.optimum import Optimum
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.milliseconds import marginal_ms
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.merged_rows import MergedRows

TABLES = {
    "hot": ProfiledTable(name="hot", rows=RowDistribution.of([2], [0.5]), dim=16),
    "cold": ProfiledTable(name="cold", rows=RowDistribution.of([4], [0.1]), dim=16, bags=3.0),
}
"""Two rows, then four, of bags."""
MERGED = MergedRows.of(TABLES)
PRICES = Prices(
    cluster=Cluster.of(Topology(ranks_per_node=2, inter_node_gbps=0.01), 4), batch_size=64, k=2.0
)


def optimum(base: float = 0.0) -> Optimum:
    """Replicas of a row take 10 bytes; of the first two each saves 3 ms, of the others 0.2."""
    memory = np.array([[0.0, 0.0], [99.0, 99.0], [10.0, 10.0]])
    ms = np.array([[4.0, 1.0], [9.0, 9.0], [1.0, 0.8]])
    offers = Offers(memory=memory, static_memory=memory, ms=ms)
    return Optimum.of(MERGED, offers, (REPLICATED,), base)


def test_each_step_takes_the_memory_and_the_time_of_its_rows() -> None:
    found = optimum()
    assert found.memory.tolist() == [0, 20, 60]
    assert found.ms.tolist() == pytest.approx([12, 6, 5.2])


def test_of_tiers_that_take_no_more_memory_the_fastest_is_the_first() -> None:
    memory = np.array([[5.0, 5.0], [99.0, 99.0], [5.0, 10.0]])
    ms = np.array([[4.0, 1.0], [9.0, 9.0], [1.0, 0.8]])
    offers = Offers(memory=memory, static_memory=memory, ms=ms)
    found = Optimum.of(MERGED, offers, (REPLICATED,), 30.0)
    assert found.memory.tolist() == [0, 20]
    assert found.ms.tolist() == pytest.approx([6, 5.2])
    assert [rows.tolist() for rows in found.at(0, 1)] == [[2, 0], [0, 0]]


@pytest.mark.parametrize(
    ("budget", "replicated"),
    [
        (None, [2, 4]),
        (60, [2, 4]),
        (59, [2, 3]),
        (45, [2, 2]),
        (20, [2, 0]),
        (19, [1, 0]),
        (9, [0, 0]),
        (-0.0005, [0, 0]),  # a sum of floats that is off
    ],
)
def test_a_budget_cuts_one_run_at_a_whole_row(budget: float | None, replicated: list[int]) -> None:
    found, per_node = optimum().at(budget, 1)
    assert found.tolist() == replicated
    assert per_node.tolist() == [0, 0]


def test_rows_are_rounded_down_to_a_multiple_of_the_world_size() -> None:
    assert [rows.tolist() for rows in optimum().at(59, 2)] == [[2, 2], [0, 0]]


@pytest.mark.parametrize("budget", [-31, -30.5])
def test_what_cannot_be_saved_is_refused_with_what_can(budget: float) -> None:
    says = r"budget_gb asks for .* a rank to be saved, but 30 \(2.79e-08 GB\) can be at most"
    with pytest.raises(CapabilityError, match=says):
        optimum(base=30).at(budget, 1)
    assert optimum(base=30).at(-10, 1)[0].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("ms", "tiers", "replicated", "per_node"),
    [
        (1.0, 2, [2, 1], [0, 0]),  # 10 bytes are saved by two rows, and taken by one
        (4.0, 2, [2, 0], [0, 0]),  # what costs time is left at home
        (1.0, 3, [2, 0], [0, 4]),
        (4.0, 3, [2, 0], [0, 0]),
    ],
)
def test_breakpoints_spend_what_the_hottest_rows_saved(
    ms: float, tiers: Literal[2, 3], replicated: list[int], per_node: list[int]
) -> None:
    memory = np.array([[20.0, 20.0], [22.0, 22.5], [15.0, 30.0]])
    time = np.array([[3.0, 3.0], [ms, ms], [2.0, ms]])
    offers = Offers(memory=memory, static_memory=memory, ms=time)
    found = breakpoints(MERGED, offers, tiers=tiers, multiple=1)
    assert [rows.tolist() for rows in found] == [replicated, per_node]


@pytest.mark.parametrize(("extra", "replicated"), [(-0.5, [2, 0]), (0.5, [0, 0])])
def test_of_three_tiers_the_rows_that_save_memory_are_replicated(
    extra: float, replicated: list[int]
) -> None:
    memory = np.array([[20.0, 20.0], [99.0, 99.0], [20 + extra, 99.0]])
    time = np.array([[3.0, 3.0], [1.0, 1.0], [1.0, 1.0]])
    offers = Offers(memory=memory, static_memory=memory, ms=time)
    assert breakpoints(MERGED, offers, tiers=3, multiple=1)[0].tolist() == replicated


def test_offers_are_the_prices_of_each_tier() -> None:
    offers = Offers.of(MERGED, PRICES, {"cold": "rank"}, busy={"hot": 3.0})
    assert offers.memory.shape == offers.static_memory.shape == offers.ms.shape == (3, 2)
    for run, (rows, level, times) in enumerate((("hot", "none", 3.0), ("cold", "rank", 1.0))):
        alone = MergedRows.of({rows: TABLES[rows]})
        # Bags whose rows travel one by one are no bags where they are replicated either.
        pooled = alone.pooled * (level != "none")
        tiers = {
            ROW_WISE: PRICES.row_wise(alone.rows, alone.width, level, pooled),  # type: ignore[arg-type]
            PER_NODE: PRICES.per_node(alone.rows, alone.width, level, pooled),  # type: ignore[arg-type]
            REPLICATED: PRICES.replicated(alone.rows, alone.width, pooled),
        }
        for tier, cost in tiers.items():
            assert offers.memory[tier, run] == pytest.approx(cost.memory[0])
            assert offers.static_memory[tier, run] == pytest.approx(cost.static_memory[0])
            took = marginal_ms(cost, PRICES.cluster)[0] * (times if tier == ROW_WISE else 1)
            assert offers.ms[tier, run] == pytest.approx(took)
