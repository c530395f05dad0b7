"""A step from table to table: every n-th row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa

from recd_plugins.api import Config, Context, EtlRecord, Range, hookimpl
from recd_plugins.api.data import Progress, Table, write_table


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    every: Annotated[int, Range(ge=1)] = 2
    """The step between rows that are kept: 0, `every`, 2 `every`, ... of each stripe."""


class NewPlugin:
    """Keeps some rows; reads and writes one stripe at a time."""

    def __init__(self, every: int) -> None:
        self.every = every

    def run(self, table: Table, folder: Path, progress: Progress) -> Table:
        def kept() -> Iterator[pa.Table]:
            for rows in table.each_read():
                yield rows.take(pa.array(range(0, rows.num_rows, self.every)))

        return write_table(folder, table.schema, kept(), progress=progress)


def build(config: NewPluginConfig, context: Context) -> NewPlugin:
    return NewPlugin(config.every)


@hookimpl
def recd_etl() -> list[EtlRecord[NewPluginConfig]]:
    return [
        EtlRecord(
            name="new_plugin",
            summary="Every n-th row.",
            config=NewPluginConfig,
            build=build,
        ),
    ]
