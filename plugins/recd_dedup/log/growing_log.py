"""The `growing_log` dataset: a log that services still write, joined period by period.

Period e is the requests whose time is in [origin + e P, origin + (e + 1) P), with their events. A
part of the log has come past it once a message is later than the period's end by the join's window
and disorder; what comes behind that place is late, and in no period. So which messages are a
period's is decided by what lies in each part alone, and not by who looks when.

A period that closed has a manifest beside the prepared tables, written by whoever came first: its
places in each part, and a digest of the messages between them, to which each join of them is held.
Whoever goes on with periods that have closed first looks whether their last messages are the log's:
a topic may have been made anew, or be another cluster's. A writer that begins later is in the
periods that close later.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_dedup.log.codec import flat
from recd_dedup.log.held_log import HeldGrowingLog
from recd_dedup.log.kafka import KafkaLog
from recd_dedup.log.logged_dataset import LoggedConfig
from recd_dedup.log.period_join import COUNTS, PeriodBounds, PeriodJoin, PeriodReport
from recd_dedup.log.shards import DeletedMessages, ExpiredMessages, ZstdShards
from recd_plugins.api import (
    Context,
    DataError,
    GrowingLog,
    NoticeWarning,
    Range,
    RegistryError,
)
from recd_plugins.api.data import (
    SPLITS,
    Cuts,
    GrowingDataset,
    Location,
    NotClosed,
    Period,
    Placed,
    Progress,
    Schema,
    Split,
    Tables,
    silent,
    write_whole,
)

__all__ = ["GrowingLogConfig", "GrowingLogDataset", "LogPeriod", "build_growing_log"]

JOINED = "join.json"
ENDED = "ended.json"
NEVER = 1 << 62
"""A time that no message has."""

LOOKED_AT = 4
"""The shards whose last messages tell whether a log is still the same."""
SECONDS = 10**8, 10**11
"""Between these are times in s since 1970 that someone may mean; in ms they are of before 1973."""
MANY_EMPTY = 1_000
"""Periods without rows, from the first one on, that go by without a word."""
AHEAD_MS = 24 * 60 * 60_000
"""The time that a message may be ahead of this machine's clock."""


@dataclass(frozen=True, kw_only=True)
class GrowingLogConfig(LoggedConfig):
    """Samples from raw logs that are still written, one period after another."""

    origin: int
    """The time at which period 0 begins, in ms since 1970; what is earlier is late."""
    period_ms: Annotated[int, Range(ge=1)] = 60 * 60_000
    """The time that a period covers: an epoch of training, whose rows are shuffled together."""
    until: int | None = None
    """The time at which the data end, in ms since 1970: no period begins then or later. One that
    begins before closes as ever, by messages that come: a log to which nobody writes is waited for,
    for `patience` seconds, whatever a clock says."""
    ends_when_sealed: bool = False
    """Whether the data end once nobody writes and the writer that came furthest has closed; else
    others are waited for."""
    patience: Annotated[float, Range(gt=0)] = 600.0
    """Seconds for which a rank waits for a period that has not closed, while no writer comes
    nearer to its end."""
    keep: Annotated[int, Range(ge=1)] = 8
    """Periods behind the one that the latest checkpoint is in whose tables stay; of those before
    them the manifests do, by which the log gives the same tables again."""


@dataclass(frozen=True, kw_only=True)
class PeriodManifest:
    """What a period was made of."""

    number: int
    begins: Mapping[str, int]
    """By part, a place before which nothing is of the period."""
    ends: Mapping[str, int]
    """By part, the place at which the period closed."""
    next: Mapping[str, int]
    """The places at which the next period begins."""
    messages: int
    """The messages between begin and end, some of which are the neighbours'."""
    digest: str
    """Of these messages."""
    log: str
    """The log's identity, if it has one."""
    last: Mapping[str, tuple[int, str]]
    """By part, the place of the last block of these messages, and a digest of it."""
    before: str
    """The digest of the manifest before."""

    @cached_property
    def identity(self) -> str:
        """Names all that the period and those before it were made of."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class GrowingLogDataset(GrowingDataset):
    """The periods of a log, whose manifests lie in a folder of the registry's."""

    def __init__(
        self,
        config: GrowingLogConfig,
        log: GrowingLog | HeldGrowingLog,
        folder: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives this machine's time, in seconds since 1970."""
        self.config = config
        self._clock = clock
        self.patience, self.keep = config.patience, config.keep
        self._log = log
        join = dataclasses.asdict(config.join)
        decides = [config.origin, config.period_ms, join, log.name, log.route]
        name = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
        self._folder = folder / f"periods-{name}"
        self._is_same = False
        """Whether the periods that were there are known to be this log's."""
        self._reported = False
        """Whether it was looked for what came after the data had ended."""

    @property
    def schema(self) -> Schema:
        return self.config.schema

    def fingerprint(self) -> str:
        return self._folder.name

    def period(self, number: int) -> LogPeriod | None:
        """The period of a manifest; one that has none is looked for in the log, by one process at a
        time."""
        if self._ends_before(number):
            self._tell_of_later()
            return None
        if (there := self._manifest(number)) is not None:
            self._check_once(there)
        else:
            from filelock import FileLock

            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder / ".lock"):
                last = number
                while last and self._manifest(last - 1) is None:
                    last -= 1
                for missing in range(last, number + 1):
                    if self._ends_before(missing):
                        return None
                    there = self._manifest(missing) or self._close(missing)
        if there is None:
            return None
        return LogPeriod(self.config, self._log, there, self._ends_of, self._vocabularies)

    def _close(self, number: int) -> PeriodManifest | None:
        """Write the manifest of a period that is closed; none where the data end before it."""
        start = self.config.origin + number * self.config.period_ms
        end, join = start + self.config.period_ms, self.config.join
        past = end + join.window_ms + join.disorder_ms
        before = self._manifest(number - 1) if number else None
        begins = {} if before is None else before.next
        # An event may be so much earlier than its request, which is the next period's.
        cuts = self._log.cuts(begins, end - join.disorder_ms, past)
        self._check_clock(cuts)
        ended = self.config.ends_when_sealed and cuts.ended
        if not ended and (cuts.behind or cuts.latest is None or cuts.latest < past):
            raise NotClosed(self._waits_for(cuts, past), cuts.behind)
        if before is not None:
            self._check(before)
        closed_before = {} if before is None else before.ends
        counted, new, latest, earliest = _Digest(), 0, start - 1, cuts.latest
        first: dict[str, int] = {}
        last: dict[str, tuple[int, str]] = {}
        places = (begins, closed_before, cuts.past) if ended else (begins, cuts.past)
        for shard in range(self._log.shards):
            blocks: dict[str, Placed] = {}
            for placed in self._log.between(shard, *places):
                counted.add(placed)
                first.setdefault(placed.part, placed.place)
                blocks[placed.part] = placed
                earliest = min(earliest or past, pc.min(placed.messages["timestamp"]).as_py())
                if ended:
                    new += placed.place >= closed_before.get(placed.part, 0)
                    latest = max(latest, pc.max(placed.messages["timestamp"]).as_py())
            last |= {part: (one.place, _Digest.of([one]).hex()) for part, one in blocks.items()}
        if before is None and earliest is not None:
            self._check_origin(earliest)
        # What came late, after the last request's period had closed, is one period's to count.
        if ended and not new and latest < start:
            write_whole(self._folder / ENDED, json.dumps({"before": number}))
            return None
        found = PeriodManifest(
            number=number,
            begins=first | dict(begins),
            ends=cuts.past,
            next=cuts.before,
            messages=counted.messages,
            digest=counted.hex(),
            log=self._identity,
            last=last,
            before="" if before is None else before.identity,
        )
        write_whole(self._file(number), json.dumps(dataclasses.asdict(found), indent=1))
        return found

    def _check_once(self, there: PeriodManifest) -> None:
        """`_check` the last period that has closed, of those that were there at the first look."""
        if self._is_same:
            return
        found = (file.stem.removeprefix("period-") for file in self._folder.glob("period-*.json"))
        # Others are drafts: of who writes one now, or was killed as it did.
        closed = [int(number) for number in found if number.isdecimal()]
        self._check(self._manifest(max(closed)) or there)
        self._is_same = True

    def _check(self, there: PeriodManifest) -> None:
        """`DataError` where the log has others in the place of the last messages of a period."""
        if there.log and (log := self._identity) and log != there.log:
            raise self._another(there, f"it was log {there.log}, and is {log}: it began anew")
        begins = {part: place for part, (place, _) in there.last.items()}
        ends = {part: there.ends[part] for part in begins}
        looked_at = 0
        for shard in range(self._log.shards):
            found: dict[str, _Digest] = {}
            try:
                for placed in self._log.between(shard, begins, ends):
                    found.setdefault(placed.part, _Digest()).add(placed)
            except DeletedMessages:  # what is read may be; the next period says what it needs
                continue
            except DataError as error:
                raise self._another(there, str(error).rstrip(".")) from error
            for part, counted in found.items():
                place, digest = there.last[part]
                if counted.hex() != digest:
                    raise self._another(
                        there, f"in part {part!r} other messages lie from place {place:,} on"
                    )
            looked_at += bool(found)
            if looked_at == LOOKED_AT:
                return

    def _another(self, there: PeriodManifest, why: str) -> DataError:
        return DataError(
            f"{self._folder}: its periods are not of {self._log.name} as it is now. Where period "
            f"{there.number} closed, {why}. Give this run another `folder`; or, to go on "
            "with these periods, the log that they were made of."
        )

    @property
    def _identity(self) -> str:
        """Of the log that is in its place now; not each kind of log has one."""
        return str(getattr(self._log, "identity", ""))

    def _check_origin(self, earliest: int) -> None:
        """Report a first period that begins long before the first message, or in s."""
        origin = self.config.origin
        if _counts_seconds(origin, earliest):
            raise RegistryError(
                f"is {origin}, in ms since 1970, and messages come at {earliest}: it seems to "
                "count s. Write it in ms.",
                "dataset.origin",
            )
        empty = (earliest - origin) // self.config.period_ms
        if empty >= MANY_EMPTY:
            warnings.warn(
                f"period 0 begins at {origin}, and messages are seen {empty:,} periods later: "
                "those between are gone through one by one. `origin` may be where messages begin.",
                NoticeWarning,
                stacklevel=2,
            )

    def _waits_for(self, cuts: Cuts, past: int) -> str:
        behind = "; ".join(cuts.behind[:3])
        if len(cuts.behind) > 3:
            behind += f" and {len(cuts.behind) - 3} more"
        if cuts.latest is None:
            come = f"no writer has come to {self._log.name}"
        else:
            come = f"messages come up to {cuts.latest}, and nobody writes any more: "
            come += (
                "the writer that came furthest was killed, and the next one has not begun"
                if self.config.ends_when_sealed
                else "have a writer go on, or set `ends_when_sealed`"
            )
        unit = ""
        if cuts.latest is not None and _counts_seconds(cuts.latest, past):
            unit = ": these times seem to count s, and ms are meant"
        return f"{behind or come}; it closes at {past}{unit}"

    def _check_clock(self, cuts: Cuts) -> None:
        """`DataError` where a message would close all periods to come before their time."""
        now = int(self._clock() * 1000)
        if cuts.latest is not None and cuts.latest > now + AHEAD_MS:
            raise DataError(
                f"{self._log.name}: a message has the time {cuts.latest}, and it is {now} by this "
                "machine's clock, in ms since 1970. Later periods would close there, and what its "
                "writer adds would be in none. Have the service write ms, and take what it wrote "
                "out of the log (of shard files: all files of the writer whose marks/*.log has "
                "that time), or begin a log anew. If it is this clock that is wrong, set it: "
                "nothing has closed by it."
            )

    def _ends_before(self, number: int) -> bool:
        config = self.config
        if config.until is not None and config.origin + number * config.period_ms >= config.until:
            return True
        file = self._folder / ENDED
        found = self._read_json(file)
        try:
            return found is not None and number >= int(found["before"])
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(file, str(error)) from error

    def _tell_of_later(self) -> None:
        """Say, once, that more was written after the data had ended: it is in no period."""
        ended = self._read_json(self._folder / ENDED)
        if self._reported or ended is None:
            return
        self._reported = True
        last = self._manifest(int(ended["before"]) - 1)
        try:
            cuts = self._log.cuts({}, NEVER, NEVER)
        except DataError:  # nobody needs more of the log
            return
        if last and (cuts.behind or any(n > last.ends.get(one, 0) for one, n in cuts.past.items())):
            warnings.warn(
                f"{self._log.name}: more was written after the data had ended, and is in no "
                f"period. To read it, remove {self._folder / ENDED}, which says that they ended; "
                "to wait for writers that come later, leave out `ends_when_sealed`.",
                NoticeWarning,
                stacklevel=2,
            )

    @staticmethod
    def _read_json(file: Path) -> Mapping[str, Any] | None:
        if not file.exists():
            return None
        try:
            found: Mapping[str, Any] = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise _unreadable(file, str(error)) from error
        return found

    def _manifest(self, number: int) -> PeriodManifest | None:
        file = self._file(number)
        found = self._read_json(file)
        try:
            return None if found is None else PeriodManifest(**found)
        except TypeError as error:
            raise _unreadable(file, str(error)) from error

    @cached_property
    def _vocabularies(self) -> Mapping[Location, str]:
        """As they were when the first period was asked for."""
        return self.config.vocabulary_digests()

    def _ends_of(self, number: int) -> Mapping[str, int]:
        if (found := self._manifest(number)) is None:
            raise DataError(
                f"{self._file(number)}: is not there, and a later period counts by it which events "
                "came when. Take it from a copy, or start a new run, with another `folder`."
            )
        return found.ends

    def _file(self, number: int) -> Path:
        return self._folder / f"period-{number:06}.json"


class LogPeriod(Period):
    """The samples of one period."""

    def __init__(
        self,
        config: GrowingLogConfig,
        log: GrowingLog | HeldGrowingLog,
        manifest: PeriodManifest,
        ends_of: Callable[[int], Mapping[str, int]],
        vocabularies: Mapping[Location, str] = {},
    ) -> None:
        """`ends_of` gives the places at which an earlier period closed; `vocabularies` are those of
        ids, each with its digest."""
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
        """Both splits in one pass, and join.json beside them: what came."""
        if not any((folder / split).exists() for split in SPLITS):
            report = PeriodReport()
            self.config.write(folder, self._noted(report, folder), report, progress)
            report.tell(f"period {self.manifest.number}")
        return super().prepare(folder, progress)

    def _noted(self, report: PeriodReport, folder: Path) -> Iterator[pa.Table]:
        yield from self._samples(report)
        write_whole(folder / JOINED, json.dumps(report.to_dict(), indent=2))

    def counts(self, folder: Path) -> Mapping[str, int]:
        found = json.loads((folder / JOINED).read_text())
        return {name: found[name] for name in COUNTS}

    def verify(self) -> None:
        """What has expired since cannot be compared: tables that were made of it are taken as they
        are, and no others are made."""
        one = self.manifest
        try:
            found = _Digest.of(
                placed
                for shard in range(self._log.shards)
                for placed in self._log.between(shard, one.begins, one.ends)
            )
        except ExpiredMessages:
            return
        except DataError as error:
            raise self._changed(str(error).rstrip(".")) from error
        self._hold_to(found)

    def _hold_to(self, found: _Digest) -> None:
        """`DataError` where messages are others than those that the period was made of."""
        if (found.messages, found.hex()) != (self.manifest.messages, self.manifest.digest):
            raise self._changed(
                f"{found.messages:,} messages lie there now, with digest {found.hex()}; there were "
                f"{self.manifest.messages:,}, with {self.manifest.digest}"
            )

    def _changed(self, what: str) -> DataError:
        return DataError(
            f"{self._log.name}: below the places at which period {self.manifest.number} closed the "
            f"log is not what it was: {what}. Resume with the log as it was, or start a new run, "
            "with another `folder`."
        )

    def _samples(self, report: PeriodReport) -> Iterator[pa.Table]:
        """The samples of each stream of the log; the report is whole at the end."""
        shards = range(self._log.shards)
        by_session = self._log.route == "session"
        decoder = self.config.decoder(self._log.route)
        join = PeriodJoin(decoder, self.config.join, self._bounds(), report)
        counted = _Digest()
        for group in [[shard] for shard in shards] if by_session else [[*shards]]:
            samples = join.samples(_CountedOnce(partial(self._read, group), counted))
            yield from self.config.held_to(self._vocabularies, samples)
        self._hold_to(counted)

    def _bounds(self) -> PeriodBounds:
        config, number = self.config, self.manifest.number
        first = PeriodBounds.first(number, config.period_ms, config.join)
        return PeriodBounds(
            number=number,
            start=config.origin + number * config.period_ms,
            length=config.period_ms,
            ends=[*(self._ends_of(one) for one in range(first, number)), self.manifest.ends],
        )

    def _read(self, shards: Sequence[int]) -> Iterator[Placed]:
        """The messages of a stream, cut where periods closed."""
        places = (self.manifest.begins, *self._bounds().ends)
        streams = (self._log.between(shard, *places) for shard in shards)
        return heapq.merge(*streams, key=_first_time)


class _Digest:
    """Of messages, in the order of each part, however they are cut into batches and merged."""

    @classmethod
    def of(cls, blocks: Iterable[Placed]) -> _Digest:
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
    """What `read` gives, which is counted when it is read for the first time."""

    def __init__(self, read: Callable[[], Iterator[Placed]], counted: _Digest) -> None:
        self._read, self._counted = read, counted
        self._again = False

    def __call__(self) -> Iterator[Placed]:
        again, self._again = self._again, True
        for placed in self._read():
            if not again:
                self._counted.add(placed)
            yield placed


def _counts_seconds(time: int, other: int) -> bool:
    """Whether a time seems to be in s, by one that is in ms."""
    low, high = SECONDS
    return low <= time < high <= other


def _first_time(placed: Placed) -> int:
    first: int = pc.min(placed.messages["timestamp"]).as_py()
    return first


def _unreadable(file: Path, why: str) -> DataError:
    return DataError(
        f"{file}: is damaged, or of another version ({why}). Take it from a copy, or remove it: it "
        "is made again from the log, and a resume says where that gives another period."
    )


def build_growing_log(config: GrowingLogConfig, context: Context) -> GrowingLogDataset:
    log = context.neighbours["log"]
    if not isinstance(log, GrowingLog):
        raise RegistryError(
            f"{type(log).__name__} can only be read as it is by now: it has no `cuts` and "
            "`between` of recd_plugins.api.GrowingLog. Choose zstd_shards, or `dataset: logged`.",
            "log",
        )
    ours = isinstance(log, KafkaLog | ZstdShards)
    return GrowingLogDataset(config, log if ours else HeldGrowingLog(log), context.folder)
