"""Clusters and workloads with which `goal: auto` is checked, and the plans it might have chosen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from benchmarks.flexshard.sides import COALESCED, ROW_WISE, Side, tables
from benchmarks.flexshard.workload import TABLE, Workload
from recd_flexshard.policy.goals import choose
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import Coalesce

__all__ = [
    "BUDGET",
    "GRID",
    "NO_SKEW",
    "QUICK_GRID",
    "SATURATED",
    "SCALED",
    "TIERS",
    "Setting",
    "candidates",
    "chosen",
]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster, and what is trained on it."""

    n_nodes: int
    ranks_per_node: int
    mbit: int
    """Between nodes, a second."""
    exponent: float
    batch_size: int
    num_rows: int = 100_000
    dim: int = 64
    lookups: int = 40
    hot: tuple[int, float] | None = None

    @property
    def workload(self) -> Workload:
        return Workload(
            num_rows=self.num_rows,
            dim=self.dim,
            exponent=self.exponent,
            batch_size=self.batch_size,
            lookups=self.lookups,
            hot=self.hot,
        )

    def __str__(self) -> str:
        skew = f"Zipf {self.exponent:g}" if self.exponent else "uniform"
        if self.hot is not None:
            skew = f"{self.hot[0]:,} hot rows with {self.hot[1]:.0%} of lookups"
        return (
            f"{self.n_nodes}x{self.ranks_per_node} ranks, {self.mbit} mbit, {skew}, "
            f"B {self.batch_size} x {self.lookups}, {self.num_rows:,} rows x {self.dim}"
        )


def _setting(
    n_nodes: int, ranks_per_node: int, mbit: int, exponent: float, batch_size: int
) -> Setting:
    return Setting(
        n_nodes=n_nodes,
        ranks_per_node=ranks_per_node,
        mbit=mbit,
        exponent=exponent,
        batch_size=batch_size,
    )


BUDGET = float(1 << 28)
"""Bytes per rank beyond row-wise: all plans of the grid fit, so that only time decides."""
GRID = [
    _setting(2, 2, 200, 1.2, 512),
    _setting(2, 2, 1000, 1.05, 1024),
    _setting(2, 2, 50, 0.0, 128),
    _setting(2, 4, 200, 1.2, 512),
    _setting(2, 4, 50, 1.05, 128),
    _setting(2, 4, 1000, 1.3, 1024),
    _setting(4, 2, 200, 1.2, 512),
    _setting(4, 2, 200, 0.8, 256),
    _setting(4, 2, 100, 1.05, 256),
]
QUICK_GRID = GRID[3:4]

SATURATED = Setting(
    n_nodes=2,
    ranks_per_node=4,
    mbit=200,
    exponent=0.0,
    batch_size=1024,
    num_rows=200_000,
    hot=(10_000, 0.95),
)
"""Every rank looks up every hot row in every step."""
NO_SKEW = dataclasses.replace(SATURATED, hot=None, batch_size=128)

TIERS: tuple[tuple[Literal[2, 3], str], ...] = ((2, "DP"), (3, "DP, Flex"))
"""How many tiers a candidate has, including homes, and the paper's names of the others."""

SCALED = {"a quarter": 0.25, "half": 0.5, "twice": 2.0}
"""Candidates with this multiple of the choice's replicas."""


def chosen(workload: Workload, prices: Prices, budget: float = 0.0) -> Side:
    """The plan of `goal: auto`, with at most `budget` bytes per rank beyond row-wise."""
    ledger = choose(tables(workload), prices, goal="auto", budget=budget)
    return Side(name="goal: auto", sizes=ledger.tables[TABLE].sizes)


def candidates(workload: Workload, prices: Prices, choice: Side) -> list[Side]:
    """For each way of coalescing: no replicas, DP, DP and Flex, with the best sizes within
    `BUDGET`; then memory-neutral; then the choice's replicas `SCALED` (if it has none, those of the
    first candidate with some; or else all rows). The choice comes last; equal plans come once."""
    every = []
    coalesced = Side(name="coalesced per node", sizes=TableSizes(coalesce="node"))
    levels: dict[Coalesce, Side] = {"none": ROW_WISE, "rank": COALESCED, "node": coalesced}
    for level, alone in levels.items():
        every.append(alone)
        for tiers, name in TIERS:
            ledger = choose(
                tables(workload), prices, goal="budget", tiers=tiers, budget=BUDGET, coalesce=level
            )
            every.append(Side(name=f"{name}, {level}", sizes=ledger.tables[TABLE].sizes))
    paper = choose(tables(workload), prices)
    every.append(Side(name="memory-neutral", sizes=paper.tables[TABLE].sizes))
    replicas = choice.sizes.replicated + choice.sizes.per_node
    with_replicas = (one for one in every if one.sizes.replicated + one.sizes.per_node)
    all_rows = Side(name="all rows", sizes=TableSizes(replicated=workload.num_rows))
    whole = choice if replicas else next(with_replicas, all_rows)
    for name, factor in SCALED.items():
        replicated = min(int(whole.sizes.replicated * factor), workload.num_rows)
        per_node = min(int(whole.sizes.per_node * factor), workload.num_rows - replicated)
        sizes = dataclasses.replace(whole.sizes, replicated=replicated, per_node=per_node)
        every.append(Side(name=f"{name} of {whole.name}", sizes=sizes))
    distinct = {_effective(side, workload): side for side in reversed([*every, choice])}
    del distinct[_effective(choice, workload)]
    return [*reversed(distinct.values()), choice]


def _effective(side: Side, workload: Workload) -> TableSizes:
    """The sizes, without coalescing if every row has a replica: it changes nothing then."""
    sizes = side.sizes
    every = sizes.replicated + sizes.per_node == workload.num_rows
    return dataclasses.replace(sizes, coalesce="none") if every else sizes
