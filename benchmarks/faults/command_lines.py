"""Odd command lines: each option and argument of each command with each odd value."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import typer

from benchmarks.faults.cases import Breach, Case, Kind, breaches_of
from benchmarks.faults.jobs import furnish
from benchmarks.faults.odd_values import ODD_TEXTS
from benchmarks.faults.programs import Place, contents
from benchmarks.faults.registries import at_work

__all__ = ["COMMAND_LINES"]

LIMIT = 60.0

ARGUMENTS: dict[str, dict[str, str]] = {
    "init": {"table": "table"},
    "advise": {"--table": "table", "--out": "advised.yaml"},
    "report": {"runs": "runs/job"},
    "reshard": {"source": "runs/job", "target": "resharded", "--ranks": "2"},
    "plugins new": {"name": "mine"},
    "plugins show": {"name": "random"},
    "data schema": {"paths": "rows.csv"},
    "data check": {"paths": "rows.csv", "--schema": "schema.yaml"},
    "data import": {"paths": "rows.csv", "table": "imported", "--schema": "schema.yaml"},
    "data vocabulary": {"paths": "rows.csv", "--column": "item", "--save": "items.parquet"},
    "data layout": {"table": "table/train", "--column": "item"},
    "data rewrite": {
        "table": "table/train",
        "target": "rewritten",
        "--read-log": "read.log",
        "--days": "99999",
    },
    "data stats": {"table": "table/train"},
    "data show": {"table": "table/train"},
    "tune loss": {"--samples": "64", "--batch-size": "32", "--budget": "1"},
    "tune batch": {"--budget": "1", "--steps": "1"},
    "topology measure": {"--ranks": "1", "--rounds": "1"},
    "data profile": {"--batches": "2"},
}
"""What a command is given where it is not odd."""


def draw(generator: random.Random) -> Iterator[Case]:
    every = [
        (command, parameter, value)
        for command, parameters in _commands()
        for parameter in parameters
        for value in ODD_TEXTS
    ]
    generator.shuffle(every)
    for command, parameter, value in every:
        yield _case(command, parameter, value)


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Each command's path, and the names of what takes a value."""
    from recd_plugins.cli.main import app

    yield from _below(typer.main.get_command(app), ())


def _below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    if hasattr(command, "_load"):  # a plugin's, which is imported once it is called
        command = command._load()
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            yield from _below(one, (*path, name))
        return
    valued = [one for one in command.params if not getattr(one, "is_flag", False)]
    yield " ".join(path), [one.opts[0] for one in valued]


def _case(command: str, parameter: str, value: str) -> Case:
    given = ARGUMENTS.get(command, {}) | {parameter: value}
    options = [text for name, one in given.items() if name.startswith("-") for text in (name, one)]
    positions = [one for name, one in given.items() if not name.startswith("-")]
    arguments = [*command.split(), *options, *positions]

    def run(place: Place) -> Iterator[Breach]:
        furnish(place)
        before = contents(place.folder)
        ended = place.recd(*arguments, limit=LIMIT)
        if at_work(ended, place):
            return
        yield from breaches_of(ended, codes=(0, 1, 2))
        after = contents(place.folder)
        changed = [path for path, digest in before.items() if after.get(path) != digest]
        if changed and ended.code != 0:
            yield Breach("silent change", f"what was refused changed {', '.join(changed[:3])}")

    return Case(what=f"recd {' '.join(arguments)}", run=run)


COMMAND_LINES = Kind(name="command-lines", draw=draw, quick=60, full=900)
