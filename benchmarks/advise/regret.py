"""The advice against a search: how much slower it is than the best of all registries tried."""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.cluster.network import Network, available
from benchmarks.cluster.ranks import ClusterRanks
from benchmarks.flexshard.steps import topology as measured_topology
from benchmarks.harness import Figure
from recd_plugins.advise.advice import advise
from recd_plugins.advise.trial_rank import in_turns
from recd_plugins.advise.walk import AdviceGoal
from recd_plugins.errors import RecdError
from recd_plugins.planning.topology import save_topology
from recd_plugins.registry import Registry
from recd_plugins.stack import load
from recd_plugins.storage.whole_file import write_whole

__all__ = ["SETTINGS", "Setting", "regrets", "searched"]

EACH, MEDIAN = 0.07, 0.03
N_NODES, RANKS_PER_NODE = 2, 2
BUDGET_GB = 0.02
AT_ONCE = 6
"""Registries that train side by side, with what is advised among them."""
FINALISTS, MORE_ROUNDS = AT_ONCE - 1, 4
"""The registries that were fastest, and how many times the rounds they are timed once more: the
best of forty single timings is best by its luck too."""
LIMIT = 3600.0


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


def searched(setting: Setting, base: dict[str, Any]) -> dict[str, dict[str, Any]]:
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


def regrets(
    settings: Sequence[Setting],
    *,
    samples: int,
    rounds: int,
    steps: int,
    most: int | None = None,
    kept: Path | None = None,
    seconds: float = math.inf,
) -> Iterator[Figure]:
    """Of each setting, and their median; `most` registries of the search.

    The fastest are timed once more at the end, and regret is against the best of these. In the
    folder `kept` a setting has its table, its topology, what is advised and what was timed: a later
    run goes on from there. After so many seconds, of which each setting has its share, no
    registries are begun any more, and a setting that has some left has no figure.
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
            figure = _regret(setting, folder, ranks, samples, rounds, steps, most, until)
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


def _regret(
    setting: Setting,
    folder: Path,
    ranks: ClusterRanks,
    samples: int,
    rounds: int,
    steps: int,
    most: int | None,
    until: float,
) -> Figure | None:
    topology, timed = folder / "topology.yaml", folder / "timed.json"
    if not topology.exists():
        save_topology(ranks.run(measured_topology, RANKS_PER_NODE)[0], topology)
    base = setting.registry(folder / "data", topology, samples)
    others = dict(list(searched(setting, base).items())[:most])
    if timed.exists():
        done = json.loads(timed.read_text())
    else:
        goal = AdviceGoal(budget_gb=BUDGET_GB)
        advice = advise(Registry.load(base), goal, ranks_here=ranks.world_size, with_what_ifs=False)
        mine = advice.values
        there = [one for one, values in others.items() if values != mine and _can_be(one, values)]
        kept = list(advice.walk.kept)
        done = {"advised": kept, "registry": mine, "names": there, "ratios": {}}
        write_whole(timed, json.dumps(done, indent=1))
    mine, ratios = done["registry"], done["ratios"]

    def faster(some: Sequence[str], rounds: int) -> dict[str, float]:
        """How many times as fast as what is advised each is."""
        sides = [mine, *(others[name] for name in some)]
        for values in sides:
            load(values).prepare()
        own, *each = ranks.run(_on_rank, sides, rounds, steps, limit=LIMIT)[0]
        return {
            name: statistics.median(a / b for a, b in zip(own, one, strict=True))
            for name, one in zip(some, each, strict=True)
        }

    names = [name for name in done["names"] if name not in ratios]
    for start in range(0, len(names), AT_ONCE - 1):
        if time.monotonic() > until:
            break
        ratios |= faster(names[start : start + AT_ONCE - 1], rounds)
        write_whole(timed, json.dumps(done, indent=1))
        words = f"{setting.name}: {len(ratios)} of {len(done['names'])} registries timed"
        print(words, file=sys.stderr, flush=True)
    if left := [name for name in done["names"] if name not in ratios]:
        words = f"{setting.name}: {len(left)} registries are left: run it again, with --folder"
        print(words, file=sys.stderr, flush=True)
        return None
    if "again" not in done:
        fastest = sorted(ratios, key=ratios.__getitem__, reverse=True)[:FINALISTS]
        done["again"] = faster(fastest, MORE_ROUNDS * rounds)
        write_whole(timed, json.dumps(done, indent=1))
    again = done["again"]
    best = max(again, key=again.__getitem__, default="")
    best_ratio = max(1.0, again.get(best, 1.0))
    base_ratio = ratios.get("in time, own", 1.0)
    return Figure(
        name=f"regret: {setting.name}",
        value=best_ratio - 1,
        unit="share",
        target=EACH,
        at_most=True,
        note=f"advised: {', '.join(done['advised']) or 'nothing'}; {1 / base_ratio:.2f}x as fast "
        f"as TorchRec's own plan; best of {len(others)}: "
        f"{best if best_ratio > 1 else 'what was advised'}",
    )


def _can_be(name: str, values: dict[str, Any]) -> bool:
    """Whether there is such a plan: TorchRec offers not every sharding for every table."""
    stack = load(values)
    try:
        stack.planned_for(stack.adapt(stack.model()), stack.registry.train.ranks)
    except RecdError as error:
        print(f"{name}: not tried: {error}", file=sys.stderr)
        return False
    return True


def _on_rank(sides: Sequence[dict[str, Any]], rounds: int, steps: int) -> list[list[float]]:
    return in_turns([load(values) for values in sides], torch.device("cpu"), rounds, steps)
