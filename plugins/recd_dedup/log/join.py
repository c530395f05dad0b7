"""Features and later events join into labelled samples, in one pass over the logs.

Time is the logs': the watermark W is the latest first timestamp of the blocks so far, and
what comes is at least W - disorder_ms old. A request waits until no event in its window can
come any more; then it is a sample: positive if one came.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recd_dedup.log.codec import Decoder, Requests, read_by
from recd_plugins.api import Config, NoticeWarning, Range, so_many
from recd_plugins.api.data import IDS, LogRoute, Schema

__all__ = [
    "ENOUGH",
    "MOST_LOST",
    "Join",
    "JoinConfig",
    "JoinReport",
    "Readable",
    "as_samples",
    "joined",
    "samples_of",
    "streams_of",
]


@dataclass(frozen=True, kw_only=True)
class JoinConfig(Config):
    """The time for which requests and events look for each other."""

    window_ms: Annotated[int, Range(ge=0)] = 30 * 60_000
    """The time after a request, in ms, within which an event makes it positive; by default 30
    minutes. Memory holds the request's features that long."""
    disorder_ms: Annotated[int, Range(ge=0)] = 60_000
    """The time in ms by which messages of a log shard may be out of order, by default a minute.
    Raise it if clocks differ by more, or messages are delivered again later."""
    remember_ms: Annotated[int, Range(ge=0)] = 60 * 60_000
    """The time in ms, after its window, for which a request's id is remembered to recognise
    duplicates and late events; by default an hour. A period of `growing_log` knows all ids of its
    own requests."""


@dataclass(eq=False)
class _Group:
    """The requests of a block; without `rows` once they are written."""

    rows: pa.Table | None
    ids: list[int]
    times: list[int]
    positive: NDArray[np.bool_]
    last: int


class Join:
    """Joins the messages of one stream; `report` may be shared by many."""

    def __init__(
        self,
        decoder: Decoder,
        config: JoinConfig,
        report: JoinReport | None = None,
    ) -> None:
        self.config = config
        self.report = report if report is not None else JoinReport()
        self._decoder = decoder
        self._watermark = -math.inf
        self._groups: list[_Group] = []
        self._known: dict[int, tuple[_Group, int]] = {}
        self._early: dict[int, list[int]] = {}
        """Times of events whose request has not come yet, by its id."""

    def add(self, messages: pa.RecordBatch) -> Iterator[pa.Table]:
        """Add a block; yields the samples that nothing can change any more. Blocks come in the
        order of their first times."""
        if not messages.num_rows:
            return
        times = messages["timestamp"].to_numpy()
        self.report.disordered += int((times < self._watermark - self.config.disorder_ms).sum())
        self._watermark = max(self._watermark, int(times.min()))
        requests, events = read_by(self._decoder.decode, messages)
        self.report.left_out += messages.num_rows - requests.ids.size - events.ids.size
        self._take_requests(requests)
        self.report.events += events.ids.size
        for request, time in zip(events.ids.tolist(), events.timestamps.tolist(), strict=True):
            if request in self._known:
                self._take_event(*self._known[request], time)
            else:
                self._early.setdefault(request, []).append(time)
        yield from self._write_until(self._watermark - self.config.disorder_ms)

    def finish(self) -> Iterator[pa.Table]:
        """The samples that are still waiting at the end of the stream."""
        yield from self._write_until(math.inf)

    def _take_requests(self, requests: Requests) -> None:
        ids = requests.ids.tolist()
        first = {request: i for i, request in reversed([*enumerate(ids)])}
        keep = [
            i for i, request in enumerate(ids) if first[request] == i and request not in self._known
        ]
        self.report.requests += len(ids)
        self.report.duplicate_requests += len(ids) - len(keep)
        if not keep:
            return
        rows = requests.rows.take(pa.array(keep)) if len(keep) < len(ids) else requests.rows
        times = requests.timestamps[keep].tolist()
        positive = np.zeros(len(keep), np.bool_)
        group = _Group(rows, [ids[i] for i in keep], times, positive, max(times))
        self._groups.append(group)
        for i, request in enumerate(group.ids):
            self._known[request] = (group, i)
            for time in self._early.pop(request, ()):
                self._take_event(group, i, time)
        waiting = sum(len(group.ids) for group in self._groups if group.rows is not None)
        self.report.most_waiting = max(self.report.most_waiting, waiting)

    def _take_event(self, group: _Group, i: int, time: int) -> None:
        since = time - group.times[i]
        if since < -self.config.disorder_ms:
            self.report.orphan_events += 1  # it belongs to an earlier one with the same id
        elif since > self.config.window_ms:
            self.report.late_events += 1
        elif group.positive[i]:
            self.report.duplicate_events += 1
        elif group.rows is None:
            self.report.late_events += 1
        else:
            group.positive[i] = True
            self.report.positives += 1

    def _write_until(self, time: float) -> Iterator[pa.Table]:
        """Write samples, forget ids and stop waiting: no message older than `time` will come."""
        window, disorder = self.config.window_ms, self.config.disorder_ms
        for request in [
            request
            for request, times in self._early.items()
            if max(times) + disorder < time  # its request would have come by then
        ]:
            self.report.orphan_events += len(self._early.pop(request))
        kept = []
        for group in self._groups:
            if group.rows is not None and group.last + window < time:
                yield as_samples(self._decoder.schema, group.rows, group.positive, self.report)
                group.rows = None
            if group.rows is None and group.last + window + self.config.remember_ms < time:
                for request in group.ids:
                    del self._known[request]
            else:
                kept.append(group)
        self._groups = kept


class Readable(Protocol):
    """A log, or a part of one, that can be joined."""

    @property
    def shards(self) -> int: ...

    @property
    def route(self) -> LogRoute: ...

    def read(self, shard: int) -> Iterator[pa.RecordBatch]: ...


def streams_of(store: Readable) -> Iterator[Iterator[pa.RecordBatch]]:
    """The streams that can be joined separately: each shard of a log that is routed by session,
    else all shards merged."""
    shards = (store.read(shard) for shard in range(store.shards))
    if store.route == "session":
        yield from shards
    else:
        yield heapq.merge(*shards, key=lambda messages: pc.min(messages["timestamp"]).as_py())


def samples_of(
    messages: Iterable[pa.RecordBatch], decoder: Decoder, config: JoinConfig, report: JoinReport
) -> Iterator[pa.Table]:
    """The samples of one stream, in the order of its requests, block by block."""
    join = Join(decoder, config, report)
    for block in messages:
        yield from join.add(block)
    yield from join.finish()


def joined(
    store: Readable, decoder: Decoder, config: JoinConfig, report: JoinReport
) -> list[Iterator[pa.Table]]:
    """The samples of each stream of a log, joined as they are iterated.

    No session is in two streams, so each can be clustered by itself (O2 without a bucket pass).
    """
    return [samples_of(stream, decoder, config, report) for stream in streams_of(store)]


def as_samples(
    schema: Schema, rows: pa.Table, positive: NDArray[np.bool_], report: JoinReport
) -> pa.Table:
    """Rows of requests and their labels, as the columns of a table; missing features are filled and
    counted."""
    columns = {name: rows[name].combine_chunks() for name in rows.column_names}
    if schema.label in columns:  # a message's own
        report.positives += int((columns[schema.label].to_numpy() > 0).sum())
    else:
        columns[schema.label] = pa.array(positive.astype(np.float32))
    for name in (*schema.dense, *schema.sparse_names):
        column = columns[name]
        if column.null_count:
            report.missing.setdefault(name, 0)
            report.missing[name] += column.null_count
            columns[name] = _filled(column)
    for name in schema.sparse_names:
        having = pc.sum(pc.greater(pc.list_value_length(columns[name]), 0)).as_py() or 0
        report.with_ids[name] = report.with_ids.get(name, 0) + having
    report.samples += rows.num_rows
    return pa.table(columns).select(schema.columns).cast(schema.arrow())


def _filled(column: pa.Array) -> pa.Array:
    """The column with 0 for a missing number, and no ids for a missing list."""
    if not pa.types.is_list(column.type):
        return pc.fill_null(column, 0)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = np.concatenate(([0], lengths.cumsum())).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pc.list_flatten(column), type=IDS)


ENOUGH = 100
"""With this many samples, it is odd if no event came, or many without a request."""
MOST_LOST = 0.1
"""The share of events that may find no request without a warning."""


@dataclass(kw_only=True)
class JoinReport:
    """A request is a sample or a duplicate; an event makes a sample positive, or is counted as one
    of the others."""

    requests: int = 0
    """Inference messages."""
    samples: int = 0
    """Rows written."""
    duplicate_requests: int = 0
    """Requests whose id has come before; the first one counts."""
    events: int = 0
    """Event messages."""
    positives: int = 0
    """Samples that an event made positive."""
    duplicate_events: int = 0
    """Further events in the window of a positive sample."""
    late_events: int = 0
    """Events after their request's window, or after its sample was written."""
    orphan_events: int = 0
    """Events whose request did not come, or came too long ago to be remembered."""
    disordered: int = 0
    """Messages further behind the others than `disorder_ms`: if there are any, raise it."""
    left_out: int = 0
    """Messages by other programs that are neither request nor event, or cannot be read."""
    most_waiting: int = 0
    """The most samples that waited for events at a time, in memory."""
    missing: dict[str, int] = field(default_factory=dict)
    """Samples that lack a feature, by feature; it is 0 there, or has no ids."""
    with_ids: dict[str, int] = field(default_factory=dict, compare=False)
    """Samples that have ids, by feature: if there are none, messages may have another name for
    it."""

    def to_dict(self) -> dict[str, int | dict[str, int]]:
        return dataclasses.asdict(self)

    def warn(self, log: str) -> None:
        """Warn of what is probably not intended: labels that are all 0, or messages that are not
        used."""
        if doubts := [*self._doubts()]:
            warnings.warn(f"{log}: {'; '.join(doubts)}. {self}.", NoticeWarning, stacklevel=2)

    def _doubts(self) -> Iterator[str]:
        if not self.requests and self.events + self.left_out >= ENOUGH:
            yield "no message is a request: check the names of kinds"
        if self.left_out:
            yield "some messages are neither request nor event, or cannot be read"
        if self.samples < ENOUGH:
            return
        if not self.positives:
            yield "all labels are 0"
        if empty := [repr(name) for name, having in self.with_ids.items() if not having]:
            yield f"no sample has ids of {', '.join(empty)}: check whether messages have them"
        lost = self.late_events + self.orphan_events
        if lost <= MOST_LOST * self.events:
            pass
        elif self.late_events >= self.orphan_events:
            yield "many events are late: raise `join.window_ms` if they take long"
        else:
            yield (
                "many events have no request: check whether both have the same id, and whether a "
                "session's messages are in one log shard (else `log.route: message`)"
            )
        if self.disordered:
            yield "raise `join.disorder_ms`"

    def __str__(self) -> str:
        text = (
            f"{so_many(self.requests, 'request')} -> {so_many(self.samples, 'sample')} "
            f"({so_many(self.duplicate_requests, 'duplicate')}); {so_many(self.events, 'event')} "
            f"-> {so_many(self.positives, 'positive')} "
            f"({so_many(self.duplicate_events, 'duplicate')}, {self.late_events:,} late, "
            f"{so_many(self.orphan_events, 'orphan')})"
        )
        if self.missing:
            parts = (f"{name} in {count:,}" for name, count in sorted(self.missing.items()))
            text += f"; missing: {', '.join(parts)}"
        if self.left_out:
            text += f"; left out: {so_many(self.left_out, 'message')}"
        if self.disordered:
            text += (
                f"; {so_many(self.disordered, 'message')} came further out of order than allowed"
            )
        return text
