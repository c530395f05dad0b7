"""A Kafka log as it was when its tables were first asked for.

Others write to a topic while ranks, workers and later commands ask for the tables, each by itself:
all have to mean the same rows. So whoever comes first notes beside the tables where each partition
ended, and all read up to there.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from recd_dedup.log.kafka import End, KafkaLog
from recd_plugins.api import NoticeWarning
from recd_plugins.api.data import LogRoute, write_whole

__all__ = ["Snapshot"]


class Snapshot:
    """Is read as the log is, up to the noted ends."""

    def __init__(self, log: KafkaLog, folder: Path) -> None:
        self._log = log
        name = hashlib.sha256(json.dumps(log.name).encode()).hexdigest()[:12]
        self._file = folder / f"topics-{name}.json"

    @property
    def shards(self) -> int:
        return self._log.shards

    @property
    def route(self) -> LogRoute:
        return self._log.route

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """The messages of a shard up to the noted ends."""
        return self._log.read(shard, {part: end.place for part, end in self._ends.items()})

    def fingerprint(self) -> str:
        """Names the messages up to the noted ends."""
        config = self._log.config
        return repr([config.topics, config.route, config.times, sorted(self._ends.items())])

    @cached_property
    def _ends(self) -> dict[str, End]:
        now = self._log.ends()
        if (noted := self._noted()) is None or not self._is_still(noted, now):
            from filelock import FileLock

            self._file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self._file.with_name(f".{self._file.name}.lock")):
                noted = self._noted()
                if noted is None or not self._is_still(noted, now):
                    write_whole(self._file, json.dumps(now, indent=1))
                    noted = now
        if newer := sum(max(0, end.place - noted[part].place) for part, end in now.items()):
            warnings.warn(
                f"Kafka topic {self._log.name!r}: {newer:,} messages came after its tables were "
                f"first asked for, and are not read. To read them, remove {self._file}, which "
                "notes where partitions ended; to train while they come, say `dataset: "
                "growing_log`.",
                NoticeWarning,
                stacklevel=2,
            )
        return noted

    def _noted(self) -> dict[str, End] | None:
        if not self._file.exists():
            return None
        found = json.loads(self._file.read_text())
        return {part: End(*end) for part, end in found.items()}

    def _is_still(self, noted: dict[str, End], now: dict[str, End]) -> bool:
        """Whether the topic holds what it held, as far as retention has not deleted it; one that
        was made anew does not."""
        if noted == now:
            return True
        if {*noted} != {*now} or any(end.place < noted[part].place for part, end in now.items()):
            return False
        found = self._log.ends({part: end.place for part, end in noted.items()})
        return all(end.digest in ("", noted[part].digest) for part, end in found.items())
