"""The `growing_log` dataset: a log that services still write, joined period by period.

Period e is the requests whose time is in [origin + e P, origin + (e + 1) P), with their events. A
part of the log has come past it once a message is later than the period's end by the join's window
and disorder; what comes behind that place is late, and in no period. So which messages are a
period's is decided by what lies in each part alone, and not by who looks when.

A period that closed has a manifest beside the prepared tables, written by whoever came first: its
places in each part, and a digest of the messages between them. A writer that begins later is in the
periods that close later.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_dedup.hashing import I64
from recd_dedup.log.codec import flat
from recd_dedup.log.join import Join, JoinReport
from recd_dedup.log.logged_dataset import LoggedConfig
from recd_plugins.api import Context, DataError, GrowingLog, Range, RegistryError
from recd_plugins.api.data import (
    SPLITS,
    Cuts,
    GrowingDataset,
    NotClosed,
    Period,
    Placed,
    Progress,
    Schema,
    Split,
    Tables,
    TableWriter,
    silent,
    write_whole,
)

__all__ = ["GrowingLogConfig", "GrowingLogDataset", "LogPeriod", "build_growing_log"]

JOINED = "join.json"

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
    """The time at which the data end, in ms since 1970: no period begins then or later."""
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
    closed_before: Mapping[str, int]
    """By part, the place at which the period before closed: what is earlier and comes later is
    late."""
    next: Mapping[str, int]
    """The places at which the next period begins."""
    messages: int
    """The messages between begin and end, some of which are the neighbours'."""
    digest: str
    """Of these messages."""
    before: str
    """The digest of the manifest before."""

    @cached_property
    def identity(self) -> str:
        """Names all that the period and those before it were made of."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class GrowingLogDataset(GrowingDataset):
    """The periods of a log, whose manifests lie in a folder of the registry's."""

    def __init__(self, config: GrowingLogConfig, log: GrowingLog, folder: Path) -> None:
        self.config = config
        self.patience, self.keep = config.patience, config.keep
        self._log = log
        decides = [config.origin, config.period_ms, dataclasses.asdict(config.join), log.name]
        name = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
        self._folder = folder / f"periods-{name}"

    @property
    def schema(self) -> Schema:
        return self.config.schema

    def fingerprint(self) -> str:
        return self._folder.name

    def period(self, number: int) -> LogPeriod | None:
        """The period of a manifest; one that has none is looked for in the log, by one process at a
        time."""
        if self._ends_before(number):
            return None
        if (there := self._manifest(number)) is None:
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
        return None if there is None else LogPeriod(self.config, self._log, there)

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
        if self.config.ends_when_sealed and cuts.ended:
            if cuts.latest is None or cuts.latest < start:
                write_whole(self._folder / "ended.json", json.dumps({"before": number}))
                return None
        elif cuts.behind or cuts.latest is None or cuts.latest < past:
            raise NotClosed(_waits_for(cuts, past), cuts.behind)
        counted = _Digest()
        for shard in range(self._log.shards):
            for placed in self._log.between(shard, begins, cuts.past):
                counted.add(placed.messages)
        found = PeriodManifest(
            number=number,
            begins=begins,
            ends=cuts.past,
            closed_before={} if before is None else before.ends,
            next=cuts.before,
            messages=counted.messages,
            digest=counted.hex(),
            before="" if before is None else before.identity,
        )
        write_whole(self._file(number), json.dumps(dataclasses.asdict(found), indent=1))
        return found

    def _check_clock(self, cuts: Cuts) -> None:
        """`DataError` where a message would close all periods to come before their time."""
        now = int(time.time() * 1000)
        if cuts.latest is not None and cuts.latest > now + AHEAD_MS:
            raise DataError(
                f"{self._log.name}: a message has the time {cuts.latest}, and it is {now} by this "
                "machine's clock, in ms since 1970. Later periods would close there, and what its "
                "writer adds would be in none. Have the service write ms, and take what it wrote "
                "out of the log (of shard files: all files of the writer whose marks/*.log has "
                "that time), or begin a log anew."
            )

    def _ends_before(self, number: int) -> bool:
        config = self.config
        if config.until is not None and config.origin + number * config.period_ms >= config.until:
            return True
        ended = self._folder / "ended.json"
        return ended.exists() and number >= json.loads(ended.read_text())["before"]

    def _manifest(self, number: int) -> PeriodManifest | None:
        file = self._file(number)
        return PeriodManifest(**json.loads(file.read_text())) if file.exists() else None

    def _file(self, number: int) -> Path:
        return self._folder / f"period-{number:06}.json"


class LogPeriod(Period):
    """The samples of one period."""

    def __init__(self, config: GrowingLogConfig, log: GrowingLog, manifest: PeriodManifest) -> None:
        self.config, self.manifest = config, manifest
        self._log = log

    @property
    def schema(self) -> Schema:
        return self.config.schema

    def fingerprint(self) -> str:
        return self.manifest.identity

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        for samples in self._samples(PeriodReport()):
            yield self.config.of_split(samples, split)

    def prepare(self, folder: Path, progress: Progress = silent) -> Tables:
        """Both splits in one pass, and join.json beside them: what came."""
        if not any((folder / split).exists() for split in SPLITS):
            report = PeriodReport()
            with (
                TableWriter(folder / "train", self.schema) as train,
                TableWriter(folder / "test", self.schema) as test,
            ):
                for samples in self._samples(report):
                    train.write(self.config.of_split(samples, "train"))
                    test.write(self.config.of_split(samples, "test"))
                    progress("joining requests and events", report.samples, None)
                write_whole(folder / JOINED, json.dumps(report.to_dict(), indent=2))
            report.tell(f"period {self.manifest.number}")
        return super().prepare(folder, progress)

    def counts(self, folder: Path) -> Mapping[str, int]:
        found = json.loads((folder / JOINED).read_text())
        return {name: found[name] for name in COUNTS}

    def verify(self) -> None:
        found = _Digest()
        try:
            for shard in range(self._log.shards):
                for placed in self._log.between(shard, self.manifest.begins, self.manifest.ends):
                    found.add(placed.messages)
        except DataError as error:
            raise self._changed(str(error).rstrip(".")) from error
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
        for group in [[shard] for shard in shards] if by_session else [[*shards]]:
            messages = _Messages(self, self._log, group)
            join = Join(self.schema, self.config.join, report, self.config.decoder())
            for first, taken in messages:
                yield from join.add(taken, first)
            yield from join.finish()
            messages.report(report)
        report.settle()


@dataclass(kw_only=True)
class PeriodReport(JoinReport):
    """What came in a period, each message in one period alone; an orphan is an event whose request
    is in no period, or came longer before it than the window."""

    late_requests: int = 0
    """Requests of this period or an earlier one that came when theirs had closed."""

    def __post_init__(self) -> None:
        self._events = self._late = self._orphans = 0

    def count(self, *, events: int, late: int, orphans: int) -> None:
        """The events of a stream, of which the join sees only what may be the period's own, and
        some that are its neighbours'."""
        self._events += events
        self._late += late
        self._orphans += orphans

    def settle(self) -> None:
        """The numbers of events in the place of the join's."""
        self.events, self.orphan_events = self._events, self._orphans
        self.late_events += self._late


COUNTS = (
    "samples",
    "positives",
    "duplicate_requests",
    "late_requests",
    "events",
    "duplicate_events",
    "late_events",
    "orphan_events",
    "left_out",
)
"""The numbers of a report that a run's metrics have."""


class _Messages:
    """The messages of some shards that a period's join takes, counted as they pass."""

    def __init__(self, period: LogPeriod, log: GrowingLog, shards: Sequence[int]) -> None:
        config, self._manifest = period.config, period.manifest
        self._join, self._decoder = config.join, config.decoder()
        self._start = config.origin + self._manifest.number * config.period_ms
        self._end = self._start + config.period_ms
        one = self._manifest
        places = (one.begins, one.closed_before, one.ends)
        streams = (log.between(shard, *places) for shard in shards)
        self._placed = heapq.merge(*streams, key=_first_time)
        self._events = self._late_requests = self._left_out = 0
        self._heads: dict[str, list[I64]] = {"known": [], "overdue": [], "open": []}
        """Ids and times [2, n] of requests of the period and later ones; of events that may be
        late, and that may be orphans."""

    def __iter__(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """What the join takes of each block, and the first time of all of it: by the first of what
        it takes it would hear of a later time before an earlier one of another writer."""
        start, end, window = self._start, self._end, self._join.window_ms
        for part, place, messages in self._placed:
            heads = self._decoder.heads(messages)
            times = messages["timestamp"].to_numpy()
            new = place >= self._manifest.closed_before.get(part, 0)
            requests, events = heads.requests, heads.events
            own = requests & (times >= start) & (times < end)
            for name, which in (
                ("known", requests & (times >= start)),
                ("overdue", events & (times < start + window) & new),
                ("open", events & (times >= start + window) & (times < end + window)),
            ):
                self._heads[name].append(np.stack([heads.ids[which], times[which]]))
            if new:
                self._events += int(events.sum())
                self._left_out += int((~requests & ~events).sum())
                self._late_requests += int((requests & (times < start)).sum())
            takes = events & (times >= start - self._join.disorder_ms) & (times < end + window)
            yield int(times.min()), messages.filter(pa.array(own | takes))

    def report(self, report: PeriodReport) -> None:
        """Count what has passed."""
        none = np.empty((2, 0), np.int64)
        heads = {name: np.hstack([none, *found]) for name, found in self._heads.items()}
        known, times = heads["known"]
        order = np.argsort(times, kind="stable")
        ids, first = np.unique(known[order], return_index=True)
        asked = times[order[first]]

        def unknown_and_early(name: str) -> tuple[int, int]:
            """Events without a request, and those so long before it that they are another's."""
            events, at = heads[name]
            has = np.isin(events, ids)
            due = asked[np.searchsorted(ids, events[has])] - self._join.disorder_ms
            return int((~has).sum()), int((at[has] < due).sum())

        late, early = unknown_and_early("overdue")
        orphans = early + sum(unknown_and_early("open"))
        report.count(events=self._events, late=late, orphans=orphans)
        report.late_requests += self._late_requests
        report.left_out += self._left_out


class _Digest:
    """Of messages, however they are cut into batches."""

    def __init__(self) -> None:
        self.messages = 0
        self._parts = [hashlib.sha256() for _ in range(4)]

    def add(self, messages: pa.RecordBatch) -> None:
        sessions, times, texts = messages.columns
        lengths = pc.binary_length(texts)
        columns = (sessions.to_numpy(), times.to_numpy(), lengths.to_numpy(), flat(texts))
        for part, column in zip(self._parts, columns, strict=True):
            part.update(np.ascontiguousarray(column).data)
        self.messages += messages.num_rows

    def hex(self) -> str:
        whole = b"".join(part.digest() for part in self._parts)
        return hashlib.sha256(whole).hexdigest()[:32]


def _first_time(placed: Placed) -> int:
    first: int = pc.min(placed.messages["timestamp"]).as_py()
    return first


def _waits_for(cuts: Cuts, past: int) -> str:
    behind = "; ".join(cuts.behind[:3])
    more = f" and {len(cuts.behind) - 3} more" if len(cuts.behind) > 3 else ""
    come = "no writer has come" if cuts.latest is None else f"messages come up to {cuts.latest}"
    return f"{behind or come}{more}, and it closes at {past}"


def build_growing_log(config: GrowingLogConfig, context: Context) -> GrowingLogDataset:
    log = context.neighbours["log"]
    if not isinstance(log, GrowingLog):
        raise RegistryError(
            f"{type(log).__name__} can only be read as it is by now: it has no `cuts` and "
            "`between` of recd_plugins.api.GrowingLog. Choose zstd_shards, or `dataset: logged`.",
            "log",
        )
    return GrowingLogDataset(config, log, context.folder)
