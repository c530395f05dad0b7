"""The `stats` slot: measurements of a table."""

from __future__ import annotations

import json

from recd_plugins.data.progress import silent
from recd_plugins.data.stats_report import StatsReport, broken_rules
from recd_plugins.data.table import Table
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_stats"]

ROWS = 300


def check_stats(subject: Subject) -> None:
    table = random_table(subject.folder / "table", subject.context.require_schema(), ROWS)
    before = _bytes(table)
    report, again = (subject.build().measure(table, silent) for _ in range(2))
    subject.hold(
        isinstance(report, StatsReport),
        f"measure must return a StatsReport, not {report!r}",
        "Return recd_plugins.api.data.StatsReport(values=..., tables=[...], figures={...}).",
    )
    subject.hold(_bytes(table) == before, "it must leave the table as it is", "Write elsewhere.")
    for rule, fix in broken_rules(report):
        subject.hold(False, rule, fix)
    subject.hold(
        _json(report) == _json(again),
        "two measures of the same table must find the same values",
        "Seed what it draws by its config or context.seed.",
    )
    _check_figures(subject, report)


def _check_figures(subject: Subject, report: StatsReport) -> None:
    from matplotlib.figure import Figure

    for name, draw in report.figures.items():
        figure = Figure()
        draw(figure)
        subject.hold(
            bool(figure.axes),
            f"figure {name!r} draws nothing onto the figure that it is given",
            "Use figure.subplots(), not pyplot, which has figures of its own.",
        )


def _json(report: StatsReport) -> str | None:
    try:
        return json.dumps(report.values, sort_keys=True)
    except (TypeError, ValueError):
        return None


def _bytes(table: Table) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in table.files}
