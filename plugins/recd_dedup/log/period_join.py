"""The join of a period: everything that came for its requests is known before a row is written.

The messages between a period's places are read twice: first their heads, which decide labels and
counts, then the features of its requests. So the result depends only on the times and places of
messages, not on their order or on a writer's clock that jumps.

Let t be the time of an event, and a the period in which it came: the first one that closed after
its place. If no request takes it, it is counted in the period max(a, that of t - window), which has
seen all requests that may take it except late ones. A request that comes after that still takes it:
the event is counted a second time, and as recovered. So over all periods

    requests = samples + duplicate_requests + late_requests
    events = positives + duplicate_events + late_events + orphan_events - recovered_events

where all copies of a request have one time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recd_dedup.hashing import I64
from recd_dedup.log.codec import Decoder, read_by
from recd_dedup.log.join import ENOUGH, MOST_LOST, JoinConfig, JoinReport, as_samples
from recd_plugins.api import DataError, so_many
from recd_plugins.api.data import Placed

__all__ = ["COUNTS", "PeriodBounds", "PeriodJoin", "PeriodReport"]

T = TypeVar("T")

KEPT = 64 << 20
"""Bytes of messages that a stream keeps in memory for its second reading."""
FAR = 1 << 61
"""A time beyond which, before or after 1970, all are taken for the same: no period lies there, and
the differences of two such times still fit 64 bits."""

COUNTS = (
    "samples",
    "positives",
    "duplicate_requests",
    "late_requests",
    "events",
    "duplicate_events",
    "late_events",
    "orphan_events",
    "recovered_events",
    "left_out",
)
"""The numbers of a report that become a run's metrics."""


@dataclass(kw_only=True)
class PeriodReport(JoinReport):
    """What came in a period; each message is counted in only one period. An orphan is an event
    whose request is in no period, or came before it by more than the window."""

    late_requests: int = 0
    """Requests of this period or an earlier one that came after their period had closed."""
    recovered_events: int = 0
    """Events that an earlier period counted as late or orphans, but whose request came in this
    one."""

    def to_dict(self) -> dict[str, int | dict[str, int]]:
        """The report without what waited: nothing in a period does."""
        found = super().to_dict()
        del found["most_waiting"]
        return found

    def _doubts(self) -> Iterator[str]:
        yield from super()._doubts()
        if self.late_requests > max(ENOUGH, MOST_LOST * self.requests):
            yield (
                "many requests came after their period had closed, and are in no period: raise "
                "`join.disorder_ms` (for Kafka also `log.quiet_ms`), unless a writer's clock is "
                "ahead; messages from before `origin` are always late"
            )

    def __str__(self) -> str:
        late = f"; late: {so_many(self.late_requests, 'request')}" if self.late_requests else ""
        return super().__str__() + late


@dataclass(frozen=True, kw_only=True)
class PeriodBounds:
    """A period's interval of time, and its places together with those of the periods before it."""

    number: int
    start: int
    """The time at which it begins."""
    length: int
    ends: Sequence[Mapping[str, int]]
    """By part, the places at which it closed, preceded by those of earlier periods that may have
    counted an event that this one takes."""

    @property
    def end(self) -> int:
        return self.start + self.length

    @staticmethod
    def first(number: int, length: int, join: JoinConfig) -> int:
        """The period with which `ends` begin: at least the previous one, which shows what is
        new."""
        reach = math.ceil((join.window_ms + join.disorder_ms) / length)
        return max(0, number - max(1, reach))

    def came(self, part: str, place: int) -> int:
        """The period in which a message at this place came, or the first known one."""
        before = self.number - len(self.ends) + 1
        return before + next(n for n, ends in enumerate(self.ends) if place < ends.get(part, 0))


class _Heads(NamedTuple):
    """Messages, each [N], without their features."""

    ids: I64
    times: I64
    came: I64
    """The period in which each came."""

    @classmethod
    def joined(cls, parts: Sequence[_Heads]) -> _Heads:
        none = np.empty(0, np.int64)
        columns = zip((none, none, none), *parts, strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def where(self, which: NDArray[np.bool_] | I64) -> _Heads:
        return _Heads(*(column[which] for column in self))


class _Asked:
    """Requests by their ids: the earliest copy of each, and the first one that came."""

    def __init__(self, requests: _Heads) -> None:
        ids, times, came = requests
        order = np.lexsort((times, ids))  # among copies with the same time, the first stays first
        ids = ids[order]
        starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])) if ids.size else order
        self.ids, self.copies = ids[starts], order[starts]
        self.times = times[self.copies]
        self.came = np.minimum.reduceat(came[order], starts) if ids.size else came

    def of(self, ids: I64) -> tuple[NDArray[np.bool_], I64]:
        """Whether each id is that of a request, and the number of that request; [N], [N]."""
        if not self.ids.size:
            return np.zeros(ids.size, np.bool_), np.zeros(ids.size, np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return self.ids[at] == ids, at


class _Kept:
    """What `read` yields; a second iteration reads it again, unless it was small enough to be
    kept."""

    def __init__(self, read: Callable[[], Iterator[Placed]], most: int) -> None:
        self._read, self._room = read, most
        self._blocks: list[Placed] = []
        self._whole = False

    def __iter__(self) -> Iterator[Placed]:
        if self._whole:
            yield from self._blocks
            return
        for placed in self._read():
            self._room -= placed.messages.nbytes
            if self._room >= 0:
                self._blocks.append(placed)
            else:
                self._blocks.clear()
            yield placed
        self._whole = self._room >= 0


class PeriodJoin:
    """Joins the messages of a period, one stream after another; the report counts all streams."""

    def __init__(
        self,
        decoder: Decoder,
        config: JoinConfig,
        bounds: PeriodBounds,
        report: PeriodReport,
        keep: int = KEPT,
    ) -> None:
        """`keep` is how many bytes of a stream are kept in memory; a longer stream is read
        twice."""
        self._keep = keep
        self._decoder, self._config, self._bounds = decoder, config, bounds
        self._report = report

    def samples(self, read: Callable[[], Iterator[Placed]]) -> Iterator[pa.Table]:
        """The samples of a stream that `read` reads from the period's begin to its end, in the
        order of their requests."""
        stream = _Kept(read, self._keep)
        requests, events = self._heads(stream)
        own = requests.where(requests.times < self._bounds.end)
        asked = _Asked(own)
        kept = np.zeros(own.ids.size, np.bool_)
        kept[asked.copies] = True
        positive = np.zeros(own.ids.size, np.bool_)
        later = _Asked(requests.where(requests.times >= self._bounds.end))
        positive[asked.copies[self._positive(asked, later, events)]] = True
        self._report.requests += own.ids.size
        self._report.duplicate_requests += own.ids.size - asked.ids.size
        begin = 0
        for placed in stream:
            part, place, messages = placed
            heads = _read(self._decoder.heads, placed)
            here = np.flatnonzero(heads.requests & self._within(messages["timestamp"].to_numpy()))
            these = slice(begin, begin := begin + here.size)
            if not np.array_equal(own.ids[these], heads.ids[here]):
                raise _changed(f"{part}, from place {place:,} on")
            if (which := here[kept[these]]).size:
                rows = _read(self._decoder.decode, placed, which).requests.rows
                labels = positive[these][kept[these]]
                yield as_samples(self._decoder.schema, rows, labels, self._report)
        if begin < own.ids.size:
            raise _changed(f"period {self._bounds.number}: a part of the log")

    def _within(self, times: I64) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (times >= self._bounds.start) & (times < self._bounds.end)
        return found

    def _heads(self, stream: Iterable[Placed]) -> tuple[_Heads, _Heads]:
        """The requests of this period and later ones, and the events that this period takes or
        counts."""
        bounds, join, report = self._bounds, self._config, self._report
        first, last = bounds.start - join.disorder_ms, bounds.end + join.window_ms
        requests: list[_Heads] = []
        events: list[_Heads] = []
        watermark = -math.inf
        for placed in stream:
            part, place, messages = placed
            ids, is_event, is_request = _read(self._decoder.heads, placed)
            times = messages["timestamp"].to_numpy().clip(-FAR, FAR)
            came = bounds.came(part, place)
            new = came == bounds.number
            heads = _Heads(ids, times, np.full(ids.size, came))
            takes = is_event & (times >= first) & (times < last)
            counts = is_event & (times < bounds.start + join.window_ms) & new
            requests.append(heads.where(is_request & (times >= bounds.start)))
            events.append(heads.where(takes | counts))
            if new:
                report.events += int(is_event.sum())
                report.late_requests += int((is_request & (times < bounds.start)).sum())
                report.left_out += int((~is_event & ~is_request).sum())
            joins = takes | (is_request & self._within(times))
            report.disordered += int((joins & (times < watermark - join.disorder_ms)).sum())
            watermark = max(watermark, times.min())
        return _Heads.joined(requests), _Heads.joined(events)

    def _positive(self, asked: _Asked, later: _Asked, events: _Heads) -> I64:
        """The numbers of the requests that events make positive; all events are counted."""
        bounds, join, report = self._bounds, self._config, self._report
        known, at = asked.of(events.ids)
        since = np.zeros(events.ids.size, np.int64)
        since[known] = events.times[known] - asked.times[at[known]]
        taken = known & (since >= -join.disorder_ms) & (since <= join.window_ms)
        after = known & (since > join.window_ms)
        origin = bounds.start - bounds.number * bounds.length
        due = np.maximum((events.times - join.window_ms - origin) // bounds.length, events.came)
        left = ~taken & ~after & (due == bounds.number)
        others, there = later.of(events.ids)
        if later.ids.size:  # events of a later period's request are counted there
            left &= ~others | (events.times < later.times[there] - join.disorder_ms)
        late = left & ~known & ~others & (events.times < bounds.start + join.window_ms)
        positive = np.unique(at[taken])
        report.positives += positive.size
        report.duplicate_events += int(taken.sum()) - positive.size
        report.late_events += int(after.sum() + late.sum())
        report.orphan_events += int((left & ~late).sum())
        report.recovered_events += int((due[taken] < asked.came[at[taken]]).sum())
        return positive


def _read(read: Callable[[pa.RecordBatch], T], placed: Placed, rows: I64 | None = None) -> T:
    part, place, messages = placed
    return read_by(read, messages, rows, otherwise=f"part {part!r}, from place {place:,} on")


def _changed(what: str) -> DataError:
    return DataError(
        f"{what} holds other messages than a moment ago. Restore the log from a copy, and let only "
        "its writers write to it."
    )
