"""A whole log as one table, with what its join met."""

from __future__ import annotations

from pathlib import Path

from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.join import JoinConfig, JoinReport, joined
from recd_plugins.api import LogStore
from recd_plugins.api.data import Schema, Table, TableWriter


def join_log(
    store: LogStore, schema: Schema, folder: Path, config: JoinConfig | None = None
) -> tuple[Table, JoinReport]:
    """All samples of a log, one stream after the other."""
    report = JoinReport()
    with TableWriter(folder, schema) as writer:
        for stream in joined(store, MessageCodec(schema), config or JoinConfig(), report):
            for samples in stream:
                writer.write(samples)
    return Table.open(folder), report
