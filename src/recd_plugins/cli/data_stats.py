"""`recd data stats`: what is measured of a table."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.loaded import opened_table, registry_schema
from recd_plugins.cli.options import (
    REGISTRY,
    AsJson,
    Debug,
    RegistryFile,
    TableFolder,
    location_argument,
)
from recd_plugins.cli.output_paths import DPI, check_writable
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported

if TYPE_CHECKING:
    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.data.stats_report import StatsReport, StatsTable
    from recd_plugins.data.table import Table
    from recd_plugins.registry import Choice
    from recd_plugins.stack import Stack
    from recd_plugins.storage.uri import Location

__all__ = ["stats"]

MANY = 1 << 62
"""Ids among which hashes hardly ever meet."""

SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="What the columns mean, as `recd data schema` writes it; by default what the table "
        "says, or the registry.",
        metavar="FILE",
        show_default=False,
        parser=location_argument,
    ),
]
Figures = Annotated[
    Path | None, typer.Option("--figures", help="A folder for what can be drawn, as PNG files.")
]


def stats(
    table: TableFolder,
    registry: RegistryFile = REGISTRY,
    schema: SchemaFile = None,
    figures: Figures = None,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Measure a table: by the registry's `stats`, or else by all measures that its plugins have.

    Without a registry, or if its plugins have no measure, it takes all measures that installed
    plugins have. If no schema says what the columns mean, it takes the one that `recd data schema`
    would suggest.
    """
    with reported(debug), ended_by_signals():
        from recd_plugins.registry.table_stats import drawn
        from recd_plugins.trainer.run_report import defined

        check_writable(figures and figures / "any.png", "--figures")
        stack = _measuring(registry)
        opened = _opened(table, registry, schema)
        reports: list[_Findings] = []
        try:
            reports += _found(stack, opened)
        finally:  # what is found is found, be it that a later measure fails
            for part in (part for one in reports if not as_json for part in one.report.tables):
                _print(part)
        with redirect_stdout(sys.stderr):
            saved = [
                str(drawn(one.choice, figure, draw, figures / f"{one.name}-{figure}.png", DPI))
                for one in reports
                for figure, draw in one.report.figures.items()
                if figures is not None
            ]
        if as_json:
            found = {one.name: defined(one.report.values) for one in reports}
            print(json.dumps({"path": str(table), "stats": found, "figures": saved}))
            return
        for path in saved:
            print(path)


def _measuring(registry: Path) -> Stack:
    """The registry's stack; if it names no `stats` and its plugins have no measure, one with all
    installed plugins that have any."""
    from recd_plugins.errors import RegistryError
    from recd_plugins.hooks.catalog import Catalog
    from recd_plugins.hooks.imported import available
    from recd_plugins.stack import load

    folder = Path(tempfile.gettempdir())
    if registry != REGISTRY or registry.exists():
        stack = load(registry)
        if "stats" in stack.registry.choices or stack.registry.chosen_or_all("stats")[0]:
            return stack
        if silent := stack.registry.catalog.silent_hooks("stats"):
            raise RegistryError(f"{registry}: {silent} Otherwise others measure in its place.")
        folder = stack.registry.folder
    claims = Catalog([*available()], Path(), strict=False).of("stats")
    plugins = list(dict.fromkeys(claim.provider.plugin for claim in claims))
    return load({"plugins": plugins, "folder": str(folder)})


def _opened(path: Location, registry: Path, given: Location | None) -> Table:
    """The table, by the schema that is given, or its own, or the registry's, or a suggested one."""
    from recd_plugins.data.importing.schema_file import load_schema
    from recd_plugins.data.table import Table, carries_schema

    if given is not None:
        return Table.open(path, _comparable(load_schema(given)))
    if carries_schema(path) or registry_schema(registry) is not None:
        return opened_table(path, registry)
    print(
        "no schema says what the columns mean, so they are what `recd data schema` takes them for; "
        "--schema FILE says otherwise",
        file=sys.stderr,
    )
    return Table.open(path, _suggested(path))


def _comparable(schema: ForeignSchema) -> ForeignSchema:
    """The same table, with rows in which equal ids can be recognised even if there is no
    vocabulary yet."""
    sparse = (
        dataclasses.replace(one, ids="hash", num_ids=MANY)
        if one.ids == "vocabulary" and one.vocabulary is None
        else one
        for one in schema.sparse
    )
    return dataclasses.replace(schema, sparse=tuple(sparse)).keeping_all


def _suggested(path: Location) -> ForeignSchema:
    """The schema that a survey suggests for files that are read in place: its session, time and
    ids."""
    from recd_plugins.config import parse
    from recd_plugins.data.files.found import found_files
    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.data.importing.proposing.proposal import propose
    from recd_plugins.data.importing.surveying.survey import survey
    from recd_plugins.data.importing.table_files import formats_of
    from recd_plugins.data.schema import Fill, Label
    from recd_plugins.errors import DataError, listed

    files = []
    for one in formats_of(found_files(path)):
        if isinstance(one, DataError):
            raise one
        roots = tuple(dict.fromkeys(map(one.root, one.names)))
        files.append(dataclasses.replace(one, names=roots, nested={}))
    found = survey(files)
    schema = parse(ForeignSchema, propose(found).schema, "schema")
    if other := [one.name for one in found.columns if one.seems == "unknown"]:
        print(f"not measured, as no list of ids: {', '.join(other)}", file=sys.stderr)
    schema = schema.having([one.name for one in schema.sparse])
    # A table need not be for training: any number will do for its label.
    free = {column.name for column in found.columns} - {one.name for one in schema.sparse}
    numbers = ("integers", "numbers", "booleans")
    each = [one for one in found.columns if one.name in free and one.seems in numbers]
    names = [one.name for one in each if not one.is_list]
    label = schema.label if schema.label in free else next(iter(names), None)
    if label is None:
        raise DataError(
            f"{path}: beside ids it has no column of numbers, which could be a label, among "
            f"{listed([one.name for one in found.columns], kind='column')}. Repetition is measured "
            "within sessions of a table with a label: measure what `recd data import` makes of it, "
            "which draws labels where each row is a click (--negatives 4), by a schema that says "
            "of which session a row is."
        )
    stand_in = Label(name=label, kind="regression", nulls=Fill(value=0))
    schema = dataclasses.replace(schema, label=label, labels=(stand_in,))
    hashed = (
        one if one.ids == "as_is" else dataclasses.replace(one, ids="hash", num_ids=MANY)
        for one in schema.sparse
    )
    return dataclasses.replace(schema, sparse=tuple(hashed)).keeping_all


class _Findings(NamedTuple):
    """The findings of a measure."""

    name: str
    choice: Choice
    report: StatsReport


def _found(stack: Stack, table: Table) -> Iterator[_Findings]:
    """The findings of each measure, numbered where registry.yaml asks for one twice: sessions,
    sessions-2."""
    seen: Counter[str] = Counter()
    with progress() as show:
        for choice, report in stack.stats(table, show):
            name = choice.record.name
            seen[name] += 1
            yield _Findings(name if seen[name] == 1 else f"{name}-{seen[name]}", choice, report)


def _print(part: StatsTable) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as Drawn

    from recd_plugins.cli.printed_tables import print_table

    drawn = Drawn(box=SIMPLE)
    for index, column in enumerate(part.columns):
        numbers = all(row[index][:1].isdigit() for row in part.rows)
        drawn.add_column(column, justify="right" if numbers else "left")
    for row in part.rows:
        drawn.add_row(*row)
    console = Console(highlight=False, markup=False)
    console.print(part.title)
    if part.rows:
        print_table(drawn, console)
    for note in part.notes:
        console.print(f"  {note}")
    console.print()
