"""`recd data rewrite`: a table in another layout."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recd_plugins.cli.options import (
    AsJson,
    Debug,
    TableFolder,
    check_of_use,
    location_argument,
)
from recd_plugins.cli.output_paths import check_makable
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.errors import RegistryError, so_many

if TYPE_CHECKING:
    from recd_plugins.storage.uri import Location

__all__ = ["rewrite"]

Target = Annotated[
    Path,  # or a Uri
    typer.Argument(
        help="The folder to write, or its URI: it must not be there.",
        metavar="TARGET",
        parser=location_argument,
    ),
]
Flatten = Annotated[
    list[str] | None,
    typer.Option(
        "--flatten",
        help="A map column of which each key becomes a column.",
        metavar="COLUMN",
        show_default=False,
    ),
]
First = Annotated[
    list[str] | None,
    typer.Option(
        "--first",
        help="A column that comes first, before those of the read log. Several come in the "
        "order in which they are named.",
        metavar="COLUMN",
        show_default=False,
    ),
]
ReadLog = Annotated[
    Path | None,
    typer.Option(
        "--read-log",
        help="The log that readers kept under `reader.read_log`; the columns that it has most "
        "often come first.",
        metavar="FILE",
        show_default=False,
    ),
]
Days = Annotated[
    float,
    typer.Option("--days", help="The number of latest days of the read log that count.", min=0),
]
Rows = Annotated[int, typer.Option("--rows-per-stripe", help="The rows of a stripe.", min=1)]
LeaveOut = Annotated[
    bool,
    typer.Option(
        "--leave-out-repeats",
        help="Write a null in place of each list of ids that equals the list of the row before. "
        "No other program should read such a table.",
    ),
]
Page = Annotated[
    int, typer.Option("--page-size", help="The bytes of a page before it is compressed.")
]


def rewrite(
    table: TableFolder,
    target: Target,
    flatten: Flatten = None,
    first: First = None,
    read_log: ReadLog = None,
    days: Days = 7,
    rows_per_stripe: Rows = 131_072,
    page_size: Page = 1 << 20,
    leave_out_repeats: LeaveOut = False,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Write a table in another layout: maps flattened, popular columns first, other stripes.

    Its rows stay as they are. If a rewrite was interrupted, the same command goes on where it
    was.
    """
    with reported(debug):
        from recd_plugins.config import parse
        from recd_plugins.data.reader.read_log import popularity
        from recd_plugins.data.rewrite import RewriteConfig, columns_after
        from recd_plugins.data.rewrite import rewrite as write_anew

        check_makable(target, "TARGET")
        _check_outside(target, table)
        if read_log is None:
            check_of_use({"--days": days != 7}, "no log of readers is read", "Add --read-log")
        options = {
            "flatten": flatten or [],
            "rows_per_stripe": rows_per_stripe,
            "page_size": page_size,
            "leave_out_repeats": leave_out_repeats,
        }
        config = parse(RewriteConfig, options, "recd data rewrite")
        with progress() as show:
            ranked = list(first or ())
            if read_log is not None:
                there = columns_after(table, config, show)
                popular = [name for name, _ in popularity(read_log, days=days).most_common()]
                popular = [name for name in popular if name in there]
                if not popular:
                    raise RegistryError(
                        f"--read-log: in {read_log} no job of the latest {days:g} days read a "
                        "column of this table, so no column would come first. Give a larger "
                        "--days, name the log of the table's readers, or take --read-log out."
                    )
                ranked += popular
            config = dataclasses.replace(config, first=tuple(dict.fromkeys(ranked)))
            rows = write_anew(table, target, config, show)
    if as_json:
        print(json.dumps({"path": str(target), "rows": rows, "first": list(config.first)}))
        return
    print(f"{so_many(rows, 'row')} in {target}; recd data layout {target} shows how they lie")


def _check_outside(target: Location, table: Location) -> None:
    """`RegistryError` if the target lies in the folder of the table, since its readers would then
    find every row twice."""
    if not isinstance(target, Path) or not isinstance(table, Path):
        return
    if table.is_dir() and table.resolve() in target.resolve().parents:
        raise RegistryError(
            f"TARGET: {target} is inside the table {table}, which would then hold its rows twice. "
            "Name a folder outside of it."
        )
