"""Figures over time: what a suite printed, with its conditions, in dated files in `results/`."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "KeptFigure", "KeptResult", "histories", "keep", "kept_results", "noise"]

RESULTS = Path(__file__).parent / "results"
UNKNOWN_NOISE = 0.1
"""How much a figure without a spread may move."""
MAKERS = re.compile(r"\((R|TM)\)| Processor$")
"""The parts of a processor's name that say nothing."""
LESS_IS_BETTER = re.compile(r"^(s|ms|us|ns|MB|GB|MiB|GiB|KiB|bytes|NE)\b|the time")


@dataclass(frozen=True, kw_only=True)
class KeptResult:
    """One run of a suite."""

    suite: str
    """Its name in SUITES: a module and its arguments."""
    date: str
    """Year, month and day."""
    commit: str
    """The commit that was measured, with a + if files differed from it."""
    conditions: Mapping[str, Any]
    figures: Sequence[Mapping[str, Any]]

    @property
    def quick(self) -> bool:
        return bool(self.conditions["settings"].get("quick"))

    @property
    def processor(self) -> str:
        """The kind of machine: figures from two kinds do not show what changed between them."""
        machine, device = self.conditions["machine"], self.conditions["settings"].get("device")
        kind = f"{re.sub(MAKERS, '', machine['cpu'])}, {machine['cores']} cores"
        named = isinstance(device, Mapping) and device.get("name")
        return f"{named}, {kind}" if named else kind

    def write(self, folder: Path = RESULTS, over: Path | None = None) -> Path:
        """Write the run's own file, and return its path. Nothing is ever overwritten except `over`,
        an earlier state of this run."""
        stem = "-".join(
            (self.suite.replace(" ", "_"), self.date, self.commit, *(["quick"] * self.quick))
        )
        numbers = iter(range(2, 1000))
        path = over or folder / f"{stem}.json"
        while path != over and path.exists():
            path = folder / f"{stem}-{next(numbers)}.json"
        folder.mkdir(exist_ok=True)
        path.write_text(
            json.dumps(
                {
                    "suite": self.suite,
                    "date": self.date,
                    "commit": self.commit,
                    "conditions": self.conditions,
                    "figures": list(self.figures),
                },
                indent=1,
            )
            + "\n"
        )
        return path


def keep(
    suite: str,
    conditions: Mapping[str, Any],
    figures: Sequence[Mapping[str, Any]],
    over: Path | None = None,
) -> Path:
    """Keep what a suite has just measured, and with which commit. `over` is the file that it kept
    earlier in this run."""
    now = datetime.datetime.now(datetime.UTC)
    return KeptResult(
        suite=suite,
        date=f"{now:%Y-%m-%d}",
        commit=_commit(),
        conditions={"time": f"{now:%H:%M}", **conditions},
        figures=figures,
    ).write(over=over)


def _commit() -> str:
    head = _git("rev-parse", "--short=9", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "plugins")
    return head + "+" * bool(changed)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def kept_results(folder: Path = RESULTS) -> list[KeptResult]:
    """All kept results, the oldest first."""
    found = [KeptResult(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda one: (one.date, one.conditions.get("time", "")))


@dataclass(frozen=True, kw_only=True)
class KeptFigure:
    """A figure of one run, and the run."""

    values: Mapping[str, Any]
    of: KeptResult

    @property
    def name(self) -> str:
        return str(self.values["name"])

    @property
    def value(self) -> float:
        return float(self.values["value"])

    @property
    def shown(self) -> str:
        unit = self.values["unit"]
        joined = "" if unit.startswith(("x", "%")) else " "
        return f"{_rounded(self.value)}{joined}{unit}"

    @property
    def target(self) -> str:
        target = self.values["target"]
        if target is None:
            return ""
        return f"{'≤' if self.values['at_most'] else '≥'} {_rounded(target)}"

    @property
    def limit(self) -> Mapping[str, Any] | None:
        """The limit's `value`, and what it is `of`; None without a limit, as in old files."""
        limit: Mapping[str, Any] | None = self.values.get("limit")
        return limit

    @property
    def shown_limit(self) -> str:
        return "" if self.limit is None else _rounded(self.limit["value"])

    @property
    def share(self) -> str:
        """The share of its limit that the figure reaches; empty if there is none."""
        share = self.values.get("share")
        return "" if share is None else f"{share:.0%}"

    @property
    def met(self) -> bool | None:
        met: bool | None = self.values["met"]
        return met

    @property
    def less_is_better(self) -> bool:
        if self.values["target"] is not None:
            return bool(self.values["at_most"])
        return LESS_IS_BETTER.search(self.values["unit"]) is not None


def histories(results: Sequence[KeptResult], quick: bool) -> Iterator[list[KeptFigure]]:
    """Each figure of a suite's runs, the oldest first, in the order of the newest run."""
    found: dict[str, list[KeptFigure]] = {}
    for result in reversed([one for one in results if one.quick == quick]):
        for values in result.figures:
            found.setdefault(values["name"], []).insert(0, KeptFigure(values=values, of=result))
    yield from found.values()


def noise(before: KeptFigure, after: KeptFigure) -> float:
    """How much a figure moves between two runs of the same code: the larger interquartile range of
    its rounds, as a share."""
    spreads = [one.values["spread"] for one in (before, after)]
    known = [one for one in spreads if one is not None]
    return max(known) if known else UNKNOWN_NOISE


def _rounded(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.3g}"
