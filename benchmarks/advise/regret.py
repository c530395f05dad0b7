"""The advice against a search: how much slower it is than the best of all registries tried.

The search is one of stages. All registries take a few steps in turns with what is advised, the
faster half takes more, and the five that are fastest then take ten rounds. A registry that is left
out early was measured as slower than half of the others; the stages choose, and no figure is of
their rounds but how much faster than TorchRec's own plan what is advised is. Ranks assemble a side
once and hold it for as long as it is in the search. Regret is by rounds of the best and of what is
advised alone, which are assembled anew four times (`judged`): those that chose the best are best by
luck too.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.advise.held_sides import assemble_sides, drop_sides, time_sides
from benchmarks.cluster.network import Network, available
from benchmarks.cluster.ranks import ClusterRanks
from benchmarks.flexshard.steps import topology as measured_topology
from benchmarks.harness import Figure, spread
from recd_plugins.advise.advice import advise
from recd_plugins.advise.goal import AdviceGoal
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.cluster.topology import save_topology
from recd_plugins.registry import Registry
from recd_plugins.stack import load
from recd_plugins.storage.whole_file import write_whole

__all__ = ["SETTINGS", "Setting", "Stage", "begun", "regrets", "search", "searched", "stages_of"]

EACH, MEDIAN = 0.07, 0.03
FINALISTS = 5
ASSEMBLED = 2
"""How often the best and what is advised are assembled in each order, where they are judged."""
N_NODES, RANKS_PER_NODE = 2, 2
BUDGET_GB = 0.02
ADVISED = "what is advised"
AT_ONCE = 8
"""Registries that begin side by side, beside what is advised."""
STAGES = "stages.json"
"""What a setting's folder keeps of its search."""
LIMIT = 3600.0
"""Seconds of a call of the ranks."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A table, a model and a link."""

    samples_per_session: float
    skew: float
    mbit: int
    pooled: bool = False
    dim: int = 64

    @property
    def name(self) -> str:
        kind = "pooled" if self.pooled else "sequences"
        return f"{kind}, S {self.samples_per_session:g}, Zipf {self.skew:g}, {self.mbit} mbit"

    def registry(self, folder: Path, topology: Path, samples: int) -> dict[str, Any]:
        """Plain TorchRec's."""
        one = {"num_ids": 50_000, "skew": self.skew}
        user = {**one, "kind": "user", "stay": 0.95}
        features: list[dict[str, Any]] = [{"name": f"item_{i}", **one} for i in range(4)]
        features += [{"name": f"user_{i}", **user, "length": 3.0} for i in range(4)]
        model: dict[str, Any] = {"use": "dlrm", "embedding_dim": self.dim}
        values: dict[str, Any] = {}
        if not self.pooled:
            features += [
                {"name": f"h_{i}", **user, "sequence": True, "length": 20.0} for i in range(2)
            ]
            model["use"] = "sequence_dlrm"
            values["pooling"] = {f"h_{i}": {"use": "transformer", "heads": 2} for i in range(2)}
        return values | {
            "plugins": ["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"],
            "folder": str(folder),
            "dataset": {
                "use": "sessions",
                "samples": samples,
                "samples_per_session": self.samples_per_session,
                "features": features,
            },
            "model": {**model, "bottom": [64, self.dim], "top": [64]},
            "topology": str(topology),
            "train": {
                "device": "cpu",
                "threads": 1,
                "ranks": N_NODES * RANKS_PER_NODE,
                "batch_size": 256,
            },
        }


SETTINGS = (
    Setting(samples_per_session=16, skew=1.05, mbit=200),
    Setting(samples_per_session=4, skew=1.2, mbit=200),
    Setting(samples_per_session=1, skew=1.2, mbit=200),
    Setting(samples_per_session=16, skew=0.8, mbit=50),
    Setting(samples_per_session=8, skew=1.2, mbit=200, pooled=True),
    Setting(samples_per_session=1, skew=1.05, mbit=50, pooled=True),
)
CLUSTERED = {
    "etl": [{"use": "cluster_by_session"}],
    "reader": {"use": "local", "sessions": "whole"},
}
FLEXSHARD = {"use": "flexshard", "budget_gb": BUDGET_GB}
PLANS: Mapping[str, Mapping[str, Any]] = {
    "own": {},
    "row-wise": {
        "sharding": {"use": "torchrec", "constraints": {"t_h_*": {"sharding_types": ["row_wise"]}}}
    },
    "auto, no replica": {"sharding": {**FLEXSHARD, "goal": "auto", "budget_gb": 1e-6}},
    "auto": {"sharding": {**FLEXSHARD, "goal": "auto"}},
    "auto, hot": {
        "sharding": {**FLEXSHARD, "goal": "auto"},
        "cache": {"use": "scars", "size": "plan"},
    },
    "2 tiers, by rank": {
        "sharding": {
            **FLEXSHARD,
            "goal": "budget",
            "tiers": 2,
            "coalesce": "rank",
            "tables": ["t_*"],
        }
    },
    "3 tiers, by node": {
        "sharding": {**FLEXSHARD, "goal": "budget", "coalesce": "node", "tables": ["t_*"]}
    },
    "scars": {"cache": {"use": "scars", "size": "budget", "budget_gb": BUDGET_GB}},
}


def searched(base: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every plan on every table, deduplicated in every way."""
    users = [one["name"] for one in base["dataset"]["features"] if one.get("kind") == "user"]
    sequences = [one for one in users if one.startswith("h_")] or users[:2]
    dedups: dict[str, dict[str, Any]] = {
        "": {},
        "auto": {"dedup": {"use": "exact", "groups": "auto"}},
        "sequences": {"dedup": {"use": "exact", "groups": [[one] for one in sequences]}},
        "users": {"dedup": {"use": "exact", "groups": [[one] for one in users]}},
    }
    found = {"in time, own": base}
    found |= {f"in time, {name}": {**base, **PLANS[name]} for name in PLANS}
    for (dedup, with_dedup), (name, plan) in product(dedups.items(), PLANS.items()):
        found[f"clustered, {dedup}, {name}"] = {**base, **CLUSTERED, **with_dedup, **plan}
    found |= {
        f"in time, {dedup}, {name}": {**base, **with_dedup, **PLANS[name]}
        for dedup, with_dedup in dedups.items()
        if dedup in ("sequences", "users")
        for name in ("own", "auto")
    }
    return found


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Registries take turns with what is advised."""

    rounds: int
    steps: int
    """The steps of a turn."""
    most: int
    """How many go on from the stage before: the fastest."""


def stages_of(registries: int, quick: bool = False) -> tuple[Stage, ...]:
    """All of them for a look, then the faster half, and then the finalists, for as long as it takes
    to tell them apart: the best of forty short timings is best by its luck too."""
    if quick:
        return (
            Stage(rounds=1, steps=1, most=registries),
            Stage(rounds=2, steps=2, most=FINALISTS),
        )
    return (
        Stage(rounds=2, steps=2, most=registries),
        Stage(rounds=5, steps=3, most=-(-registries // 2)),
        Stage(rounds=10, steps=6, most=FINALISTS),
    )


Ratios = dict[str, float]
"""How many times as fast as what is advised each registry is."""


def fastest(ratios: Ratios, most: int) -> list[str]:
    """So many registries, the fastest first."""
    return sorted(ratios, key=ratios.__getitem__, reverse=True)[:most]


def search(
    names: Sequence[str],
    stages: Sequence[Stage],
    found: list[Ratios],
    timed: Callable[[Sequence[str], Stage], Ratios],
    going_on: Callable[[Collection[str]], None],
    until: Callable[[], bool],
) -> bool:
    """Take the registries through all stages, unless it is `until` before; whether it came to the
    end. `found` has the ratios of each stage, of those of an earlier search too; `timed` gives
    those of some registries, without any that cannot be; `going_on` hears which are still in it.
    """
    for number, stage in enumerate(stages):
        if number == len(found):
            found.append({})
        own, last = found[number], number == len(stages) - 1
        there = names if not number else fastest(found[number - 1], stage.most)
        at_once = len(there) if last else AT_ONCE  # finalists are told from each other
        left = [name for name in there if name not in own]
        while left:
            if until():
                return False
            some, left = left[:at_once], left[at_once:]
            own |= timed(some, stage)
            most = len(own) if last else stages[number + 1].most
            going_on({*fastest(own, most), *left})
    return True


def judged(
    best: str,
    anew: Callable[[Sequence[str]], None],
    timed: Callable[[Sequence[str]], Sequence[Sequence[float]]],
) -> list[float]:
    """How many times as fast as what is advised the best is, each time that the two are assembled
    `anew`, in either order, by rounds of their own.

    The rounds that chose it of several are best by their luck too. And of two sides of one registry
    one may be the faster for as long as they stand, so that one assembly tells little, however many
    rounds it has.
    """
    ratios = []
    for order in ((ADVISED, best), (best, ADVISED)) * ASSEMBLED:
        anew(order)
        own, other = timed((ADVISED, best))
        ratios.append(statistics.median(a / b for a, b in zip(own, other, strict=True)))
    return ratios


def regrets(
    settings: Sequence[Setting],
    *,
    samples: int,
    quick: bool = False,
    most: int | None = None,
    kept: Path | None = None,
    seconds: float = math.inf,
) -> Iterator[Figure]:
    """Of each setting, and their median; `most` registries of the search.

    Regret is against the best of the finalists, in rounds that did not choose it. In the folder
    `kept` a setting has its table, its topology, what is advised and what was timed: a later run
    goes on from there. After so many seconds, of which each setting has its share, no registries
    are begun any more, and a setting that has some left has no figure.
    """
    end = time.monotonic() + seconds
    if missing := available():
        print(f"no emulated cluster, so no regret: it needs {missing}", file=sys.stderr)
        return
    found = []
    for place, setting in enumerate(settings):
        now = time.monotonic()
        until = now + (end - now) / (len(settings) - place)
        with (
            tempfile.TemporaryDirectory(prefix="recd-bench-") as temporary,
            Network(N_NODES, setting.mbit) as network,
            ClusterRanks(network, RANKS_PER_NODE) as ranks,
        ):
            number = SETTINGS.index(setting)
            folder = Path(temporary) if kept is None else kept.resolve() / f"setting{number}"
            folder.mkdir(parents=True, exist_ok=True)
            figure = _Search(setting, folder, ranks, samples, quick, most).figure(until)
        if figure is None:
            continue
        print(f"{figure.name}: {figure.value:.1%}; {figure.note}", file=sys.stderr, flush=True)
        found.append(figure.value)
        yield figure
    if len(found) < len(settings):
        return
    yield Figure(
        name="regret, the median of the settings",
        value=statistics.median(found),
        unit="share",
        target=MEDIAN,
        at_most=True,
    )


def begun(folder: Path, sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a search of these sizes has kept in a folder before; `CapabilityError` where it was one
    of others, whose ratios are of other rounds or of another table."""
    file = folder / STAGES
    if file.exists():
        done: dict[str, Any] = json.loads(file.read_text())
        if (before := done.get("sizes")) != sizes:
            raise CapabilityError(
                f"{file} is of a search with {before or 'sizes that it does not say'}, but this "
                f"one has {dict(sizes)}: their ratios cannot stand side by side. Give --folder "
                "another folder, or run it as that one was."
            )
        return done
    if (old := folder / "timed.json").exists():
        words = f"{old} is of an older search, without stages: this one is begun anew"
        print(words, file=sys.stderr, flush=True)
    return None


class _Search:
    """The search of a setting, and what of it is in its folder."""

    def __init__(
        self,
        setting: Setting,
        folder: Path,
        ranks: ClusterRanks,
        samples: int,
        quick: bool,
        most: int | None,
    ) -> None:
        self._setting, self._ranks, self._file = setting, ranks, folder / STAGES
        sizes = {"samples": samples, "quick": quick, "most": most}
        before = begun(folder, sizes)
        topology = folder / "topology.yaml"
        if not topology.exists():
            save_topology(ranks.run(measured_topology, RANKS_PER_NODE)[0], topology)
        base = setting.registry(folder / "data", topology, samples)
        self._done: dict[str, Any] = before or {}
        if before is None:
            goal, here = AdviceGoal(budget_gb=BUDGET_GB), ranks.world_size
            advice = advise(Registry.load(base), goal, ranks_here=here, with_what_ifs=False)
            advised = {"advised": list(advice.walk.kept), "registry": advice.values}
            self._done = {"sizes": sizes, **advised, "refused": {}, "stages": []}
            self._save()
        every = list(searched(base).items())[:most]
        self._values = {name: one for name, one in every if one != self._done["registry"]}
        self._values[ADVISED] = self._done["registry"]
        self._stages = stages_of(len(self._values) - 1, quick)
        self._held: set[str] = set()
        """The sides that ranks hold, assembled."""

    def figure(self, until: float) -> Figure | None:
        """None where some registries are left for a later run."""
        stages: list[Ratios] = self._done["stages"]
        refused = self._done["refused"]
        names = [name for name in self._values if name != ADVISED and name not in refused]
        rest = self._timed, self._going_on, lambda: time.monotonic() > until
        if not search(names, self._stages, stages, *rest):
            words = f"{self._setting.name}: registries are left: run it again, with --folder"
            print(words, file=sys.stderr, flush=True)
            return None
        again = stages[-1]
        best = max(again, key=again.__getitem__, default="")
        ahead, last = again.get(best, 1.0), self._stages[-1]
        if "judged" not in self._done:
            timed = partial(self._in_turns, stage=last)
            self._done["judged"] = judged(best, self._anew, timed) if ahead > 1 else [1.0]
            self._save()
        ratios: list[float] = self._done["judged"]
        ratio = statistics.geometric_mean(ratios)
        how = "what was advised"
        if ahead > 1:
            how = (
                f"{best}, {ahead:.3f} times as fast as what was advised in the last of these, and "
                f"{ratio:.3f} times in {last.rounds} rounds of the two alone each time that they "
                f"were assembled anew: {', '.join(f'{one:.3f}' for one in ratios)}"
            )
        base_ratio = stages[0].get("in time, own", 1.0)
        return Figure(
            name=f"regret: {self._setting.name}",
            value=max(0.0, ratio - 1),
            unit="share",
            target=EACH,
            at_most=True,
            spread=spread(ratios),
            note=f"advised: {', '.join(self._done['advised']) or 'nothing'}; "
            f"{1 / base_ratio:.2f}x as fast as TorchRec's own plan; "
            f"{', '.join(f'{len(found)} registries' for found in stages)} took "
            f"{', '.join(f'{one.rounds} rounds of {one.steps} steps' for one in self._stages)}; "
            f"best of {len(stages[0])}: {how}",
        )

    def _anew(self, order: Sequence[str]) -> None:
        """Have ranks give up all sides, and assemble these, in their order."""
        self._ranks.run(drop_sides, sorted(self._held))
        self._held.clear()
        self._ranks.run(assemble_sides, {name: self._values[name] for name in order}, limit=LIMIT)
        self._held |= {*order}

    def _in_turns(self, names: Sequence[str], stage: Stage) -> list[list[float]]:
        found: list[list[float]] = self._ranks.run(
            time_sides, names, stage.rounds, stage.steps, limit=LIMIT
        )[0]
        return found

    def _timed(self, some: Sequence[str], stage: Stage) -> Ratios:
        there = self._assembled(some)
        own, *each = self._in_turns([ADVISED, *there], stage)
        return {
            name: statistics.median(a / b for a, b in zip(own, one, strict=True))
            for name, one in zip(there, each, strict=True)
        }

    def _assembled(self, names: Sequence[str]) -> list[str]:
        """Those that can be: TorchRec offers not every sharding for every table."""
        new = [name for name in (ADVISED, *names) if name not in self._held]
        values = {name: self._values[name] for name in new}
        for one in values.values():
            load(one).prepare()  # here, so that ranks find tables that are written
        refused: dict[str, str] = self._ranks.run(assemble_sides, values, limit=LIMIT)[0]
        if ADVISED in refused:
            raise CapabilityError(f"{self._setting.name}: {refused[ADVISED]}")
        for name, why in refused.items():
            print(f"{name}: not tried: {why}", file=sys.stderr)
        self._done["refused"] |= refused
        self._held |= {*new} - {*refused}
        return [name for name in names if name not in refused]

    def _going_on(self, names: Collection[str]) -> None:
        """Have ranks give up the others, and keep what was timed."""
        gone = self._held - {*names, ADVISED}
        peaks = self._ranks.run(drop_sides, sorted(gone))
        self._held -= gone
        self._save()
        timed = [len(one) for one in self._done["stages"]]
        words = f"{self._setting.name}: timed by stage: {timed}; {len(self._held)} are held, "
        print(f"{words}{max(peaks):.1f} GB a rank", file=sys.stderr, flush=True)

    def _save(self) -> None:
        write_whole(self._file, json.dumps(self._done, indent=1))
