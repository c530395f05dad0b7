"""Sets the facts of training beside their forecasts: coverage, bytes, dedupe factor, time, hot
batches. `Facts` counts the batches that come."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from recd_plugins.errors import listed
from recd_plugins.planning.access.lookups import batch_lookups
from recd_plugins.planning.planner_bases import OrdersBatches
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.tiers.planner.tier_planner import TierPlanner
from recd_plugins.trainer.measure.beside import Beside
from recd_plugins.trainer.measure.dedupe_ahead import DEVIATIONS, FEW, KeptIds

if TYPE_CHECKING:
    from recd_plugins.planning.prices.ledger import Ledger
    from recd_plugins.planning.prices.table_ledger import TierName
    from recd_plugins.sparse.own_batches import FeaturesOf
    from recd_plugins.stack import Stack

__all__ = ["ONE_IN", "Facts", "coverage_of_saved_plan", "is_counted"]

COUNTS = 6
"""The numbers that are counted of each table."""
APART = (
    "samples change places so that batches are hot, which takes samples of a session apart. To "
    "keep them together, set cache.hot_batches: false"
)
"""Why fewer ids are shared than were forecast, where batches are hot."""
ONE_IN = 8
"""One batch in so many has its lookups counted by tier."""


class Facts:
    """Counts the batches of this rank, and compares them with what its planner forecast."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._planner = stack.planner()
        self._of_tiers = self._planner if isinstance(self._planner, TierPlanner) else None
        """The planner, if it is one of tier plans."""
        self._plan: TierPlan | None = None
        self._tiers: dict[str, Sequence[np.ndarray[Any, Any]]] = {}
        """The rows of each tier, ascending, by table."""
        self._served: dict[str, np.ndarray[Any, Any]] = {}
        """[COUNTS] of each table: the lookups that each of the two tiers serves, all lookups, the
        samples that made them, the batches, and the squares of each batch's lookups."""
        self._drawn = False
        """Whether they are of batches that were drawn; before the first of these, they are of each
        batch, so that a run of a few steps says something."""
        self.batches = self.hot = 0
        """The number of trained batches, and of the hot ones among them."""
        self.ahead = KeptIds()
        """The ids of the batches from which the dedupe factor is forecast."""
        self.came = KeptIds()
        """The ids of the trained batches."""
        self.hot_ahead: float | None = None
        """The share of batches that this rank forecasts to be hot; None without a forecast."""

    def state_dict(self) -> dict[str, Any]:
        """The counts, for a run that is resumed."""
        return {
            "batches": self.batches,
            "hot": self.hot,
            "ahead": self.ahead,
            "came": self.came,
            "hot_ahead": self.hot_ahead,
            "served": {name: counts.tolist() for name, counts in self._served.items()},
            "drawn": self._drawn,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the counts of another one."""
        self.batches, self.hot = state["batches"], state["hot"]
        self.ahead, self.came = KeptIds(*state["ahead"]), KeptIds(*state["came"])
        self.hot_ahead = state["hot_ahead"]
        self._served = {  # of a run that counted less, what it lacks is 0
            name: np.pad(np.array(counts, np.float64), (0, COUNTS - len(counts)))
            for name, counts in state["served"].items()
        }
        self._drawn = state["drawn"]

    def beside(
        self,
        device: torch.device,
        *,
        traffic: Mapping[str, float],
        dense: float,
        parts: Mapping[str, float],
        step_ms: float = 0.0,
    ) -> list[Beside]:
        """Forecasts beside the facts of all ranks; every rank must call it.

        `traffic`: the bytes that a rank hands to each collective in a step, of which `dense` are
        gradients of dense parameters; `parts`: the ms of a step's parts; `step_ms`: the ms of a
        step. All of these are over all ranks already.
        """
        names, ranks = sorted(self._rows()), dist.get_world_size(self._stack.group)
        mine = [self.batches, self.hot, *self.ahead, *self.came]
        for name in names:
            mine += self._served.get(name, np.zeros(COUNTS)).tolist()
        every = torch.tensor(mine, dtype=torch.float64, device=device)
        dist.all_reduce(every, group=self._stack.group)
        batches, hot, *rest = every.tolist()
        fields = len(self.ahead)
        ahead, came = (KeptIds(*rest[at : at + fields]) for at in (0, fields))
        served = rest[2 * fields :]
        # A rank takes the others to be like itself, but where each has a time of its own, a window
        # has as many hot batches as the rank with the fewest hot samples fills.
        own = math.inf if self.hot_ahead is None else self.hot_ahead
        least = torch.tensor(own, dtype=torch.float64, device=device)
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=self._stack.group)
        share = float(least)
        counts = dict(zip(names, np.reshape(served, (-1, COUNTS)), strict=True))
        return [
            *self._coverage(counts, batches, apart=bool(hot) and came.factor is not None),
            *self._bytes(traffic, dense),
            *_dedupe(ahead, came, hot=bool(hot)),
            *self._time(parts),
            *self._step(step_ms),
            *self._hot_batches(batches / ranks, hot / ranks, None if math.isinf(share) else share),
        ]

    def _rows(self) -> Mapping[str, Any]:
        """For each table that has replicas, the features whose lookups are counted."""
        planner, plan = self._of_tiers, self._tier_plan
        if planner is None or plan is None:
            return {}
        found = planner.found
        return {name: found[name].counted for name in plan.tables if name in found}

    @property
    def _tier_plan(self) -> TierPlan | None:
        return None if self._of_tiers is None else self._of_tiers.tier_plan

    @property
    def _replicates(self) -> bool:
        """Whether any row is on every rank by the present plan."""
        plan = self._tier_plan
        return plan is not None and any(len(one.replicated) for one in plan.tables.values())

    def look_at(
        self, batch: Any, features: FeaturesOf | None = None, *, drawn: bool = True
    ) -> None:
        """Count a batch's lookups by the tier that serves them, if it was `drawn` (`is_counted`),
        or as long as none was."""
        if self._drawn and not drawn:
            return
        rows, plan = self._rows(), self._tier_plan
        if not rows or plan is None:
            return
        if drawn and not self._drawn:
            self._served, self._drawn = {}, True
        if plan is not self._plan:
            self._plan = plan
            self._tiers = {
                name: [np.sort(tier) for tier in (table.replicated, table.per_node)]
                for name, table in plan.tables.items()
            }
        lookups = batch_lookups(batch, features)
        for name, part in rows.items():
            ids = np.concatenate([lookups[feature] for feature in part.features])
            hits = [_within(ids, tier) for tier in self._tiers[name]]
            counts = np.array([*hits, len(ids), lookups.samples, 1, len(ids) ** 2], np.float64)
            self._served[name] = self._served.get(name, np.zeros(COUNTS)) + counts

    def _coverage(
        self, served: Mapping[str, Any], trained: float, *, apart: bool
    ) -> Iterator[Beside]:
        """The shares of lookups that tiers `served`, beside those that were forecast; all ranks
        have `trained` so many batches. `apart`: samples that share ids were taken apart for some
        batches to be hot."""
        planner, plan = self._of_tiers, self._tier_plan
        if planner is None or plan is None:
            return
        report, epoch = planner.report, planner.counted_epoch
        part = trained / epoch if 0 < trained < epoch else 1.0
        """The share of the epoch that was forecast which was trained."""
        whole = ", forecast for a whole epoch" if part < 1 else ""
        for name, (hot, warm, every, samples, counted, squares) in served.items():
            if not samples:
                continue
            if report is not None and name in report.ledger.tables:
                off = _off(every, squares, counted)
                for one in self._lookups(name, every / samples, part, off=off):
                    more = apart and one.fact > (one.forecast or 0.0)
                    yield dataclasses.replace(one, note=APART) if more else one
            if not every:
                continue
            if report is None or name not in report.ledger.tables:
                if planner.plan_path is not None and not dist.get_rank(self._stack.group):
                    num_rows = planner.found[name].num_rows
                    yield from coverage_of_saved_plan(
                        plan.tables[name], num_rows, hot / every, warm / every
                    )
                continue
            table = report.ledger.tables[name]
            hits: tuple[tuple[TierName, float], ...] = (("replicated", hot), ("per_node", warm))
            for tier, count in hits:
                if not table.entries[tier].rows:
                    continue
                sketched = ", sketched: no interval" if table.table.rows.error else ""
                one = Beside(
                    what=f"{name}: lookups that {tier} serves{sketched}{whole}",
                    unit="share",
                    forecast=float(table.entries[tier].share),
                    interval=table.interval(tier),
                    fact=float(count / every),
                )
                why = self._why_served(one, part, by_file=planner.profile_path is not None)
                yield dataclasses.replace(one, note=why) if one.parted else one

    def _lookups(self, name: str, fact: float, part: float, *, off: float) -> Iterator[Beside]:
        """The ids that a sample looks up in a table, where these are more or fewer than those of
        the batches that were counted: then a step exchanges more or fewer rows, however large a
        share of them each tier serves. The fact is of some batches alone, so that it may be `off`
        by this share: one list may be as long as all others together."""
        assert self._of_tiers is not None  # it has a report
        assert self._of_tiers.report is not None
        rows = self._of_tiers.report.ledger.tables[name].table.rows
        whole = ", forecast for a whole epoch" if part < 1 else ""
        what = f"{name}: lookups of a sample{whole}"
        forecast, wide = float(rows.lookups), fact * off
        within = (forecast - wide, forecast + wide)
        one = Beside(what=what, unit="factor", forecast=forecast, interval=within, fact=float(fact))
        note = (
            "samples look up more or fewer ids than those that were counted, as where lists grow "
            "in the course of a log: count batches of all times"
            if part == 1
            else f"{part:.1%} of an epoch was trained, whose samples look up more or fewer ids "
            "than all of its samples do. To compare the forecast, train one (train.steps)"
        )
        if one.parted:
            yield dataclasses.replace(one, note=note)

    def _why_served(self, one: Beside, part: float, *, by_file: bool) -> str:
        """Why a tier serves another share than was forecast, `by_file` from a saved profile, in
        this `part` of the epoch that was forecast."""
        if by_file:
            return (
                "the profile is of other batches: profile anew, without it or by recd data profile"
            )
        retiers = self._stack.registry.train.retier_every
        if retiers:
            return "replicas moved to other rows while training: the forecast is of the first plan"
        if part < 1:
            return (
                f"{part:.1%} of an epoch was trained, and other rows are hot there than in all of "
                "it: the plan is for the whole epoch. To compare it, train one (train.steps)"
            )
        if one.fact < (one.forecast or 0.0):
            return (
                "other rows are hot than those that were counted: move replicas while training "
                "(train.retier_every), or count more batches (profile_batches)"
            )
        return "the batches that were counted have fewer of these rows: count more of them"

    @property
    def _whole_ledger(self) -> Ledger | None:
        """The ledger, if the plan priced every table, since bytes and times are those of all
        tables; else None."""
        planner = self._of_tiers
        if planner is None or planner.report is None:
            return None
        ledger = planner.report.ledger
        return ledger if planner.every <= ledger.tables.keys() else None

    @property
    def _left(self) -> list[str]:
        """The tables of which a plan has no prices, if it has any of others."""
        planner = self._of_tiers
        if planner is None or planner.report is None:
            return []
        return sorted(planner.every - planner.report.ledger.tables.keys())

    def _bytes(self, traffic: Mapping[str, float], dense: float) -> Iterator[Beside]:
        """The bytes of all collectives: those of tables, and those of `dense` gradients."""
        ledger, came = self._whole_ledger, sum(traffic.values())
        what = f"bytes of collectives, a rank and step ({', '.join(traffic)})"
        if ledger is None:
            if traffic and (left := self._left):
                note = f"the plan has no prices of {listed(left, kind='table')}: nobody could say"
                note += " the bytes of all"
                yield Beside(what=what, unit="bytes", forecast=None, fact=came, note=note)
            return
        if not traffic:
            return
        forecast = ledger.handed_over + dense
        one = Beside(what=what, unit="bytes", forecast=forecast, fact=came)
        note = (
            "what tables exchange was priced for other batches: see where lookups, coverage and "
            "dedupe factor part; those of the first step's plan, and of some steps alone, are "
            "compared"
        )
        yield dataclasses.replace(one, note=note) if one.parted else one

    def _time(self, parts: Mapping[str, float]) -> Iterator[Beside]:
        """The time that the ledger forecasts for a step's exchange and lookups; only the profiler
        measures what they took."""
        ledger = self._whole_ledger
        if ledger is None or not parts:
            return
        one = Beside(
            what="ms of a step's exchange and lookups, under the profiler",
            unit="ms",
            forecast=ledger.ms,
            fact=sum(parts[part] for part in ("exchange", "exposed", "lookup")),
        )
        note = "the topology is not this cluster's: `recd topology measure` makes one that is"
        yield dataclasses.replace(one, note=note) if one.parted else one

    def _step(self, ms: float) -> Iterator[Beside]:
        """The time of a whole step, if the registry has the forecast of `recd advise`."""
        forecast = self._stack.registry.train.forecast_ms
        if not forecast or not ms:
            return
        one = Beside(what="ms of a step", unit="ms", forecast=forecast, fact=ms)
        note = (
            "the registry, the ranks or the machine are others than those that train.forecast_ms "
            "is for, or it is busy with other work: ask `recd advise` again, here, with a topology "
            "by `recd topology measure`"
        )
        if ms > forecast and self._stack.device == "cpu":
            note += (
                ". It leaves out metrics and, unless it was tried (`recd advise --try 1`), "
                "reading; and ranks slow each other only as far as a measured topology says"
            )
        yield dataclasses.replace(one, note=note) if one.parted else one

    def _hot_batches(self, batches: float, hot: float, share: float | None) -> Iterator[Beside]:
        planner = self._planner
        orders = isinstance(planner, OrdersBatches) and self._stack.ordered
        if not orders or not batches:
            return
        if not hot and self._of_tiers is not None and not self._replicates:
            return  # no batch can be hot: the plan has said so, and why
        note = ""
        if not hot:
            note = (
                "hot batches are on, and none were made: in no window as many samples as fill a "
                "batch look up replicated rows alone, on every rank. Give the cache more rows, or "
                "a larger window, or set cache.hot_batches: false"
            )
        what = f"hot batches, of {batches:,.0f} a rank"
        forecast = None if share is None else share * batches
        one = Beside(
            what=what,
            unit="batches",
            forecast=forecast,
            interval=None if share is None else _in_count(share, batches),
            fact=hot,
            note=note,
        )
        if hot and one.parted:
            why = "other rows are hot than in the batches that were read first: see the coverage"
            one = dataclasses.replace(one, note=why)
        yield one


def _in_count(share: float, batches: float) -> tuple[float, float]:
    """The interval in which nine of ten counts lie of so many batches, where each is counted with
    this probability; one more to either side, since shares are of whole batches."""
    off = 1 + 1.65 * math.sqrt(batches * share * max(0.0, 1 - share))
    return share * batches - off, share * batches + off


def coverage_of_saved_plan(
    table: TablePlan, num_rows: int, hot: float, warm: float
) -> Iterator[Beside]:
    """What the tiers of a saved plan serve of a table of so many rows, which was not forecast
    for these batches: `hot` is the share of lookups of `replicated`, `warm` that of
    `per_node`."""
    left = num_rows, 1.0
    """The number of rows that no earlier tier has, and their share of the lookups."""
    for tier, rows, share in (
        ("replicated", table.replicated, hot),
        ("per_node", table.per_node, warm),
    ):
        if not len(rows):
            continue
        others, of = left
        left = others - len(rows), of - share
        note = (
            f"the plan's {len(rows):,} rows in {tier} serve no more lookups than as many other "
            "rows would, and cost their updates: other rows are hot. Save a plan of batches "
            "of now (`recd plan --save`), or leave `plan` out"
        )
        yield Beside(
            what=f"{table.table}: lookups that {tier} serves",
            unit="share",
            forecast=None,
            fact=float(share),
            # If no other rows are left, these have all lookups, however cold they are.
            note=note if len(rows) < others and share * others < of * len(rows) else "",
        )


def _dedupe(ahead: KeptIds, came: KeptIds, *, hot: bool = False) -> Iterator[Beside]:
    """The dedupe factor; `hot`: of batches among which samples changed places, for some to be
    hot."""
    if came.factor is None:
        return
    share, interval = "", ahead.interval
    if ahead.factor is None:
        note = "nobody could say the dedupe factor: this reader cannot begin anywhere in its epoch"
    elif ahead.interval is None:
        share, note = ", hardly known", "this reader could read too few batches ahead to say it"
    else:
        note = (
            "samples that share ids do not come together as in the batches that were read first: "
        )
        if math.isfinite(ahead.of):
            share = f", forecast by {ahead.batches / ahead.of:.0%} of the batches"
            note += "cluster the table (etl: cluster_by_session) and set reader.sessions: whole"
        else:
            share = ", forecast by the first batches"
            note += "have the loader keep the samples of a session together, all the way"
    if hot and interval is not None:
        # Nobody knows how many sessions that cuts.
        share, interval = f"{share} before samples change places", None
        note = APART
    one = Beside(
        what=f"dedupe factor{share}",
        unit="factor",
        forecast=ahead.factor,
        interval=interval,
        fact=came.factor,
        note=note,
    )
    why = one.forecast is None or (one.parted and one.fact < one.forecast)
    yield one if why else dataclasses.replace(one, note="")


def _off(every: float, squares: float, batches: float) -> float:
    """The share by which the lookups of a batch may be off, as counted in so many `batches` with so
    many lookups in `every` one together."""
    if batches < 2 or not every:
        return math.inf
    of_batches = max(0.0, batches * squares / every**2 - 1) / (batches - 1)
    return FEW.get(round(batches), DEVIATIONS) * math.sqrt(of_batches)


def _within(ids: Any, rows: Any) -> int:
    """The number of ids that are among the rows, which are ascending."""
    if not len(rows):
        return 0
    at = np.minimum(np.searchsorted(rows, ids), len(rows) - 1)
    return int(np.count_nonzero(rows[at] == ids))


def is_counted(number: int, *, hot: bool) -> bool:
    """Whether the lookups of the batch of this number, from 1 among those that are `hot` or among
    the others, are counted by tier.

    One of each `ONE_IN` is, drawn at random, since windows of hot batches have a period. Hot ones
    are drawn apart: among few batches that are drawn from all alike, too many may be hot.
    """
    some, place = divmod(number - 1, ONE_IN)
    return place == _drawn(hot, some)


@lru_cache(maxsize=2)
def _drawn(hot: bool, some: int) -> int:
    """The place of the batch that is counted among so many."""
    return int(np.random.default_rng([hot, some]).integers(ONE_IN))
