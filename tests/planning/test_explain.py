"""Value tests: what a plan says of itself adds up, in words, numbers and pictures."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from recd_plugins.planning.access.parametric import uniform, zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.explain.plan_report import Considered, Frontier, PlanReport, compared
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes

PRICES = Prices(
    cluster=Cluster.of(Topology(ranks_per_node=4, inter_node_gbps=0.02, intra_node_gbps=2), 8),
    batch_size=256,
    k=1.5,
)
TABLES = {
    "hot": ProfiledTable(name="hot", rows=zipf(10_000, 100, 1.2), dim=64),
    "flat": ProfiledTable(name="flat", rows=uniform(1_000_000, 1), dim=32),
}
SIZES = {"hot": TableSizes(replicated=16, per_node=160, coalesce="rank")}


def report(sizes: dict[str, TableSizes] = SIZES, budget: float | None = 0.0) -> PlanReport:
    return PlanReport(
        ledger=Ledger.of(TABLES, sizes, PRICES),
        goal="memory_neutral",
        budget=budget,
        frontier=Frontier(memory=np.array([0.0, 1e6]), ms=np.array([9.0, 3.0])),
    )


def test_the_tiers_of_a_table_are_all_of_it() -> None:
    tiers = report().tiers("hot")
    assert [tier.rows for tier in tiers.values()] == [16, 160, 9824]
    assert sum(tier.share for tier in tiers.values()) == pytest.approx(1)
    whole = report().ledger.tables["hot"].cost
    assert sum(tier.memory for tier in tiers.values()) == pytest.approx(whole.memory)


def test_it_says_in_words_what_it_says_in_numbers() -> None:
    text = "\n".join(report().lines())
    values = json.loads(json.dumps(report().values()))
    assert "goal memory_neutral; 2 nodes of 4 ranks, 256 samples a rank and step, k = 1.5" in text
    assert f"{values['tables']['hot']['replicated']['share']:.1%}" in text
    assert "per_node, by rank" in text
    assert "home, by rank" in text
    faster = values["ms"]["row_wise"] / values["ms"]["plan"]
    assert faster > 1
    assert f"{faster:.2f}x faster than row-wise" in text
    assert f"{values['ms']['row_wise_coalesced']:.3g}" in text
    assert values["between_nodes"]["plan"] < values["between_nodes"]["row_wise"]
    assert set(values["tables"]) == {"hot", "flat"}
    assert values["frontier"] == [[0, 9], [1e6, 3]]
    per_table = [table["ms"] for table in values["tables"].values()]
    assert sum(ms["row_wise"] for ms in per_table) < values["ms"]["row_wise"]  # and latencies
    hot = values["tables"]["hot"]["ms"]
    assert f"hot: {hot['plan']:.3g} ms, row-wise {hot['row_wise']:.3g}, coalesced" in text


@pytest.mark.parametrize(("table", "sizes", "counted"), [
    ("hot", TableSizes(replicated=16), "all"),  # it frees more buffers
    ("flat", TableSizes(coalesce="node"), "what stays"),
    ("flat", TableSizes(per_node=5000, coalesce="node"), "what stays"),
])  # fmt: skip
def test_it_tells_which_memory_a_budget_is_for(table: str, sizes: TableSizes, counted: str) -> None:
    made = report({table: sizes})
    base, plan = made.torchrec, made.ledger
    stays = plan.static_memory - base.static_memory
    assert (counted == "all") == (plan.memory - base.memory < stays)
    (line,) = (one for one in made.lines() if one.startswith("memory: "))
    both = r"memory: \S+ \S+ a rank over row-wise{}: \S+ \S+ that stay{} and \S+ \S+ of buffers"
    words = ", which a budget is for"
    found = both.format(words, "") if counted == "all" else both.format("", f"{words},")
    assert re.match(found, line), line


def test_it_tells_of_the_memory_that_finds_replicas_of_large_tables() -> None:
    def told(rows: int, replicated: int, *, on_gpu: bool = False) -> list[str]:
        table = ProfiledTable(name="large", rows=uniform(rows, 1), dim=64)
        sizes = {"large": TableSizes(replicated=replicated, coalesce="rank")}
        cluster = dataclasses.replace(PRICES.cluster, side_stream=on_gpu)
        prices = dataclasses.replace(PRICES, cluster=cluster)
        made = PlanReport(
            ledger=Ledger.of({"large": table}, sizes, prices), goal="budget", budget=1e9
        )
        return [line for line in made.lines() if line.startswith("memory: ") and "find" in line]

    assert told(4 * 10**8, 1000) == []  # 63.6 MiB
    (bits,) = told(6 * 10**9, 10**6)
    assert bits.startswith("memory: 955 MiB more a rank, which is in no budget, to find the rows")
    (slots,) = told(10**11, 10**7)
    assert slots.startswith("memory: 289 MiB more a rank")
    assert told(6 * 10**9, 10**6, on_gpu=True) == []  # 7.6 MiB
    (numbers,) = told(10**9, 10**8, on_gpu=True)
    assert numbers.startswith("memory: 763 MiB more a rank")


def test_a_step_without_a_lookup_takes_no_time() -> None:
    """As on one rank that counted batches without any id."""
    one = dataclasses.replace(PRICES, cluster=Cluster.of(Topology(ranks_per_node=1), 1))
    rows = uniform(100, 0)
    tables = {"hot": ProfiledTable(name="hot", rows=rows, dim=64)}
    plan = dataclasses.replace(report(), ledger=Ledger.of(tables, SIZES, one))
    assert "expected step: 0 ms, as fast as row-wise (0) and" in "\n".join(plan.lines())
    assert compared(0, 2, "row-wise") == "faster than row-wise"
    assert compared(2, 0, "row-wise") == "slower than row-wise"


def test_it_says_what_keeps_a_faster_plan_out() -> None:
    def told(exchanged: float, needs: float, unworthy: str = "") -> tuple[str, float]:
        own = Considered(way="own", ms=9, exchanged=8, memory=0, fits=True, chosen=True)
        faster = dataclasses.replace(
            own, way="sums", ms=4, exchanged=exchanged, fits=False, chosen=False, needs=needs
        )
        faster = dataclasses.replace(faster, unworthy=unworthy)
        made = dataclasses.replace(report(), considered={"bags": [own, faster]})
        why = made.over or unworthy
        assert f"own, 2.25x slower than sums, which {why}" in "\n".join(made.lines())
        return made.over, made.needs

    assert told(8, 3 << 20) == (
        "takes 3 MiB a rank beside TorchRec's own plan, over the budget",
        3 << 20,
    )
    assert told(8, 0) == ("leaves a rank without rows", 0)
    assert told(8, -1) == ("saves too little memory", -1)
    assert told(9, 0) == ("exchanges more bytes than TorchRec's own plan", 0)
    assert told(8, 3 << 20, "saves less than is asked for") == ("", 0)
    assert (report().over, report().needs) == ("", 0)


def test_a_frontier_of_many_steps_is_reported_by_some() -> None:
    curve = Frontier(memory=np.arange(1e5), ms=-np.arange(1e5))
    points = curve.points(most=50)
    assert len(points) == 50
    assert (points[0], points[-1]) == ((0, 0), (99_999, -99_999))


def test_it_says_why_there_are_no_more_replicas() -> None:
    def why(sizes: TableSizes, table: str = "hot", budget: float | None = 0.0) -> str:
        found = report({table: sizes}, budget).values()["tables"][table]["why_not_more"]
        assert isinstance(found, str)
        return found

    assert "memory is used up" in why(TableSizes(replicated=2_000, per_node=16), budget=-1e9)
    # The next row would need less memory as a replica: it is not that.
    assert "fewer by the goal" in why(TableSizes(replicated=16, per_node=16))
    assert "a tier's own collectives would take longer" in why(TableSizes())
    assert why(TableSizes(replicated=16)).startswith("no more rows in replicated")
    assert why(TableSizes(per_node=16)).startswith("no more rows in per_node")
    assert "fewer by the goal" in why(TableSizes(replicated=16), budget=None)
    # A row that hardly anyone looks up: copies would be reduced more often than asked for.
    assert "more than it saves" in why(TableSizes(), "flat")
    assert why(TableSizes(replicated=10_000)) == "every row has a replica"


def test_its_picture_has_the_frontier_and_three_plans() -> None:
    figure = Figure()
    report().draw(figure)
    (axes,) = figure.axes
    labels = [line.get_label() for line in axes.lines]
    assert labels[:4] == ["least time for the memory", "row_wise", "row_wise_coalesced", "plan"]
    assert axes.get_xlabel() == "memory over row-wise, MB a rank"
