"""Why a tier plan is what it is: what each tier of each table takes, costs and saves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recd_plugins.errors import so_many
from recd_plugins.planning.access.distribution import Floats, RowDistribution
from recd_plugins.planning.explain.why_not_more import why_not_more
from recd_plugins.planning.explain.words import aligned, in_bytes, in_share
from recd_plugins.planning.prices.cost import COLLECTIVES
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.prices.milliseconds import marginal_ms
from recd_plugins.planning.prices.table_ledger import Entry, TableLedger, TierName
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Considered", "Frontier", "PlanReport", "TierReport", "compared"]

FILED: Mapping[str, str] = {"home": "row_wise"}
"""What `recd plan --json` calls a tier, where scripts that read it know another name."""
LINKS = {
    "a2a_global": "global all-to-all",
    "a2a_intra": "intra-node all-to-all",
    "a2a_cross": "cross-node all-to-all",
    "ar_global": "global all-reduce",
    "ar_cross": "cross-node all-reduce",
    "local": "lookups",
}
POINTS = 60
"""The number of points of a coverage curve."""
FROM_BYTES = 1 << 26
"""Bytes of routers that a report tells of: of fewer, they are few beside tables that large."""
LEAST_MS = 1e-4
"""Milliseconds that are shown: a topology that nobody measured has lookups of next to none."""


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """A ledger, what it is compared with, and the plans beside it."""

    ledger: Ledger
    goal: str
    budget: float | None
    """Extra bytes a rank that were allowed; None where memory did not count."""
    frontier: Frontier | None = None
    considered: Mapping[str, Sequence[Considered]] = field(default_factory=dict)
    """The plans that each collection might have had, by its path."""
    own: Ledger | None = None
    """The ledger of TorchRec's own plan, if it is not that of these tables, all left to it."""

    @property
    def over(self) -> str:
        """What a faster plan than the chosen one takes more of than it may, in words; nothing where
        none is faster."""
        return next((_over(one, own) for one, own in self._faster), "")

    @property
    def needs(self) -> float:
        """The budget, in bytes a rank, that this faster plan would fit; 0 where none would do."""
        return next((one.needs for one, _ in self._faster), 0.0)

    @property
    def _faster(self) -> Iterator[tuple[Considered, Considered]]:
        """The fastest plan of each collection that may not be taken, and TorchRec's own."""
        for every in self.considered.values():
            (chosen,) = (one for one in every if one.chosen)
            fastest = min(every, key=lambda one: one.ms)
            if not fastest.fits and not fastest.unworthy and fastest.ms < chosen.ms:
                yield fastest, every[0]

    @cached_property
    def room(self) -> float | None:
        """Bytes a rank that the budget leaves; None where memory did not count."""
        if self.budget is None:
            return None
        return self.budget - (self.ledger.memory - self.torchrec.memory)

    @cached_property
    def torchrec(self) -> Ledger:
        """The ledger of all tables as TorchRec's own plan has them; row-wise where that is not
        known."""
        return self.own or self._all(AS_TORCHREC)

    @cached_property
    def row_wise(self) -> Ledger:
        """The ledger of all tables row-wise, without tiers."""
        return self._all(TableSizes())

    @cached_property
    def coalesced(self) -> Ledger:
        """The ledger of all tables row-wise, ids coalesced per rank: the plan to beat."""
        return self._all(TableSizes(coalesce="rank"))

    def tiers(self, table: str) -> dict[TierName, TierReport]:
        """The rows and costs of each tier of a table."""
        return {
            name: _report(entry, self.ledger, self.ledger.tables[table].interval(name))
            for name, entry in self.ledger.tables[table].entries.items()
        }

    def values(self) -> Mapping[str, Any]:
        """All numbers, for machines."""
        cluster = self.ledger.prices.cluster
        return {
            "goal": self.goal,
            "budget": self.budget,
            "n_nodes": cluster.n_nodes,
            "ranks_per_node": cluster.ranks_per_node,
            "batch_size": self.ledger.prices.batch_size,
            "k": self.ledger.prices.k,
            "ms": {name: ledger.ms for name, ledger in self._compared()},
            "memory": {name: ledger.memory for name, ledger in self._compared()},
            "between_nodes": {
                name: float(ledger.cost.between_nodes) for name, ledger in self._compared()
            },
            "exchanged": {name: ledger.cost.exchanged for name, ledger in self._compared()},
            "ms_by_collective": {
                name: dict(ledger.ms_by_collective) for name, ledger in self._compared()
            },
            "bytes_by_collective": {
                name: {to: float(getattr(ledger.cost.mean, to)) for to in COLLECTIVES}
                for name, ledger in self._compared()
            },
            "frontier": None if self.frontier is None else self.frontier.points(),
            "considered": {
                path: [dataclasses.asdict(one) for one in every]
                for path, every in self.considered.items()
            },
            "tables": {
                name: {
                    "coalesce": table.sizes.coalesce,
                    "as_torchrec": table.sizes.as_torchrec,
                    "mapped": table.table.mapped,
                    "ms": self._ms(name),
                    "why_not_more": why_not_more(table, self.ledger, self.room),
                    "coverage": _coverage(table.table.rows),
                    **{
                        FILED.get(tier, tier): report._asdict()
                        for tier, report in self.tiers(name).items()
                    },
                }
                for name, table in self.ledger.tables.items()
            },
        }

    def lines(self) -> Iterator[str]:
        """The same in words."""
        prices = self.ledger.prices
        cluster = prices.cluster
        yield (
            f"tier plan: goal {self.goal}; {so_many(cluster.n_nodes, 'node')} of "
            f"{so_many(cluster.ranks_per_node, 'rank')}, {so_many(prices.batch_size, 'sample')} a "
            f"rank and step, k = {prices.k:.3g}"
        )
        if cluster.unmeasured:
            nobody = " and ".join(cluster.unmeasured)
            yield f"nobody measured {nobody}: `recd topology measure` does"
        rows: list[tuple[str, ...]] = [("table", "tier", "rows", "lookups", "memory", "ms")]
        for name, table in self.ledger.tables.items():
            for tier, report in self.tiers(name).items():
                if report.rows or tier == "home":
                    rows.append((name, *_row(tier, table, report)))
        yield from aligned(rows)
        yield from self._totals()
        yield from self._alternatives()
        for name, table in self.ledger.tables.items():
            ms = self._ms(name)
            own = f"as TorchRec {ms['torchrec']:.3g}, " if "torchrec" in ms else ""
            yield (
                f"{name}: {ms['plan']:.3g} ms, {own}row-wise {ms['row_wise']:.3g}, coalesced per "
                f"rank {ms['row_wise_coalesced']:.3g}; "
                f"{why_not_more(table, self.ledger, self.room)}"
            )

    def draw(self, figure: Figure) -> None:
        """The frontier, with this plan and those that it is compared with."""
        axes = figure.add_subplot()
        base = self.row_wise
        if self.frontier is not None:
            cluster = self.ledger.prices.cluster
            latency = self.ledger.ms - float(marginal_ms(self.ledger.cost.mean, cluster))
            axes.plot(
                self.frontier.memory / 1e6,
                self.frontier.ms + latency,
                label="least time for the memory",
            )
        for name, ledger in self._compared():
            axes.plot((ledger.memory - base.memory) / 1e6, ledger.ms, "o", label=name)
        axes.axvline(0, linewidth=0.5, color="grey")
        axes.set_xlabel("memory over row-wise, MB a rank")
        axes.set_ylabel("expected ms a step")
        tables = len(self.ledger.tables)
        axes.set_title(f"{self.goal}: {so_many(tables, 'table')}")
        axes.legend()

    def _all(self, sizes: TableSizes) -> Ledger:
        tables = {name: one.table for name, one in self.ledger.tables.items()}
        return Ledger.of(tables, dict.fromkeys(tables, sizes), self.ledger.prices)

    def _compared(self) -> Sequence[tuple[str, Ledger]]:
        own = [("torchrec", self.torchrec)] if self._knows_torchrec else []
        return (
            *own,
            ("row_wise", self.row_wise),
            ("row_wise_coalesced", self.coalesced),
            ("plan", self.ledger),
        )

    @property
    def _knows_torchrec(self) -> bool:
        return any(one.table.shards is not None for one in self.ledger.tables.values())

    def _ms(self, table: str) -> dict[str, float]:
        """Milliseconds of one table in each plan, latencies aside."""
        cluster = self.ledger.prices.cluster
        return {
            plan: float(marginal_ms(ledger.tables[table].cost.mean, cluster))
            for plan, ledger in self._compared()
        }

    def _totals(self) -> Iterator[str]:
        yield self._ms_by_link()
        yield self._expected_step()
        yield from self._memory()

    def _ms_by_link(self) -> str:
        """What each link is used for by TorchRec's own plan, and by this one."""
        before, after = self.torchrec.ms_by_collective, self.ledger.ms_by_collective
        return "; ".join(
            f"{LINKS[name]} {before[name]:.3g} -> {after[name]:.3g} ms"
            for name in LINKS
            if max(before[name], after[name]) >= LEAST_MS
        )

    def _expected_step(self) -> str:
        """The time of a step and its bytes between nodes, beside those of the plans that this one
        is compared with."""
        base, plan = self.torchrec, self.ledger
        others = [
            (f"{name} ({ledger.ms:.3g})", ledger)
            for name, ledger in (
                ("TorchRec's own plan", base),
                ("row-wise", self.row_wise),
                ("row-wise coalesced per rank", self.coalesced),
            )
            if ledger is not base or self._knows_torchrec
        ]
        words = [compared(plan.ms, ledger.ms, name) for name, ledger in others]
        sent = [in_bytes(ledger.cost.between_nodes) for _, ledger in others]
        return (
            f"expected step: {plan.ms:.3g} ms, {', '.join(words[:-1])} and {words[-1]}; "
            f"{in_bytes(plan.cost.between_nodes)} between nodes, against "
            f"{', '.join(sent[:-1])} and {sent[-1]}"
        )

    def _memory(self) -> Iterator[str]:
        """What this plan takes over TorchRec's own one, and what its routers take where that is
        much."""
        base, plan = self.torchrec, self.ledger
        extra = plan.memory - base.memory
        whom = "TorchRec's own plan" if self._knows_torchrec else "row-wise"
        stays = plan.static_memory - base.static_memory
        counted, of_all = "which a budget is for", extra < stays
        yield (
            f"memory: {in_bytes(extra, sign=True)} a rank over {whom}"
            f"{f', {counted}' if of_all else ''}: {in_bytes(stays, sign=True)} that stay"
            f"{'' if of_all else f', {counted},'} and {in_bytes(extra - stays, sign=True)} of "
            "buffers while a step exchanges"
        )
        if plan.router_memory >= FROM_BYTES:
            yield (
                f"memory: {in_bytes(plan.router_memory)} more a rank, which is in no budget, to "
                "find the rows that have replicas among those of large tables"
            )

    def _alternatives(self) -> Iterator[str]:
        """The plans that each collection might have had, and why it has what it has."""
        for path, every in self.considered.items():
            rows: list[tuple[str, ...]] = [
                (path or "tables", "", "ms a step", "exchanged", "memory")
            ]
            for one in every:
                note = "chosen" if one.chosen else "" if one.fits else "too much"
                rows.append(
                    (
                        f"  {one.way}",
                        note,
                        f"{one.ms:.3g}",
                        in_bytes(one.exchanged),
                        in_bytes(one.memory, sign=True),
                    )
                )
            yield from aligned(rows)
            yield _won(path or "tables", every)


@dataclass(frozen=True, kw_only=True)
class Considered:
    """One way of a collection's tables, the other collections as they were chosen."""

    way: str
    """The way in words."""
    ms: float
    """Milliseconds of a step."""
    exchanged: float
    """Bytes that a rank hands to collectives, on average."""
    memory: float
    """Bytes a rank over TorchRec's own plan."""
    fits: bool
    """Whether it is within the budget, and exchanges no more than TorchRec's own plan."""
    chosen: bool
    needs: float = 0.0
    """The budget, in bytes a rank, that it would fit; 0 where it fits, or none would do."""
    unworthy: str = ""
    """Why it would not replace the chosen one if it fitted, although it is faster; empty where it
    would."""


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The trade of memory against time along which a plan lies (figure 5)."""

    memory: Floats
    """[n] extra bytes a rank over all rows at home."""
    ms: Floats
    """[n] of a step, latencies aside."""

    def points(self, most: int = 200) -> list[tuple[float, float]]:
        """(memory, ms) of some of it, ends included."""
        last = len(self.memory) - 1
        at = np.unique(np.linspace(0, last, min(most, last + 1)).astype(np.int64))
        return list(zip(self.memory[at].tolist(), self.ms[at].tolist(), strict=True))


class TierReport(NamedTuple):
    """One tier of one table."""

    rows: int
    share: float
    """The share of the table's lookups."""
    memory: float
    """Bytes a rank, static and dynamic."""
    ms: float
    """Milliseconds of a step, latencies aside."""
    interval: tuple[float, float]
    """Between what and what the share will lie."""


def _coverage(rows: RowDistribution) -> list[tuple[int, float]]:
    """(hottest rows, the share of lookups that they take), rows rising to all of them."""
    sizes = np.unique(np.geomspace(1, max(rows.num_rows, 1), POINTS).astype(np.int64))
    return list(zip(sizes.tolist(), rows.coverage(sizes).tolist(), strict=True))


def compared(ms: float, other: float, name: str) -> str:
    """A comparison of a step of `ms` with another, in words: slower is called slower.

    A step that looks nothing up takes no time.
    """
    least, most = sorted((ms, other))
    times = f"{most / least:.2f}x " if least else ""
    if times == "1.00x " or least == most:
        return f"as fast as {name}"
    return f"{times}{'faster' if ms < other else 'slower'} than {name}"


def _won(path: str, every: Sequence[Considered]) -> str:
    """Why the chosen one of these was."""
    (chosen,) = (one for one in every if one.chosen)
    fastest = min(every, key=lambda one: one.ms)
    words = [
        compared(chosen.ms, one.ms, one.way)
        for one in (every[0], min((o for o in every if o is not chosen), key=lambda o: o.ms))
        if one is not chosen
    ]
    why = f"{path}: {chosen.way}, {', '.join(dict.fromkeys(words))}"
    if fastest is chosen:
        return why
    if fastest.unworthy:
        return f"{why}, which {fastest.unworthy}"
    if fastest.fits:
        return f"{why}, which the search did not come to"
    return f"{why}, which {_over(fastest, every[0])}"


def _over(one: Considered, own: Considered) -> str:
    """Why a plan may not be taken, beside TorchRec's own."""
    if one.exchanged > own.exchanged:
        return "exchanges more bytes than TorchRec's own plan"
    if one.needs > 0:
        return f"takes {in_bytes(one.needs)} a rank beside TorchRec's own plan, over the budget"
    return "saves too little memory" if one.needs else "leaves a rank without rows"


def _report(entry: Entry, ledger: Ledger, interval: tuple[float, float]) -> TierReport:
    return TierReport(
        rows=entry.rows,
        share=entry.share,
        memory=float(np.mean(entry.cost.memory)),
        ms=float(marginal_ms(entry.cost.mean, ledger.prices.cluster)),
        interval=interval,
    )


def _row(tier: TierName, table: TableLedger, report: TierReport) -> tuple[str, ...]:
    level = table.sizes.coalesce
    called: str = tier
    if table.sizes.as_torchrec:
        called = "row_wise" if table.table.shards is None else table.table.shards.kind
    named = called if level == "none" or tier == "replicated" else f"{called}, by {level}"
    if tier == "home" and table.table.mapped:
        named += ", mapped"
    return (
        named,
        f"{report.rows:,}",
        in_share(report.share, report.interval),
        in_bytes(report.memory),
        f"{report.ms:.3g}",
    )
