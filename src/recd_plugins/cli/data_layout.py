"""`recd data layout`: how a table lies on disk."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recd_plugins.cli.loaded import opened_table
from recd_plugins.cli.options import (
    REGISTRY,
    AsJson,
    Debug,
    RegistryFile,
    TableFolder,
)
from recd_plugins.cli.reported import reported
from recd_plugins.errors import so_many

if TYPE_CHECKING:
    from recd_plugins.data.layout import Reading, TableLayout
    from recd_plugins.data.table import Table
    from recd_plugins.storage.uri import Location

__all__ = ["layout"]

Wanted = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="A column, or a glob, that is read; by default what the registry's reader takes of "
        "its own tables, or any reader of others.",
        metavar="NAME",
        show_default=False,
    ),
]
Hole = Annotated[
    int,
    typer.Option(
        "--hole", help="The most bytes between two columns that one I/O reads over.", min=0
    ),
]


def layout(
    table: TableFolder,
    column: Wanted = None,
    hole: Hole = 8192,
    registry: RegistryFile = REGISTRY,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Show how a table lies on disk, and what reading it costs, from only its footers.

    I/Os are those of coalesced reads: columns that lie within --hole bytes of each other are read
    in one; `one by one` has an I/O for each column of a stripe. Times assume one I/O after another,
    and serve to compare layouts.
    """
    with reported(debug):
        from recd_plugins.data.layout import layout_of
        from recd_plugins.patterns import check_patterns

        found = layout_of(table)
        names = [one.name for one in found.columns]
        if column:
            check_patterns(column, names, kind="column", where="--column")
            wanted = found.matching(column)
        else:
            with redirect_stdout(sys.stderr):  # what plugins print is no part of what is shown
                wanted = _wanted(table, registry) or tuple(names)
        readings = {
            "all columns": found.reading(names, hole=hole),
            "what is read": found.reading(wanted, hole=hole),
            "one by one": found.reading(wanted, hole=-1),
        }
        if as_json:
            print(json.dumps(_as_json(found, readings)))
            return
        _draw(found, readings)


def _wanted(path: Location, registry: Path) -> tuple[str, ...]:
    """The columns of the files that a reader takes; none if no schema says."""
    from recd_plugins.data.table import carries_schema
    from recd_plugins.errors import RecdError

    try:
        return _as_read(path, registry).batch_columns
    except RecdError:
        if registry != REGISTRY or carries_schema(path):
            raise
        print("no schema says what a reader takes, so all counts as read", file=sys.stderr)
        return ()


def _as_read(path: Location, registry: Path) -> Table:
    """The table; if the registry's reader reads it, with only the columns that the reader
    takes."""
    from recd_plugins.errors import RecdError, shortened
    from recd_plugins.stack import load

    opened = opened_table(path, registry)
    if not registry.exists():
        return opened
    try:
        stack = load(registry)
        return (stack.registry.has_dataset and stack.as_read(path)) or opened
    except RecdError as error:
        if registry != REGISTRY:
            raise
        # Nobody named it, and the table may be another's.
        why = shortened(str(error))
        print(f"{registry} is left aside, so all counts as read: {why}", file=sys.stderr)
        return opened


def _as_json(found: TableLayout, readings: dict[str, Reading]) -> dict[str, object]:
    whole = dataclasses.asdict(found)
    del whole["chunks"]
    return {
        **whole,
        "rows_per_stripe": found.rows_per_stripe,
        "reading": {
            what: {**dataclasses.asdict(one), "seconds": one.seconds}
            for what, one in readings.items()
        },
    }


MIB = 2**20


def _draw(found: TableLayout, readings: dict[str, Reading]) -> None:
    from rich.table import Table as Drawn

    from recd_plugins.cli.printed_tables import print_table
    from recd_plugins.data.layout import why_rewrite

    columns = Drawn(
        title=f"{found.path}: {so_many(found.num_rows, 'row')} in {so_many(found.files, 'file')} "
        f"and {so_many(found.stripes, 'stripe')} of {so_many(found.rows_per_stripe, 'row')}, "
        f"{found.size / MIB:,.1f} MiB",
        title_justify="left",
    )
    for name in ("place", "column", "type", "MiB", "packed", "codec", "read"):
        columns.add_column(name, no_wrap=name == "type")
    for one in found.columns:
        columns.add_row(
            str(one.place),
            one.name,
            one.kind.replace("element: ", "").replace(" not null", "")[:30],
            f"{one.compressed / MIB:,.2f}",
            f"{one.uncompressed / max(one.compressed, 1):.1f}x",
            one.codec,
            "yes" if one.name in readings["what is read"].columns else "",
        )
    print_table(columns)
    costs = Drawn("MiB of", "columns", "I/Os", "wanted", "read", "HDD", "SSD", "S3")
    for what, cost in readings.items():
        costs.add_row(
            what,
            str(len(cost.columns)),
            f"{cost.ios:,}",
            f"{cost.wanted / MIB:,.2f}",
            f"{cost.read / MIB:,.2f}",
            *(f"{seconds:,.2f} s" for seconds in cost.seconds.values()),
        )
    print_table(costs)
    if why := why_rewrite(found.num_rows, found.stripes):
        print(why)
