"""Forecast against fact: whole steps on an emulated cluster, whose settings tuned nothing.

Before it, a cluster's links and ranks are timed, the model is timed without its tables, and steps
of next to no samples show what TorchRec itself takes (`fixed`), or that ranks come to their calls
sooner than from work of their own. None of the settings is among them.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from benchmarks.cluster.network import Network, available
from benchmarks.cluster.ranks import ClusterRanks
from benchmarks.flexshard.steps import topology
from benchmarks.harness import Figure, spread
from benchmarks.scale.emulated_step import (
    HISTORY,
    EmulatedJob,
    EmulatedSteps,
    computed,
    median,
    steps_of,
)
from recd_flexshard.policy.goals import choose
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Link
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.step.compute import Compute
from recd_plugins.planning.step.step_forecast import StepForecast
from recd_plugins.planning.tier_plans.plan_of_sizes import tier_plan
from recd_plugins.planning.tier_plans.table_sizes import TableSizes

__all__ = ["QUICK", "SETTINGS", "Validated", "ValidationSetting", "figures", "validated"]

K = 1.65
BUDGET = float(1 << 26)
"""Bytes of replicas, a rank."""
NEXT_TO_NOTHING = 2
"""Samples of a step that shows what TorchRec takes whatever the batch."""
LINK_ROUNDS = 6
"""Of each payload, where links are timed: half of a topology's, for there are twelve to time."""
ASSEMBLED = 3
"""How often a step is assembled anew: one assembly takes up to a tenth more or less than the next,
however many rounds it has."""

Placed = Literal["row-wise", "coalesced", "tiers"]


@dataclass(frozen=True, kw_only=True)
class ValidationSetting:
    """A cluster, what is trained on it, and how its histories are placed."""

    n_nodes: int
    ranks_per_node: int
    mbit: int
    job: EmulatedJob
    placed: Placed

    def __str__(self) -> str:
        job = self.job
        skew = f"Zipf {job.exponent:g}" if job.exponent else "uniform"
        return (
            f"{self.n_nodes}x{self.ranks_per_node}, {self.mbit} mbit, {skew}, "
            f"S {job.samples_per_session}, {'pooled' if job.pooled else 'sequences'}, "
            f"B {job.batch_size}, {self.placed}"
        )

    def sizes(self, prices: Prices) -> dict[str, TableSizes]:
        """As the policy has them, of histories alone."""
        history = {HISTORY: self.job.tables()[HISTORY]}
        if self.placed == "row-wise":
            return {}
        if self.placed == "coalesced":
            return {HISTORY: TableSizes(coalesce="rank")}
        ledger = choose(history, prices, goal="budget", budget=BUDGET, coalesce="rank")
        return {HISTORY: ledger.tables[HISTORY].sizes}


def _settings() -> Iterator[ValidationSetting]:
    """Each shape of cluster with each link; what is trained goes round in steps that share no
    divisor with these, so that no two factors vary together."""
    shapes, links = ((2, 1), (2, 2), (4, 1), (2, 4)), (50, 200, 1000)
    skews, sizes = (1.05, 0.0, 1.3), (128, 512)
    placed: tuple[Placed, ...] = ("row-wise", "coalesced", "tiers", "row-wise", "tiers")
    number = 0
    for n_nodes, ranks_per_node in shapes:
        for mbit in links:
            for pooled in (False, True):
                yield ValidationSetting(
                    n_nodes=n_nodes,
                    ranks_per_node=ranks_per_node,
                    mbit=mbit,
                    placed=placed[number % 5],
                    job=EmulatedJob(
                        exponent=skews[number % 3],
                        samples_per_session=(1, 8, 1, 3)[number // 2 % 4],
                        pooled=pooled,
                        batch_size=sizes[number // 3 % 2],
                    ),
                )
                number += 1


SETTINGS = tuple(_settings())
QUICK = tuple(SETTINGS[number] for number in (6, 7, 8, 11))
"""Of one shape, so that one cluster is made."""


@dataclass(frozen=True, kw_only=True)
class Validated:
    """One setting, forecast and measured."""

    setting: ValidationSetting
    step: StepForecast
    seconds: Sequence[float]
    node_bytes: float
    """What left all nodes in a step, by the links' counters: headers and all."""
    processor: float
    """Seconds of a step that the first rank's processor worked."""
    collectives: Mapping[str, float]
    """Seconds of the first rank's collectives in the last assembly, which run beside each other and
    wait for others."""
    small: float
    """Milliseconds of a row-wise step of next to no samples."""

    @property
    def bytes_error(self) -> float:
        """The forecast of what leaves nodes over the fact, less 1."""
        return self.step.bytes_by_link["between_nodes"] / self.node_bytes - 1

    @property
    def forecast(self) -> str:
        """The parts of the forecast, and what of them hides."""
        return f"{_in_ms(self.step.parts)}; hidden {_in_ms(self.step.hidden)}"

    @property
    def fact(self) -> str:
        """What the first rank's processor worked, its collectives by gloo's names, and what a step
        of next to no samples takes."""
        each = {"processor": self.processor, **self.collectives}
        taken = _in_ms({name: 1000 * seconds for name, seconds in each.items()})
        return f"{taken}; of next to no samples {self.small:.1f}"

    @property
    def error(self) -> float:
        """The forecast over the fact, less 1."""
        return self.step.ms / median(self.seconds) - 1


def validated(settings: Sequence[ValidationSetting], rounds: int) -> Iterator[Validated]:
    """Each setting, on one cluster for each shape; its links are timed once for each rate."""
    for (n_nodes, ranks_per_node), alike in groupby(
        settings, lambda one: (one.n_nodes, one.ranks_per_node)
    ):
        each = list(alike)
        with (
            Network(n_nodes, each[0].mbit) as network,
            ClusterRanks(network, ranks_per_node) as ranks,
        ):
            known = _Known(network, ranks)
            for setting in each:
                yield known.validated(setting, rounds)


class _Known:
    """A cluster, and what was found of it so far."""

    def __init__(self, network: Network, ranks: ClusterRanks) -> None:
        self._network = network
        self._ranks = ranks
        self._clusters: dict[int, Cluster] = {}

    def validated(self, setting: ValidationSetting, rounds: int) -> Validated:
        job = setting.job
        compute = dataclasses.replace(self._compute(job), fixed=0.0)
        cluster, fixed, small = self._amid_steps(setting, self._cluster(setting.mbit), compute)
        step = self._forecast(setting, cluster, dataclasses.replace(compute, fixed=fixed))
        sizes = setting.sizes(step.ledger.prices)
        tiers = tier_plan(job.tables(), sizes, cluster, job.hottest) if sizes else None
        each = [self._ranks.run(steps_of, job, tiers, rounds) for _ in range(ASSEMBLED)]
        last = each[-1]
        found = Validated(
            setting=setting,
            step=step,
            seconds=_seconds(each),
            node_bytes=sum(one.node_bytes for one in last[:: self._ranks.ranks_per_node]),
            processor=statistics.median(ranks[0].processor for ranks in each),
            collectives=last[0].collectives,
            small=small,
        )
        print(
            f"{setting}: {step.ms:.1f} ms for {median(found.seconds):.1f}, bytes "
            f"{found.bytes_error:+.1%}; forecast: {found.forecast}; fact: {found.fact}",
            file=sys.stderr,
            flush=True,
        )
        return found

    def _cluster(self, mbit: int) -> Cluster:
        if self._network.mbit != mbit:
            self._network.shape(mbit)
        if mbit not in self._clusters:
            found = self._ranks.run(topology, self._ranks.ranks_per_node, LINK_ROUNDS)[0]
            self._clusters[mbit] = Cluster.of(found, self._ranks.world_size)
        return self._clusters[mbit]

    def _compute(self, job: EmulatedJob) -> Compute:
        return self._ranks.run(computed, job, NEXT_TO_NOTHING * job.samples_per_session)[0]

    def _amid_steps(
        self, setting: ValidationSetting, cluster: Cluster, compute: Compute
    ) -> tuple[Cluster, float, float]:
        """What steps of next to no samples, row-wise, say of a cluster and of all steps on it: the
        cluster, seconds of any step, and their milliseconds.

        What they take beyond the forecast are seconds of any step. Where they take less, calls do:
        a rank comes to most of them from another call, and not from work of its own.
        """
        small = dataclasses.replace(
            setting.job, batch_size=NEXT_TO_NOTHING * setting.job.samples_per_session, lookups=1
        )
        plain = dataclasses.replace(setting, job=small, placed="row-wise")
        each = [self._ranks.run(steps_of, small, None, 5) for _ in range(ASSEMBLED)]
        took = median(_seconds(each))
        step = self._forecast(plain, cluster, compute)
        calling = step.ms - self._forecast(plain, _calls_take(cluster, 0.0), compute).ms
        if took >= step.ms or not calling:
            return cluster, max(took - step.ms, 0.0) / 1000, took
        return _calls_take(cluster, max(1 - (step.ms - took) / calling, 0.0)), 0.0, took

    def _forecast(
        self, setting: ValidationSetting, cluster: Cluster, compute: Compute
    ) -> StepForecast:
        job = setting.job
        prices = Prices(cluster=cluster, batch_size=job.batch_size, k=K)
        ledger = Ledger.of(job.tables(), setting.sizes(prices), prices)
        unique = {HISTORY: job.share} if job.samples_per_session > 1 else {}
        return StepForecast(ledger=ledger, compute=compute, unique=unique)


def _calls_take(cluster: Cluster, share: float) -> Cluster:
    """The cluster with so much of its calls' latencies."""
    links: dict[str, Any] = {
        name: dataclasses.replace(link, latency_ms=share * link.latency_ms)
        for name, link in vars(cluster).items()
        if isinstance(link, Link)
    }
    return dataclasses.replace(cluster, **links)


def _seconds(each: Sequence[Sequence[EmulatedSteps]]) -> list[float]:
    """The first rank's, of all times that the ranks' steps were assembled."""
    return [seconds for ranks in each for seconds in ranks[0].seconds]


def _in_ms(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {ms:.1f}" for part, ms in parts.items() if ms >= 0.05) or "nothing"


def figures(quick: bool, part: tuple[int, int] = (1, 1)) -> list[Figure]:
    """One figure for each setting, and two for all; `part` is one of so many parts."""
    if missing := available():
        print(f"no emulated cluster: it needs {missing}", file=sys.stderr)
        return []
    number, parts = part
    size = -(-len(SETTINGS) // parts)
    chosen = QUICK if quick else SETTINGS[(number - 1) * size : number * size]
    found = list(validated(chosen, rounds=3 if quick else 7))
    errors = [100 * abs(one.error) for one in found]
    each = [
        Figure(
            name=str(one.setting),
            value=100 * one.error,
            unit="% off",
            spread=spread(one.seconds),
            note=f"{one.step.ms:.1f} ms for {median(list(one.seconds)):.1f}: {one.forecast}; "
            f"of the first rank: {one.fact}; {one.node_bytes / 1e6:.2f} MB left the nodes, "
            f"{100 * one.bytes_error:+.0f}%",
        )
        for one in found
    ]
    return [
        *each,
        Figure(
            name="forecast of a step, median error",
            value=statistics.median(errors),
            unit="%",
            target=8,
            at_most=True,
            note=f"{len(found)} settings",
        ),
        Figure(
            name="forecast of a step, worst error",
            value=max(errors),
            unit="%",
            target=20,
            at_most=True,
        ),
        Figure(
            name="forecast of the bytes between nodes, worst error",
            value=max(100 * abs(one.bytes_error) for one in found),
            unit="%",
            note="headers of packets are in the fact alone",
        ),
    ]
