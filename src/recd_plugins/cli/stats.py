"""`recd data stats`: what is measured of a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recd_plugins.cli.options import (
    AsJson,
    Debug,
    RegistryFile,
    TableFolder,
    opened_table,
    progress,
    reported,
)
from recd_plugins.cli.written import check_writable
from recd_plugins.config.whole_file import whole_file

if TYPE_CHECKING:
    from recd_plugins.data.stats_report import Draw, StatsReport, StatsTable

__all__ = ["stats"]

DPI = 150

Figures = Annotated[
    Path | None, typer.Option("--figures", help="A folder for what can be drawn, as PNG files.")
]


def stats(
    table: TableFolder,
    registry: RegistryFile = Path("registry.yaml"),
    figures: Figures = None,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Measure a table: by the registry's `stats`, or else by all that its plugins have."""
    with reported(debug):
        from recd_plugins.stack import load

        check_writable(figures and figures / "any.png", "--figures")
        stack = load(registry)
        opened = opened_table(table, registry)
        with progress() as show:
            reports = list(
                _named((choice.record.name, report) for choice, report in stack.stats(opened, show))
            )
        drawn = [
            str(_save(draw, figures / f"{name}-{figure}.png"))
            for name, report in reports
            for figure, draw in report.figures.items()
            if figures is not None
        ]
        if as_json:
            found: Mapping[str, Any] = {name: report.values for name, report in reports}
            print(json.dumps({"path": str(table), "stats": found, "figures": drawn}))
            return
        for _, report in reports:
            for part in report.tables:
                _print(part)
        for path in drawn:
            print(path)


def _named(
    reports: Iterator[tuple[str, StatsReport]],
) -> Iterator[tuple[str, StatsReport]]:
    """Names, numbered where registry.yaml asks for one measure twice: sessions, sessions-2."""
    seen: Counter[str] = Counter()
    for name, report in reports:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}", report


def _save(draw: Draw, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    draw(figure)
    with whole_file(path) as part:
        figure.savefig(part, dpi=DPI)
    return path


def _print(part: StatsTable) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as Drawn

    drawn = Drawn(box=SIMPLE)
    for index, column in enumerate(part.columns):
        numbers = all(row[index][:1].isdigit() for row in part.rows)
        drawn.add_column(column, justify="right" if numbers else "left")
    for row in part.rows:
        drawn.add_row(*row)
    console = Console(highlight=False)
    console.print(part.title)
    if part.rows:
        console.print(drawn)
    for note in part.notes:
        console.print(f"  {note}")
    console.print()
