"""A log as it was when its tables were first asked for.

Writers add to the log while ranks, workers and later commands each ask for the tables, and all must
get the same rows. So the first one notes beside the tables where each part of the log ended, and
all read up to there.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from recd_dedup.log.digested import digested, undigested
from recd_plugins.api import DataError, NoticeWarning
from recd_plugins.api.data import LogRoute, write_whole

__all__ = ["End", "EndingLog", "Snapshot"]


class End(NamedTuple):
    """A place in a part of a log, and what is there."""

    place: int
    digest: str
    """The digest of the message before it; empty if that is deleted, if there was none, or if parts
    of this log are never rewritten."""
    begin: int | None = None
    """The place of the part's first message; None if nothing is ever deleted before it is read, or
    if the end was noted by a version that did not note this."""

    def __repr__(self) -> str:
        """This text identifies tables, including those of versions that did not note `begin`."""
        return f"End(place={self.place!r}, digest={self.digest!r})"


class EndingLog(Protocol):
    """A log that can say where its parts end, and can be read up to there."""

    @property
    def name(self) -> str: ...
    @property
    def shards(self) -> int: ...
    @property
    def route(self) -> LogRoute: ...
    @property
    def known_by(self) -> str:
        """What distinguishes it from another log whose parts end at the same places."""

    @property
    def counts(self) -> str:
        """What places count: messages or bytes."""

    def ends(self, at: Mapping[str, int] | None = None) -> dict[str, End]:
        """Where each part ends now; or each of these places, and what is there now."""

    def check_kept(self, noted: Mapping[str, End], now: Mapping[str, End]) -> None:
        """Raises `DataError` if it has lost what was there up to the noted ends, unless a new log
        has begun."""

    def read(self, shard: int, ends: Mapping[str, End] | None = None) -> Iterator[pa.RecordBatch]:
        """The messages of a shard, up to these ends; raises `DataError` if some after their begins
        are deleted."""


class Snapshot:
    """A log that is read up to the noted ends."""

    def __init__(self, log: EndingLog, folder: Path) -> None:
        self.log = log
        name = hashlib.sha256(json.dumps(log.name).encode()).hexdigest()[:12]
        self._file = folder / f"ends-{name}.json"

    @property
    def shards(self) -> int:
        return self.log.shards

    @property
    def route(self) -> LogRoute:
        return self.log.route

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """The messages of a shard up to the noted ends."""
        return self.log.read(shard, self._ends)

    def fingerprint(self) -> str:
        """Identifies the messages up to the noted ends."""
        return repr([self.log.known_by, self.log.route, sorted(self._ends.items())])

    @cached_property
    def _ends(self) -> dict[str, End]:
        now = self.log.ends()
        if (noted := self._noted()) is None or not self._is_still(noted, now):
            from filelock import FileLock

            self._file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self._file.with_name(f".{self._file.name}.lock")):
                noted = self._noted()
                if noted is None or not self._is_still(noted, now):
                    text = {
                        part: [one for one in end if one is not None] for part, end in now.items()
                    }
                    write_whole(self._file, digested("ends", text))
                    noted = now
        none = End(0, "")
        newer = sum(max(0, end.place - noted.get(part, none).place) for part, end in now.items())
        if newer:
            warnings.warn(
                f"{self.log.name}: {newer:,} {self.log.counts} came after the tables of this log "
                f"were made, and are not read. To read them, remove {self._file}, which records "
                "where the log ended; to train while messages come, use `dataset: growing_log`.",
                NoticeWarning,
                stacklevel=2,
            )
        return noted

    def _noted(self) -> dict[str, End] | None:
        if not self._file.exists():
            return None
        try:
            found = undigested("ends", self._file.read_bytes())
            return {part: End(*end) for part, end in found.items()}
        except ValueError as error:
            raise DataError(
                f"{self._file}: is damaged, or of another version ({error}). Remove it, and the "
                "log is read up to where it ends now."
            ) from error

    def _is_still(self, noted: dict[str, End], now: dict[str, End]) -> bool:
        """Whether the log still holds what it held, apart from what retention has deleted; a new
        log does not."""
        if noted == now:
            return True
        self.log.check_kept(noted, now)
        if any(part not in now or now[part].place < end.place for part, end in noted.items()):
            return False
        found = self.log.ends({part: end.place for part, end in noted.items()})
        return all(end.digest in ("", noted[part].digest) for part, end in found.items())
