"""What a record of the `stats` slot measures and draws, checked against the rules of its slot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from recd_plugins.data.progress import Progress
from recd_plugins.data.stats_report import StatsReport, broken_rules
from recd_plugins.data.table import Table
from recd_plugins.errors import PluginError, check_made, listed
from recd_plugins.registry.choice import Choice
from recd_plugins.slots import Context, TableStats
from recd_plugins.storage.whole_file import of_path, whole_file

if TYPE_CHECKING:
    from recd_plugins.data.stats_report import Draw

__all__ = ["drawn", "measured"]


def measured(choice: Choice, context: Context, table: Table, progress: Progress) -> StatsReport:
    """The findings of a measure; `PluginError` if they cannot be printed, or if it has changed
    the table's files."""
    measure: TableStats = choice.build(context)
    before = _files(table)
    with choice.named("when it measured"), of_path(context.folder):
        report = measure.measure(table, progress)
    whose = f"{choice.who}: its `measure`"
    after = _files(table)
    if changed := [str(file) for file in before if after.get(file) != before[file]]:
        raise PluginError(
            f"{whose} changed {listed(changed, 2, kind='file')} of the table that it should only "
            "read. Restore the changed files from a copy, and let it write elsewhere."
        )
    check_made(report, StatsReport, f"{whose} returned", "Return its findings as one.")
    for rule, fix in broken_rules(report, finite=False):
        raise PluginError(f"{whose} returned a report that breaks a rule: {rule}. {fix}")
    return report


def drawn(choice: Choice, figure: str, draw: Draw, path: Path, dpi: int) -> Path:
    """The file of a figure that a measure drew; `PluginError` if nothing is on it."""
    from matplotlib.figure import Figure

    empty = Figure(layout="constrained")
    with choice.named(f"when it drew figure {figure!r}"):
        draw(empty)
        if not empty.axes:
            raise PluginError(
                f"{choice.who}: figure {figure!r} draws nothing onto the figure that it is given. "
                "Use figure.subplots(), not pyplot, which makes figures of its own."
            )
        with whole_file(path) as part:
            empty.savefig(part, dpi=dpi)
    return path


def _files(table: Table) -> Mapping[Path, tuple[int, int]]:
    """Size and time of the table's files, if they are not on a store."""
    found = {}
    for file in table.files:
        if isinstance(file, Path) and file.exists():
            now = file.stat()
            found[file] = now.st_size, now.st_mtime_ns
    return found
