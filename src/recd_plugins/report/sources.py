"""Reads what can be drawn: folders of runs, and files that commands printed with `--json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recd_plugins.errors import DataError
from recd_plugins.trainer.measure.run_log import RunLog, read_run

__all__ = ["KINDS", "Printed", "Sources", "begun", "named_path", "names_of", "read_sources"]

KINDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "plan": (("plan", "tiers"), "recd plan"),
    "advice": (("objective", "baseline", "additions"), "recd advise"),
    "stats": (("stats",), "recd data stats"),
    "cache curve": (("by_cache", "by_batch", "optimum"), "recd scars curve"),
}
"""The kinds of files: the keys by which each is recognised, and the command that prints it."""


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What a command printed with `--json`."""

    name: str
    kind: str
    """One of `KINDS`."""
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """All that a page shows."""

    runs: Sequence[RunLog] = ()
    printed: Sequence[Printed] = ()

    @property
    def title(self) -> str:
        runs, printed = ([one.name for one in every] for every in (self.runs, self.printed))
        *others, last = [*runs, *printed]
        return f"{', '.join(others)} and {last}" if others else last

    def inks(self) -> Iterator[tuple[RunLog, str]]:
        """Each run with its ink; among several runs the first is the one to compare with."""
        inks = ("blue",) if len(self.runs) == 1 else ("slate", "blue", "orange", "green", "purple")
        for number, run in enumerate(self.runs):
            yield run, inks[number % len(inks)]

    def legend(self) -> list[tuple[str, str]]:
        """The name and ink of each run, if there are several; else empty."""
        return [(run.name, ink) for run, ink in self.inks()] if len(self.runs) > 1 else []

    def of(self, kind: str) -> Iterator[Printed]:
        return (one for one in self.printed if one.kind == kind)

    def plans(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The plans with tiers, of runs and of files."""
        for run in self.runs:
            if run.plan.get("tiers"):
                yield run.name, run.plan["tiers"]
        for one in self.of("plan"):
            if one.values["tiers"]:
                yield one.name, one.values["tiers"]


def read_sources(named: Sequence[str]) -> Sources:
    """The sources that are named: each is a path, or NAME=path, of a run's folder or a file."""
    runs, printed = [], []
    for one, name in zip(named, names_of(named), strict=True):
        path, _ = named_path(one)
        if path.is_file():
            printed.append(_printed(path, name))
        else:
            runs.append(read_run(path, name))
    return Sources(runs=runs, printed=printed)


def names_of(named: Sequence[str]) -> list[str]:
    """The name of each: the given one, or else that of its folder or file, or its path if another
    has the same name. `DataError` if two still have the same name."""
    asked = [named_path(one) for one in named]
    names = [name or _own_name(path) for path, name in asked]
    often = {name for name, count in Counter(names).items() if count > 1}
    names = [
        str(path) if given is None and name in often else name
        for name, (path, given) in zip(names, asked, strict=True)
    ]
    for name, count in Counter(names).items():
        if count > 1:
            raise DataError(
                f"{name}: is the name of {count} of them. Give each a name of its own: "
                "plain=runs/latest.1 RecD=runs/latest."
            )
    return names


def _own_name(path: Path) -> str:
    return path.stem if path.is_file() else path.name or path.resolve().name  # "." has none


def begun(named: Sequence[str]) -> list[str]:
    """The ones that can be read: files, and folders in which a run has written metrics."""
    paths = ((one, named_path(one)[0]) for one in named)
    return [one for one, path in paths if path.is_file() or (path / "metrics.jsonl").exists()]


def named_path(named: str) -> tuple[Path, str | None]:
    """The path and the name of `NAME=path`; the name is None for a plain path, and an existing path
    may contain a =."""
    name, equals, path = named.partition("=")
    if equals and not Path(named).exists():
        return Path(path), name
    return Path(named), None


def _printed(path: Path, name: str) -> Printed:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        kind = next(kind for kind, (keys, _) in KINDS.items() if set(keys) <= set(values))
        if kind == "stats" and not all(isinstance(one, dict) for one in values["stats"].values()):
            raise ValueError("what a measure finds is a mapping")
    except (ValueError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        commands = ", ".join(f"`{command} --json`" for _, command in KINDS.values())
        if (path.parent / "metrics.jsonl").exists():
            raise DataError(
                f"{path}: is a file of a run. Name the run's folder, {path.parent}."
            ) from error
        cut = isinstance(error, ValueError) and path.suffix == ".json"
        raise DataError(
            f"{path}: is neither a run's folder nor what a command printed"
            f"{f', since it is no whole JSON ({error})' if cut else ''}. Name a folder as "
            f"runs/latest, or a file with what {commands} printed."
        ) from error
    return Printed(name=name, kind=kind, values=values)
