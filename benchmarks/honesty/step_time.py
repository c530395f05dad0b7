"""Steps as `dedup: {groups: auto}` chose them, against plain steps and the best of a search.

    python -m benchmarks.honesty.step_time [--quick] [--json] [--only MODEL]

There are twenty tables, with sessions of one to thirty samples, clustered or in the order of time,
with rows shuffled one by one or by session. On each table a small model, which weighs the history
by target attention, and one like RM1 are trained. All sides train on the same table, read in the
same way, on two gloo ranks that take turns of some steps, reading included. No choice may be slower
than no deduplication. The lowest of forty short timings is partly low by chance; so a case that
seems to miss a promise is timed again for longer, and the longer timing counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from benchmarks import models
from benchmarks.harness import Figure, Report, main, spread
from recd_dlrm.datasets.sessions.dataset import default_features
from recd_plugins.slots import Loader
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.assemble import assemble

__all__ = ["MODELS", "TABLES", "Case", "OddTable", "measure", "on_rank", "registry", "timed"]

RANKS = 2
NEVER_BELOW = 0.98
WORTH_FINDING, FOUND = 1.5, 1.3
"""If the search finds a gain of at least the first, the median of the choices must have at least
the second."""
LONGER, AGAIN = 5, 20.0
"""How long a case is timed again: how many times its rounds, and the least seconds."""
DEADLINE = 900.0
SEED = 0

Read = Literal["whole", "split", "in time"]
"""Clustered and read by session; clustered and shuffled row by row; in the order of time and
shuffled row by row."""


@dataclass(frozen=True, kw_only=True)
class OddTable:
    """The properties in which the tables differ."""

    samples_per_session: float
    read: Read
    stay: float = 0.95
    """The probability that a user feature stays unchanged from sample to sample of a session."""
    length: float = 1.0
    """The factor of the models' own lengths."""

    @property
    def name(self) -> str:
        return f"S {self.samples_per_session:g}, {self.read}, d {self.stay}, l x{self.length:g}"


TABLES = (
    *(OddTable(samples_per_session=s, read="whole") for s in (1.0, 2.0, 3.0, 4.0, 8.0, 16.0, 30.0)),
    *(OddTable(samples_per_session=s, read="split") for s in (2.0, 8.0, 30.0)),
    *(OddTable(samples_per_session=s, read="in time") for s in (1.0, 4.0, 16.0)),
    *(OddTable(samples_per_session=s, read="whole", length=0.2) for s in (2.0, 8.0, 30.0)),
    *(OddTable(samples_per_session=s, read="whole", stay=0.5) for s in (4.0, 16.0)),
    *(OddTable(samples_per_session=s, read="whole", length=2.0) for s in (2.0, 8.0)),
)
MODELS = ("small", "RM1-like")
QUICK = {"small": (TABLES[3], TABLES[5]), "RM1-like": (TABLES[5],)}
"""The tables of a quick run."""
RM1_SCALE = 1 / 8
SIDES = ("plain", "auto", "all", "sequences")
"""`auto` chooses; a search tries all user features, or only sequences."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model on a table."""

    table: OddTable
    model: str
    folder: Path
    samples: int


def registry(case: Case, side: str) -> dict[str, Any]:
    """The registry of a side: sides differ only in `dedup`."""
    values = _small() if case.model == "small" else models.registry("rm1", RM1_SCALE)
    dataset = values["dataset"]
    dataset |= {"samples": case.samples, "test_fraction": 1e-3, "seed": SEED}
    dataset |= {"samples_per_session": case.table.samples_per_session, "session_sigma": 0.8}
    dataset |= {"max_samples_per_session": 500, "concurrent_sessions": 2_000}
    dataset["features"] = [_feature(one, case.table) for one in dataset["features"]]
    sequences = [one["name"] for one in dataset["features"] if one.get("sequence")]
    groups = models.groups(values)
    values["folder"] = str(case.folder)
    values |= {"etl": ["cluster_by_session"], "reader": {"use": "local", "sessions": "whole"}}
    if case.table.read != "whole":
        values["reader"] = "local"
    if case.table.read == "in time":
        del values["etl"]
    chosen = {
        "auto": "auto",
        "all": groups,
        "sequences": [group for group in groups if set(group) & set(sequences)],
    }
    values.pop("dedup", None)
    if side != "plain":
        values["dedup"] = {"use": "exact", "groups": chosen[side]}
    values["train"] = {**values["train"], "ranks": RANKS, "device": "cpu", "threads": 1}
    return values


def _small() -> dict[str, Any]:
    features = [
        {"name": one.name, "kind": one.kind, "num_ids": one.num_ids, "stay": one.stay}
        | {"length": one.length, "sequence": one.sequence, "shift": one.shift}
        | ({"group": one.group} if one.group else {})
        | ({"table": one.table} if one.table else {})
        for one in default_features()
    ]
    return {
        "plugins": ["recd_dlrm", "recd_dedup"],
        "dataset": {"use": "sessions", "dense": 8, "features": features},
        "model": {"use": "sequence_dlrm", "embedding_dim": 32, "bottom": [64], "top": [64]},
        "pooling": {"history": "attention", "history_category": "attention"},
        "train": {"batch_size": 512},
    }


def _feature(feature: Mapping[str, Any], table: OddTable) -> dict[str, Any]:
    """A user feature with the table's properties."""
    changed = dict(feature)
    if feature["kind"] == "user":
        changed["stay"] = min(float(feature["stay"]), table.stay)
        if feature.get("length", 1) > 1:
            changed["length"] = max(1.0, feature["length"] * table.length)
            if "max_length" in feature:
                changed["max_length"] = max(2, round(feature["max_length"] * table.length))
    return changed


def on_rank(registries: Mapping[str, dict[str, Any]], rounds: int, steps: int) -> dict[str, Any]:
    """On a rank, the seconds of a step with each registry in each round, in turns; the seconds that
    its processor worked; and the reason for each registry's choice."""
    trainings, why = {}, {}
    for side, values in registries.items():
        stack = load(values)
        loader = stack.loader(dist.get_rank(), dist.get_world_size())
        trainings[side] = (assemble(stack, torch.device("cpu")), _endless(loader))
        why[side] = stack.explain()
    seconds: dict[str, list[float]] = {side: [] for side in registries}
    worked: dict[str, list[float]] = {side: [] for side in registries}
    names = list(registries)
    for number in range(rounds + 1):  # the first warms up
        for side in names:
            job, batches = trainings[side]
            dist.barrier()
            begun, processor = time.perf_counter(), time.process_time()
            for _ in range(steps):
                job.pipeline.progress(batches)
            dist.barrier()
            if number:
                seconds[side].append((time.perf_counter() - begun) / steps)
                worked[side].append((time.process_time() - processor) / steps)
        names.reverse()
    return {"seconds": seconds, "worked": worked, "why": why}


def _endless(loader: Loader) -> Iterator[Any]:
    while True:
        yield from loader


class Pool(Protocol):
    """Ranks that run a function, as `GlooPool`'s."""

    def run(self, job: Callable[..., Any], /, *arguments: Any) -> list[Any]: ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a case: how many times as fast its steps are as plain steps."""

    case: Case
    auto: float
    best: float
    """The fastest of the settings that a search tries."""
    spread: float
    chose: bool
    """Whether anything is deduplicated."""
    auto_worked: float
    """The same by a rank's processor time, which depends less on other work on the machine."""
    before: float | None = None
    """`auto` by a first, shorter timing, if this outcome is of a second one."""

    @property
    def text(self) -> str:
        done = "" if self.chose else " (left as it is)"
        if self.before is not None:
            done += f" (timed again: {self.before:.2f} at first)"
        times = f"{self.auto:.2f} (processor {self.auto_worked:.2f}){done}, best {self.best:.2f}"
        return f"{self.case.model}, {self.case.table.name}: {times}"


def outcome(case: Case, found: Mapping[str, Any]) -> Outcome:
    ratios = {side: _ratios(found["seconds"], side) for side in found["seconds"]}
    medians = {side: statistics.median(each) for side, each in ratios.items()}
    return Outcome(
        case=case,
        auto=medians["auto"],
        best=max(medians.values()),
        spread=spread(ratios["auto"]),
        chose=": deduplicated " in found["why"]["auto"],
        auto_worked=statistics.median(_ratios(found["worked"], "auto")),
    )


def timed(case: Case, pool: Pool, rounds: int, steps: int, again: float = AGAIN) -> Outcome:
    """A case's outcome; if the first timing misses a promise, the outcome of a longer one, of at
    least `again` seconds."""
    sides = {side: registry(case, side) for side in SIDES}
    found = pool.run(on_rank, sides, rounds, steps)[0]
    first = outcome(case, found)
    if first.auto >= (FOUND if first.best >= WORTH_FINDING else NEVER_BELOW):
        return first
    round_of_all = steps * sum(statistics.median(each) for each in found["seconds"].values())
    more = max(LONGER * rounds, round(again / round_of_all))
    second = outcome(case, pool.run(on_rank, sides, more, steps)[0])
    return replace(second, before=first.auto)


def _ratios(seconds: Mapping[str, list[float]], side: str) -> list[float]:
    """How many times as fast a side is as plain steps, round by round."""
    return [plain / one for plain, one in zip(seconds["plain"], seconds[side], strict=True)]


def figures(outcomes: list[Outcome]) -> list[Figure]:
    worst = min(outcomes, key=lambda one: one.auto)
    taken = [one for one in outcomes if one.chose]
    least = min(taken, key=lambda one: one.auto, default=None)
    rich = [one.auto for one in outcomes if one.best >= WORTH_FINDING]
    every = "; ".join(one.text for one in outcomes)

    def against_plain(name: str, one: Outcome, more: str) -> Figure:
        return Figure(
            name=name,
            value=one.auto,
            unit="times as fast",
            baseline=1.0,
            target=NEVER_BELOW,
            spread=one.spread,
            note=f"{one.text}{more}",
        )

    what = "step time of what auto chose against plain, the least"
    made = [against_plain(what, worst, f". Each: {every}")]
    if least is not None:
        what = "the least of those where auto deduplicates anything"
        made.append(against_plain(what, least, f"; {len(taken)} of {len(outcomes)}"))
    if rich:
        made.append(
            Figure(
                name=f"the median of those where a search finds {WORTH_FINDING} times or more",
                value=statistics.median(rich),
                unit="times as fast",
                baseline=1.0,
                target=FOUND,
                note=f"{len(rich)} of {len(outcomes)}",
            )
        )
    return made


def measure(quick: bool, only: Sequence[str] = MODELS) -> Report:
    cases = [(model, table) for model in only for table in (QUICK[model] if quick else TABLES)]
    rounds, steps, samples = (2, 3, 6_144) if quick else (3, 3, 8_192)
    again = 0.0 if quick else AGAIN
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        pool = GlooPool(deadline=DEADLINE)
        for number, (model, table) in enumerate(cases):
            where = Path(folder) / f"{number}"
            case = Case(table=table, model=model, folder=where, samples=samples)
            load(registry(case, "plain")).prepare()
            outcomes.append(timed(case, pool, rounds, steps, again))
            print(outcomes[-1].text, flush=True, file=sys.stderr)
    settings = {
        "tables": f"{len({table for _, table in cases})} of generated sessions, {samples} samples",
        "models": f"small: D 32, attention on two histories; RM1-like: RM1 times {RM1_SCALE:g}",
        "ranks": f"{RANKS} gloo ranks of one thread, reading included",
        "turns": f"{rounds} of {steps} steps, {again:g} s and {LONGER} times when timed again",
        "search": ", ".join(SIDES),
    }
    return Report(figures=figures(outcomes), settings=settings, seed=SEED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", nargs=1, default=MODELS, choices=MODELS, metavar="MODEL")
    arguments, rest = parser.parse_known_args()
    chosen = partial(measure, only=arguments.only)
    main("honesty.step_time", chosen, rest, about=f"models: {', '.join(MODELS)}")
