"""One period of a growing log: what it was made of, and the samples that are joined from that.

Each join is checked against the period's manifest: against a digest of the messages between its
places in each part of the log.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_dedup.log.checked_log import CheckedGrowingLog
from recd_dedup.log.codec import flat
from recd_dedup.log.deleted import ExpiredMessages
from recd_dedup.log.period_join import COUNTS, PeriodBounds, PeriodJoin, PeriodReport
from recd_plugins.api import DataError, GrowingLog
from recd_plugins.api.data import (
    SPLITS,
    Location,
    Period,
    Placed,
    Progress,
    Schema,
    Split,
    Tables,
    silent,
    write_whole,
)

if TYPE_CHECKING:
    from recd_dedup.log.growing_log import GrowingLogConfig

__all__ = ["LogPeriod", "MessagesDigest", "PeriodManifest"]

JOINED = "join.json"


@dataclass(frozen=True, kw_only=True)
class PeriodManifest:
    """What a period was made of."""

    number: int
    begins: Mapping[str, int]
    """By part, a place before which nothing belongs to the period."""
    ends: Mapping[str, int]
    """By part, the place at which the period closed."""
    next: Mapping[str, int]
    """The places at which the next period begins."""
    messages: int
    """The number of messages between begin and end, some of which belong to neighbouring
    periods."""
    digest: str
    """The digest of these messages."""
    log: str
    """The log's identity, if it has one."""
    last: Mapping[str, tuple[int, str]]
    """By part, the place of the last block of these messages, and its digest."""
    before: str
    """The digest of the previous manifest."""

    @cached_property
    def identity(self) -> str:
        """Identifies everything that the period and those before it were made of."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class LogPeriod(Period):
    """The samples of one period."""

    def __init__(
        self,
        config: GrowingLogConfig,
        log: GrowingLog | CheckedGrowingLog,
        manifest: PeriodManifest,
        ends_of: Callable[[int], Mapping[str, int]],
        vocabularies: Mapping[Location, str] = {},
    ) -> None:
        """`ends_of` returns the places at which an earlier period closed; `vocabularies` are those
        of ids, each with its digest."""
        self.config, self.manifest = config, manifest
        self._log, self._ends_of = log, ends_of
        self._vocabularies = vocabularies

    @property
    def schema(self) -> Schema:
        return self.config.schema

    def fingerprint(self) -> str:
        return "-".join([self.manifest.identity, *self._vocabularies.values()])

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        for samples in self._samples(PeriodReport()):
            yield self.config.of_split(samples, split)

    def prepare(self, folder: Path, progress: Progress = silent) -> Tables:
        """Both splits, made in one pass, and join.json beside them, which reports what came."""
        if not any((folder / split).exists() for split in SPLITS):
            report = PeriodReport()
            self.config.write(folder, self._noted(report, folder), report, progress)
            report.warn(f"period {self.manifest.number}")
        return super().prepare(folder, progress)

    def _noted(self, report: PeriodReport, folder: Path) -> Iterator[pa.Table]:
        yield from self._samples(report)
        write_whole(folder / JOINED, json.dumps(report.to_dict(), indent=2))

    def counts(self, folder: Path) -> Mapping[str, int]:
        found = json.loads((folder / JOINED).read_text())
        return {name: found[name] for name in COUNTS}

    def verify(self) -> None:
        """Messages that have expired cannot be compared: existing tables that were made of them are
        used as they are, and no new ones are made."""
        one = self.manifest
        try:
            found = MessagesDigest.of(
                placed
                for shard in range(self._log.shards)
                for placed in self._log.between(shard, one.begins, one.ends)
            )
        except ExpiredMessages:
            return
        except DataError as error:
            raise self._changed(str(error).rstrip(".")) from error
        self._hold_to(found)

    def _hold_to(self, found: MessagesDigest) -> None:
        """Raises `DataError` if messages are not those that the period was made of."""
        if (found.messages, found.hex()) != (self.manifest.messages, self.manifest.digest):
            raise self._changed(
                f"{found.messages:,} messages lie there now, with digest {found.hex()}; there were "
                f"{self.manifest.messages:,}, with {self.manifest.digest}"
            )

    def _changed(self, what: str) -> DataError:
        return DataError(
            f"{self._log.name}: the log has changed before the places at which period "
            f"{self.manifest.number} closed: {what}. Resume with the log as it was, or start a new "
            "run, with another `folder`."
        )

    def _samples(self, report: PeriodReport) -> Iterator[pa.Table]:
        """The samples of each stream of the log; the report is complete at the end."""
        shards = range(self._log.shards)
        by_session = self._log.route == "session"
        decoder = self.config.decoder(self._log.route)
        join = PeriodJoin(decoder, self.config.join, self._bounds(), report)
        counted = MessagesDigest()
        for group in [[shard] for shard in shards] if by_session else [[*shards]]:
            samples = join.samples(_CountedOnce(partial(self._read, group), counted))
            yield from self.config.held_to(self._vocabularies, samples)
        self._hold_to(counted)

    def _bounds(self) -> PeriodBounds:
        config, number = self.config, self.manifest.number
        first = PeriodBounds.first(number, config.period_ms, config.join)
        return PeriodBounds(
            number=number,
            start=config.start_of(number),
            length=config.period_ms,
            ends=[*(self._ends_of(one) for one in range(first, number)), self.manifest.ends],
        )

    def _read(self, shards: Sequence[int]) -> Iterator[Placed]:
        """The messages of a stream, cut where periods closed."""
        places = (self.manifest.begins, *self._bounds().ends)
        streams = (self._log.between(shard, *places) for shard in shards)
        return heapq.merge(*streams, key=_first_time)


class MessagesDigest:
    """A digest of messages, in the order of each part, however they are cut into batches and
    merged."""

    @classmethod
    def of(cls, blocks: Iterable[Placed]) -> MessagesDigest:
        found = cls()
        for placed in blocks:
            found.add(placed)
        return found

    def __init__(self) -> None:
        self.messages = 0
        self._parts: dict[str, list[Any]] = {}
        """A hash for each column, by part."""

    def add(self, placed: Placed) -> None:
        sessions, times, texts = placed.messages.columns
        lengths = pc.binary_length(texts)
        columns = (sessions.to_numpy(), times.to_numpy(), lengths.to_numpy(), flat(texts))
        hashes = self._parts.setdefault(placed.part, [hashlib.sha256() for _ in columns])
        for each, column in zip(hashes, columns, strict=True):
            each.update(np.ascontiguousarray(column).data)
        self.messages += placed.messages.num_rows

    def hex(self) -> str:
        whole = hashlib.sha256()
        for part, hashes in sorted(self._parts.items()):
            whole.update(hashlib.sha256(part.encode()).digest())
            for each in hashes:
                whole.update(each.digest())
        return whole.hexdigest()[:32]


class _CountedOnce:
    """What `read` yields, which is counted when it is read for the first time."""

    def __init__(self, read: Callable[[], Iterator[Placed]], counted: MessagesDigest) -> None:
        self._read, self._counted = read, counted
        self._again = False

    def __call__(self) -> Iterator[Placed]:
        again, self._again = self._again, True
        for placed in self._read():
            if not again:
                self._counted.add(placed)
            yield placed


def _first_time(placed: Placed) -> int:
    first: int = pc.min(placed.messages["timestamp"]).as_py()
    return first
