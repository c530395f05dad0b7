"""A measure of a table: the share of its positive labels."""

from __future__ import annotations

import pyarrow.compute as pc

from recd_plugins.api import Config, Context, StatsRecord, hookimpl
from recd_plugins.api.data import Progress, StatsReport, StatsTable, Table


class NewPlugin:
    """Reads one stripe at a time, and of it the label alone."""

    def measure(self, table: Table, progress: Progress) -> StatsReport:
        ones, rows = 0.0, 0
        for part in table.each_read([table.schema.label]):
            ones += pc.sum(part[0]).as_py() or 0.0
            rows += part.num_rows
            progress("reading labels", rows, table.num_rows)
        share = ones / rows if rows else 0.0
        shown = StatsTable(title="labels", columns=["label 1"], rows=[[f"{share:.1%}"]])
        return StatsReport(values={"label_1": share}, tables=[shown])


def build(config: Config, context: Context) -> NewPlugin:
    return NewPlugin()


@hookimpl
def recd_stats() -> list[StatsRecord[Config]]:
    return [
        StatsRecord(
            name="new_plugin",
            summary="The share of positive labels.",
            config=Config,
            build=build,
        )
    ]
