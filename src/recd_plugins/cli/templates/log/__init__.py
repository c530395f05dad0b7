"""A log store: Arrow files in a folder, by session."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa

from recd_plugins.api import Config, Context, LogRecord, Range, hookimpl
from recd_plugins.api.data import MESSAGES, LogRoute


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    folder: Path | None = None
    """Where the files lie; by default `log` in the registry's folder."""
    shards: Annotated[int, Range(ge=1)] = 8
    """The number of log shards; all messages of a session are in one of them."""


class NewPlugin:
    """Each flush writes a file for each shard that has messages."""

    route: LogRoute = "session"

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder, self.shards = folder, shards
        self.pending: list[pa.RecordBatch] = []

    def append(self, messages: pa.RecordBatch) -> None:
        self.pending.append(messages)

    def flush(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        messages = pa.Table.from_batches(self.pending, MESSAGES)
        shards = messages["session_id"].to_numpy() % self.shards
        for shard in sorted(set(shards.tolist())):
            # Named by time, so that a writer's files are read in its order.
            file = self.folder / f"{shard}-{time.time_ns():020}-{uuid.uuid4().hex}.arrow"
            part = file.with_suffix(".part")
            with pa.ipc.new_file(part, MESSAGES) as writer:
                writer.write_table(messages.filter(pa.array(shards == shard)))
            part.rename(file)  # readers see whole files alone
        self.pending = []

    def close(self) -> None:
        self.flush()

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        for file in sorted(self.folder.glob(f"{shard}-*.arrow")):
            with pa.ipc.open_file(file) as reader:
                for index in range(reader.num_record_batches):
                    yield reader.get_batch(index)

    def fingerprint(self) -> str:
        return str(sorted(file.name for file in self.folder.glob("*.arrow")))


def build(config: NewPluginConfig, context: Context) -> NewPlugin:
    return NewPlugin(config.folder or context.folder / "log", config.shards)


@hookimpl
def recd_log() -> list[LogRecord[NewPluginConfig]]:
    return [
        LogRecord(
            name="new_plugin",
            summary="Arrow files by session.",
            config=NewPluginConfig,
            build=build,
        )
    ]
