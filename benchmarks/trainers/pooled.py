"""Plans of a pooled DLRM, side by side on an emulated cluster, and what `goal: auto` takes.

    python -m benchmarks.trainers.pooled [--quick] [--json] [--only NUMBER...]

Two nodes of two gloo ranks, 200 mbit between them; needs root. All candidates of a setting take
turns in the same ranks, step by step, TorchRec's own plan among them, until they are seen to be far
behind, and plans that are equal are one candidate; `auto` chooses by a profile of other batches
than those that are measured, and by a topology that is measured first. Its regret is by rounds that
did not choose the best. Prices were fitted on `FITTED` settings; the others judge them. A quick run
has one of the latter and plans without replicas beside the choice; `--only` has those of the
numbers that `--help` lists.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torchrec.distributed.types import ShardingPlan

from benchmarks.cluster.network import Network, available
from benchmarks.cluster.ranks import EMULATED, ClusterRanks
from benchmarks.flexshard.grid import TIERS
from benchmarks.flexshard.steps import QUICK_ROUNDS
from benchmarks.flexshard.steps import topology as measured_topology
from benchmarks.harness import Figure, Limit, Report, main, spread
from benchmarks.limits import link_seconds
from benchmarks.peak_memory import peak_memory
from benchmarks.trainers.pooled_model import ALIKE, CRITEO, PooledModel
from benchmarks.trainers.pooled_steps import FUSED, Side, SideSteps, take_turns
from recd_flexshard.config import FlexShardConfig
from recd_flexshard.flexshard_planner import FlexShardPlanner
from recd_flexshard.policy.goals import choose
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.cluster.measured_topology import ROUNDS
from recd_plugins.planning.cluster.topology import GB, Topology
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.plan_of_sizes import tier_plan
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes
from recd_plugins.planning.tier_plans.tier_plan import Coalesce
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlanner,
    TorchRecPlannerConfig,
)
from recd_plugins.slots import Context

__all__ = ["FITTED", "JUDGED", "Measured", "Setting", "candidates", "equal_plans", "measure"]

N_NODES, RANKS_PER_NODE = 2, 2
WORLD_SIZE = N_NODES * RANKS_PER_NODE
PROFILED = 100
"""Batches of one rank."""
BUDGET_GB = 0.25
"""Over TorchRec's own plan, a rank: so that time decides, as in benchmarks.flexshard's grid."""
OWN, AUTO = "TorchRec's own plan", "goal: auto"
LEVELS: tuple[Coalesce, ...] = ("rank", "node")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model on a cluster."""

    model: PooledModel
    mbit: int = 200

    def __str__(self) -> str:
        model = self.model
        kind = {CRITEO: "Criteo's", ALIKE: "26 alike"}.get(model.rows, f"{len(model.rows)}")
        return (
            f"Zipf {model.exponent:g}, bags of {model.lookups}, {kind} tables x {model.dim}, "
            f"B {model.batch_size}, {self.mbit} mbit"
        )


def _setting(
    exponent: float, lookups: int, rows: tuple[int, ...] = CRITEO, **others: int
) -> Setting:
    mbit = others.pop("mbit", 200)
    batch_size = others.pop("batch_size", 512)
    return Setting(
        model=PooledModel(
            rows=rows, exponent=exponent, lookups=lookups, batch_size=batch_size, **others
        ),
        mbit=mbit,
    )


FITTED = [_setting(1.05, 1, ALIKE), _setting(1.2, 20, dim=32, batch_size=256)]
"""What the operations of tiers were counted on."""
JUDGED = [
    *(_setting(exponent, lookups) for exponent in (1.05, 1.2) for lookups in (1, 3, 20)),
    _setting(1.2, 1, ALIKE),
    _setting(1.05, 3, ALIKE),
    _setting(1.2, 3, mbit=1000),
    _setting(1.05, 20, ALIKE, batch_size=256),
]
QUICK = JUDGED[:1]
SETTINGS = [*JUDGED, *FITTED]
"""By number, for a run of some of them."""
MOST_MEMORY = 2.5
"""GB of a rank: four of them share a small machine."""


def measure(quick: bool, only: Sequence[int] = ()) -> Report:
    settings: dict[str, object] = {
        "model": "TorchRec's DLRM, 26 pooled tables, row-wise Adagrad, TrainPipelineSparseDist",
        "cluster": f"{N_NODES} nodes of {RANKS_PER_NODE} ranks: {EMULATED}",
        "memory for replicas": f"{BUDGET_GB} GB a rank",
        "profile": f"{PROFILED} batches of one rank, none of them measured",
    }
    if missing := available():
        settings["cluster"] = f"none, so nothing is measured: it needs {missing}"
        return Report(figures=[], settings=settings)
    rounds, timed = (5, QUICK_ROUNDS) if quick else (15, ROUNDS)
    settings["rounds"] = rounds
    judged = [SETTINGS[number] for number in only] or (QUICK if quick else JUDGED)
    figures: list[Figure] = []
    regrets = []
    with (
        Network(N_NODES, judged[0].mbit) as network,
        ClusterRanks(network, RANKS_PER_NODE) as ranks,
    ):
        topologies: dict[int, Topology] = {}
        for setting in judged:
            if network.mbit != setting.mbit:
                network.shape(setting.mbit)
            if setting.mbit not in topologies:
                topologies[setting.mbit] = ranks.run(measured_topology, RANKS_PER_NODE, timed)[0]
            sides = candidates(setting, topologies[setting.mbit], quick)
            equal = equal_plans(sides)
            steps = ranks.run(
                take_turns,
                setting.model,
                [side for side in sides if equal[side.name] == side.name],
                rounds,
                tuple(dict.fromkeys([OWN, equal[AUTO]])),
            )
            found = Measured(setting, sides, equal, steps)
            regrets.append(found.regret)
            figures += found.figures()
        memory = max(ranks.run(peak_memory)) / 1e9
    figures.append(
        Figure(
            name="memory of a rank, the peak",
            value=memory,
            unit="GB",
            target=MOST_MEMORY,
            at_most=True,
        )
    )
    figures.append(
        Figure(
            name="regret of goal: auto, the worst",
            value=100 * max(regrets),
            unit="%",
            target=10,
            at_most=True,
            note=f"over {len(judged)} settings; load {os.getloadavg()[0]:.1f}",
        )
    )
    return Report(figures=figures, settings=settings)


@dataclass(frozen=True)
class Measured:
    """The sides of a setting, which took turns."""

    setting: Setting
    sides: Sequence[Side]
    equal: Mapping[str, str]
    """Of each side, the one that took turns with its plan."""
    ranks: Sequence[Mapping[str, SideSteps]]

    def seconds(self, name: str) -> float:
        return statistics.median(self._of(name).seconds)

    def _of(self, name: str, rank: int = 0) -> SideSteps:
        return self.ranks[rank][self.equal[name]]

    def gain(self, name: str, base: str) -> tuple[float, float]:
        """How many times faster round by round: the median, and its spread."""
        ours, theirs = (self._of(one).seconds for one in (name, base))
        gains = [other / own for own, other in zip(ours, theirs, strict=True)]
        return statistics.median(gains), spread(gains)

    def collectives(self, name: str) -> float:
        """Bytes that a rank hands over in a step, on average."""
        ranks = range(len(self.ranks))
        return statistics.mean(self._of(name, rank).collectives for rank in ranks)

    def sending(self, name: str) -> float:
        """Seconds that the bytes of the node that sends most are under way in a step."""
        nodes = range(0, len(self.ranks), RANKS_PER_NODE)  # its ranks read one counter
        sent = max(statistics.median(self._of(name, rank).node_bytes) for rank in nodes)
        return link_seconds(sent, self.setting.mbit)

    @property
    def best(self) -> str:
        """Of those that took turns to the end."""
        steps = self.ranks[0]
        turns = len(self._of(AUTO).seconds)
        return min((name for name in steps if len(steps[name].seconds) == turns), key=self.seconds)

    @property
    def behind(self) -> list[float]:
        """How many times as long as the best the choice took, by further round; none where it was
        the best itself."""
        if self.best == self.equal[AUTO]:
            return []
        ours, theirs = (self._of(one).again for one in (AUTO, self.best))
        return [own / other for own, other in zip(ours, theirs, strict=True)]

    @property
    def regret(self) -> float:
        return max(0.0, statistics.median(self.behind or [1.0]) - 1)

    def figures(self) -> Iterator[Figure]:
        for side in self.sides:
            same = self.equal[side.name]
            as_other = f" (the plan of {same})" if same != side.name else ""
            print(
                f"{self.setting}: {side.name}{as_other}: {1e3 * self.seconds(side.name):.0f} ms, "
                f"{side.expected_ms:.0f} expected of exchanges and lookups; "
                f"{self.collectives(side.name) / 2**20:.2f} MiB; {side.memory / 2**20:+.1f} MiB",
                file=sys.stderr,
                flush=True,
            )
        best, plain, chosen = (1e3 * self.seconds(name) for name in (self.best, OWN, AUTO))
        faster, around = self.gain(AUTO, OWN)
        others = self.gain(self.best, OWN)[0]
        sending = self.sending(AUTO)
        yield Figure(
            name=f"goal: auto against TorchRec's own plan, {self.setting}",
            value=faster,
            unit="x faster",
            baseline=1.0,
            target=2.0 if self.setting.model.lookups == 1 else 0.97,
            limit=Limit(
                value=self.seconds(OWN) / sending,
                of="the bytes that a node sends by our plan, on a link of "
                f"{self.setting.mbit} mbit: {1e3 * sending:,.0f} ms; what ranks compute is left "
                "out, and so are latencies",
            ),
            spread=around,
            note=f"{chosen:.0f} and {plain:.0f} ms; the best of {len(self.ranks[0])} is "
            f"{self.best}, {others:.2f}x",
        )
        yield Figure(
            name=f"regret, {self.setting}",
            value=100 * self.regret,
            unit="%",
            target=10,
            at_most=True,
            spread=spread(self.behind) if self.behind else 0.0,
            note=f"{chosen:.0f} ms, the best {best:.0f} ({self.best})"
            + (f"; {len(self.behind)} further rounds of the two" if self.behind else ""),
        )
        fewer = self.collectives(OWN) / self.collectives(AUTO)
        yield Figure(
            name=f"bytes of collectives, {self.setting}",
            value=fewer,
            unit="x fewer",
            baseline=1.0,
            target=0.99,
            note="a rank's, all but the dense all-reduce, against TorchRec's own plan",
        )


def equal_plans(sides: Sequence[Side]) -> dict[str, str]:
    """Of each side the name of the one that takes turns for it, by its plan: TorchRec's own before
    the choice, and the choice before all others."""
    found: list[Side] = []
    names = {}
    for side in sorted(sides, key=lambda side: side.name not in (OWN, AUTO)):
        same = (one for one in found if one.plan.plan == side.plan.plan and one.tiers == side.tiers)
        first = next(same, side)
        if first is side:
            found.append(side)
        names[side.name] = first.name
    return names


def candidates(setting: Setting, topology: Topology, quick: bool = False) -> list[Side]:
    """TorchRec's own plan, those of one way for all tables, and the choice. In a quick run nothing
    but the choice has replicas."""
    model = setting.model.make()
    others = _torchrec(setting)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.arrow"
        setting.model.profile(PROFILED, seed=7).save(path)
        config = FlexShardConfig(goal="auto", budget_gb=BUDGET_GB, profile=path)
        context = Context(
            batch_size=setting.model.batch_size, fused=FUSED.fused_params(), others=others
        )
        planner = FlexShardPlanner(config, context)
        plan = planner.propose(model, topology, WORLD_SIZE)
    print(planner.explain().partition("\nt0:")[0], file=sys.stderr, flush=True)
    assert planner.report is not None
    assert planner.profile is not None
    chosen = planner.report.ledger
    tables = {name: one.table for name, one in chosen.tables.items()}
    made = _Sides(setting, topology, others, tables, planner.profile, chosen.prices)
    ways = made.without_replicas() if quick else made.every()
    sides = [made.side(name, sizes) for name, sizes in ways]
    extra = chosen.memory - planner.report.torchrec.memory
    return [*sides, Side(AUTO, plan, planner.tier_plan, chosen.ms, extra)]


def _torchrec(setting: Setting) -> TorchRecPlanner:
    return TorchRecPlanner(
        TorchRecPlannerConfig(),
        device="cpu",
        batch_size=setting.model.batch_size,
        sharders=partial(default_sharders, FUSED.fused_params()),
    )


@dataclass(frozen=True)
class _Sides:
    setting: Setting
    topology: Topology
    others: TorchRecPlanner
    tables: Mapping[str, ProfiledTable]
    profile: Profile
    prices: Prices

    def without_replicas(self) -> Iterator[tuple[str, Mapping[str, TableSizes]]]:
        """A name, and the sizes of all tables."""
        yield OWN, dict.fromkeys(self.tables, AS_TORCHREC)
        yield "row-wise sums", dict.fromkeys(self.tables, TableSizes())
        for level in LEVELS:
            yield f"rows by {level}", dict.fromkeys(self.tables, TableSizes(coalesce=level))

    def every(self) -> Iterator[tuple[str, Mapping[str, TableSizes]]]:
        """Those, and others with replicas."""
        yield from self.without_replicas()
        for level in LEVELS:
            for tiers, name in TIERS:
                ledger = choose(
                    self.tables,
                    self.prices,
                    goal="budget",
                    tiers=tiers,
                    budget=BUDGET_GB * GB,
                    coalesce=level,
                )
                sizes = {table: one.sizes for table, one in ledger.tables.items()}
                yield f"rows by {level}, {name}", sizes
        half = {name: one.rows.num_rows // 2 for name, one in self.tables.items()}
        yield (
            "replicas of half the rows, sums",
            {name: TableSizes(replicated=rows // 4 * 4) for name, rows in half.items()},
        )
        yield (
            "all rows everywhere",
            {
                name: TableSizes(replicated=one.rows.num_rows, coalesce="rank")
                for name, one in self.tables.items()
            },
        )

    def side(self, name: str, sizes: Mapping[str, TableSizes]) -> Side:
        ledger = Ledger.of(self.tables, sizes, self.prices)
        own = Ledger.of(self.tables, dict.fromkeys(self.tables, AS_TORCHREC), self.prices)
        held = [table for table, size in sizes.items() if not size.as_torchrec]
        plan: ShardingPlan = self.others.row_wise(held).propose(
            self.setting.model.make(), self.topology, WORLD_SIZE
        )
        tiered = {table: size for table, size in sizes.items() if size != TableSizes()}
        cluster = self.prices.cluster
        tiers = tier_plan(self.tables, tiered, cluster)
        return Side(
            name,
            plan,
            tiers if tiers.tables else None,
            ledger.ms,
            ledger.memory - own.memory,
        )


if __name__ == "__main__":
    each = "; ".join(f"{number}: {setting}" for number, setting in enumerate(SETTINGS))
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--only", nargs="+", type=int, default=(), choices=range(len(SETTINGS)), metavar="NUMBER"
    )
    arguments, rest = parser.parse_known_args()
    main("trainers.pooled", partial(measure, only=arguments.only), rest, about=f"settings: {each}")
