"""`recd report`: runs, plans, advice and measures on one page; runs as a table and a figure too."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.options import AsJson, Debug
from recd_plugins.cli.output_paths import DPI, PICTURES, check_writable
from recd_plugins.cli.reported import reported
from recd_plugins.notices import NoticeWarning
from recd_plugins.storage.whole_file import whole_file, write_whole

if TYPE_CHECKING:
    from recd_plugins.trainer.measure.run_log import RunLog

__all__ = ["report"]

Runs = Annotated[
    list[str],
    typer.Argument(
        help="Folders of runs, as runs/latest or plain=runs/latest.1; and files with what `recd "
        "plan`, `advise`, `data stats` or `scars curve` printed with --json.",
        metavar="WHAT",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="The page to write.", metavar="FILE")]
FigureFile = Annotated[
    Path | None,
    typer.Option("--figure", help="A picture of the curves: .png, .pdf or .svg.", metavar="FILE"),
]


def report(
    runs: Runs,
    out: Out = Path("report.html"),
    figure: FigureFile = None,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Draw runs, and what commands printed, on one HTML page that needs no other file.

    It shows what runs learned, where their steps' time goes, what moves, repeats and is hot, what
    takes the memory, forecast and fact, the registry and the machine; several runs are shown side
    by side.
    """
    with reported(debug), ended_by_signals():
        from recd_plugins.report.page import naming_source, page
        from recd_plugins.report.repeats import not_drawn
        from recd_plugins.report.sources import read_sources
        from recd_plugins.trainer.measure.runs_compared import reading, row, spread

        check_writable(out, "--out", (".html", ".htm"))
        check_writable(figure, "--figure", PICTURES)
        sources = read_sources(runs)
        for what in not_drawn(sources):
            warnings.warn(
                f"{what}: its results are not drawn, because the report draws only those of "
                "`sessions` of recd_dedup. `recd data stats --figures` draws the figures of other "
                "measures.",
                NoticeWarning,
                stacklevel=2,
            )
        logs = sources.runs
        for log in logs:
            if log.cut_off:
                warnings.warn(
                    f"{log.name}: the last line of its metrics.jsonl is cut off, though the run "
                    "has finished, and is left out. Restore the file from a copy of the run.",
                    NoticeWarning,
                    stacklevel=2,
                )
        with naming_source(sources):
            text = page(sources)
            rows = {log.name: row(log) for log in logs}
            quartiles = {log.name: spread(log) for log in logs}
            parts = {log.name: reading(log) for log in logs}
            if figure is not None:
                _save(logs, figure)
        write_whole(out, text)
    if as_json:
        found = {
            "page": str(out),
            "figure": None if figure is None else str(figure),
            "runs": rows,
            "quartiles": quartiles,
            "reading_ms": parts,
        }
        print(json.dumps(found))
    else:
        if rows:
            _show(rows, quartiles, parts)
        print(out)
        if figure is not None:
            print(figure)


def _save(logs: Sequence[RunLog], path: Path) -> None:
    from matplotlib.figure import Figure

    from recd_plugins.trainer.measure.runs_compared import draw_curves

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    draw_curves(logs, figure)
    with whole_file(path) as part:
        figure.savefig(part, dpi=DPI)


def _show(
    rows: dict[str, dict[str, float | None]],
    quartiles: dict[str, dict[str, tuple[float, float]]],
    parts: dict[str, dict[str, float]],
) -> None:
    from rich.table import Table

    from recd_plugins.cli.printed_tables import print_table
    from recd_plugins.report.drawing import number
    from recd_plugins.trainer.measure.runs_compared import COLUMNS

    def cell(value: float | None) -> str:
        return "" if value is None else number(value, 4)

    table = Table()
    table.add_column("")
    for name in rows:
        table.add_column(name, justify="right")
    for key, label in COLUMNS.items():
        values = [one[key] for one in rows.values()]
        if any(value is not None for value in values):
            table.add_row(label, *map(cell, values))
        between = [one.get(key) for one in quartiles.values()]
        if any(between):
            table.add_row(
                "  quartiles", *(" to ".join(map(cell, ends)) if ends else "" for ends in between)
            )
    for part in dict.fromkeys(part for one in parts.values() for part in one):
        each = [one.get(part) for one in parts.values()]
        table.add_row(f"  {part}", *map(cell, each))
    print_table(table)
