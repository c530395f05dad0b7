"""The thread of a worker that makes batches: first those that somebody waits for, then those that
clients announced, until the buffer is full."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from recd_dsi.service.buffer import Buffer, Key, size_of
from recd_dsi.service.job import MOST_BATCHES, BatchJob, Request
from recd_plugins.api import DataError, PluginError, RecdError
from recd_plugins.api.batch import Batch, RankBatches, batch_to_record
from recd_plugins.api.reading import Shares

__all__ = ["STREAMS", "TOGETHER", "TRIES", "Maker", "OpenJob"]

WAIT = 600.0
"""The most seconds that a call waits for its batch; callers have their own deadlines."""
CURSORS = 3
"""At how many places a worker reads at once: each place has up to three windows in memory, and a
fourth while one is gathered."""
STREAMS = 1024
"""The most clients whose announcements are remembered."""
STALE = 60.0
"""Seconds without a request after which a client may be gone: batches that were made ahead for it
make room first, and no more are made until it asks again."""
WINDOWS_AHEAD = 2
"""The windows that threads load ahead at each place."""
TRIES = 3
"""How often a stripe is read before it counts as damaged."""
TOGETHER, TOGETHER_BYTES = 16, 4 << 20
"""The most batches in one message, and their largest total size if there is more than one."""
LINGER = 0.02
"""Seconds that batches wait for later ones, because each message costs both sides. If a trainer
waits for the request, its first batch waits for none, and later batches wait for as many as the
trainer already has of the request."""
AHEAD = 256
"""After this many batches in a row that are already there, a worker looks no further ahead;
otherwise, each request would make it look through a whole epoch."""
EARLY_BATCHES = 32
"""How many batches of an epoch are made before it begins; they make room first."""
REST = 0.02
"""Seconds without a request after which a worker has time for an epoch that has not begun."""
ENDS = "the worker ends: ask another one."
PASSED = MOST_BATCHES
"""How many earlier batches may be made on the way to a batch, rather than reading a window anew: a
client asks for several bands at a time, and the first band may not be the first to arrive."""

Stream = tuple[str, int, int]
"""A job, a consumer and an epoch: `Request.stream`."""


class Maker:
    """Makes batches in its own thread, in the order in which they are needed."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._change = threading.Condition()
        self._demands: OrderedDict[Key, _Demand] = OrderedDict()
        self._announced: OrderedDict[tuple[str, Stream], _Announced] = OrderedDict()
        """By client and stream, what the latest request announced."""
        self._early: OrderedDict[Stream, _Announced] = OrderedDict()
        """The first batches of epochs that have not begun."""
        self._asked = 0.0
        """When the latest request was answered."""
        self._cursors: OrderedDict[tuple[Stream, int], _Cursor] = OrderedDict()
        self._closed = False
        self.made = self.rows = self.served = self.openings = 0
        self.seconds = 0.0
        threading.Thread(target=self._run, daemon=True, name="recd-maker").start()

    def announce(self, job: OpenJob, request: Request) -> None:
        """Note the batches that a client asks for, and those that it will ask for."""
        with self._change:
            self._announced.pop((request.client, request.stream), None)
            self._early.pop(request.stream, None)
            latest = self._announced[request.client, request.stream] = _Announced(job, request)
            latest.key(self._buffer)  # what is there now counts as made, even if it goes soon
            for one in [*self._announced.values()]:
                if one.at >= latest.at - STALE and len(self._announced) <= STREAMS:
                    break
                self._forget(one.request)
            self._announce_early(job, request.of_next_epoch)
            self._change.notify_all()

    def batches(self, job: OpenJob, request: Request, first: int) -> list[pa.RecordBatch]:
        """A batch, from the buffer or made now, and later ones that are there, or will be soon."""
        found = [self._batch(job, request, first, WAIT)]
        size = size_of(found[0])
        most = min(TOGETHER, max(1, TOGETHER_BYTES // size))
        last = min(first + most, request.stop) - 1
        # A waiting trainer already has some batches of the request: as many more come together.
        until = min(last, 2 * first - request.batch - 1) if request.awaited else last
        there: dict[int, pa.RecordBatch] = {}
        if until > first:
            # An error of a later batch is raised once that batch is the first.
            with contextlib.suppress(TimeoutError, RecdError):
                there[until] = self._batch(job, request, until, LINGER)
        for batch in range(first + 1, last + 1):
            record = there.get(batch) or self._buffer.get(Key(*request.stream, batch))
            size += 0 if record is None else size_of(record)
            if record is None or size > TOGETHER_BYTES:
                break
            found.append(record)
        with self._change:
            self.served += len(found)
            self._asked = time.monotonic()
            announced = self._announced.get((request.client, request.stream))
            if announced is not None:
                announced.handed.update(range(first, first + len(found)))
            self._change.notify_all()  # now there is room
        return found

    def close(self) -> None:
        """Make no more batches; waiting calls end as if the worker were gone."""
        with self._change:
            self._closed = True
            for demand in self._demands.values():
                demand.made.set_exception(flight.FlightUnavailableError(ENDS))
            self._demands.clear()
            self._change.notify_all()

    def _announce_early(self, job: OpenJob, request: Request | None) -> None:
        """Note what an epoch begins with, unless somebody has begun it already."""
        if request is None or any(stream == request.stream for _, stream in self._announced):
            return
        self._early[request.stream] = _Announced(job, request, most=EARLY_BATCHES)
        if len(self._early) > STREAMS:
            self._early.popitem(last=False)

    def _forget(self, request: Request) -> None:
        """Make nothing more ahead for a client."""
        del self._announced[request.client, request.stream]
        if all(stream != request.stream for _, stream in self._announced):
            self._buffer.unwant(request.stream)

    def _batch(self, job: OpenJob, request: Request, batch: int, seconds: float) -> pa.RecordBatch:
        key = Key(*request.stream, batch)
        found = self._buffer.get(key)
        if found is not None:
            return found
        with self._change:
            if self._closed:
                raise flight.FlightUnavailableError(ENDS)
            demand = self._demands.setdefault(key, _Demand(job, request, Future()))
            demand.calls += 1
            self._change.notify_all()
        try:
            return demand.made.result(seconds)
        finally:
            with self._change:
                demand.calls -= 1
                # From now on it is made in its turn, not before all announced batches.
                if not demand.calls and self._demands.get(key) is demand:
                    del self._demands[key]

    def _run(self) -> None:
        while (found := self._wait()) is not None:
            key, job, request, demanded = found
            try:
                record = self._buffer.get(key) if demanded else None
                if record is None:
                    self._make(key, job, request)
                else:
                    self._give(key, record)
            except RecdError as error:
                self._report(error, key, request, demanded)
            except Exception as error:
                wrong = f"a batch raised {type(error).__name__} when made: {error}"
                self._report(PluginError(wrong), key, request, demanded)

    def _wait(self) -> tuple[Key, OpenJob, Request, bool] | None:
        """The batch to make next, as soon as there is one, and whether somebody waits for it; None
        once the maker is closed."""
        with self._change:
            while (found := self._next()) is None and not self._closed:
                self._change.wait(REST if self._early else None)
            return None if found is None else (*found, found[0] in self._demands)

    def _report(self, error: RecdError, key: Key, request: Request, demanded: bool) -> None:
        """Give the error to whoever waits for the batch."""
        with self._change:
            # Somebody may have asked for it while it was made ahead.
            waiting = self._demands.pop(key, None)
            if waiting is not None:
                waiting.made.set_exception(error)
            if not demanded:
                # Whoever asks for it gets the error; until then, nothing is made ahead there.
                self._announced = OrderedDict(
                    (who, what)
                    for who, what in self._announced.items()
                    if what.request.stream != request.stream
                )
                self._early.pop(request.stream, None)

    def _give(self, key: Key, record: pa.RecordBatch) -> None:
        """Keep a batch, for whoever waits for it or will ask for it."""
        with self._change:
            waiting = self._demands.pop(key, None)
            wanted = waiting is None and key[:3] not in self._early
        self._buffer.put(key, record, wanted=wanted)
        if waiting is not None:
            waiting.made.set_result(record)

    def _next(self) -> tuple[Key, OpenJob, Request] | None:
        """The batch to make next: one that somebody waits for, or, if there is room, one that a
        client will ask for, or else one that an epoch will begin with; None if there is none."""
        if self._closed:
            return None
        for key, demand in self._demands.items():
            return key, demand.job, demand.request
        if not self._buffer.has_room():
            return None
        for announced in self._announced.values():
            ahead = announced.key(self._buffer)
            if ahead is not None:
                return ahead, announced.job, announced.request
        return self._next_early()

    def _next_early(self) -> tuple[Key, OpenJob, Request] | None:
        if time.monotonic() - self._asked < REST:
            return None
        for stream, announced in [*self._early.items()]:
            ahead = announced.key(self._buffer)
            if ahead is not None:
                return ahead, announced.job, announced.request
            del self._early[stream]
        return None

    def _make(self, key: Key, job: OpenJob, request: Request) -> None:
        """Make a batch at a place where its epoch is already being read, or at a new one."""
        began = time.perf_counter()
        place, cursor = self._cursor(key, job, request)
        while True:
            handed = next(cursor.batches, None)
            batch = None if handed is None else handed.batch
            if batch is None or isinstance(batch, RecdError):
                self._cursors.pop(place, None)
                raise batch or PluginError(f"an epoch ended before batch {key.batch}.")
            number = cursor.advance()
            record = batch_to_record(batch)
            # Count it first, so that whoever gets the batch finds it counted.
            self.made, self.rows = self.made + 1, self.rows + len(batch)
            self._give(key._replace(batch=number), record)
            if number == key.batch:
                if cursor.ended:
                    self._cursors.pop(place, None)
                self.seconds += time.perf_counter() - began
                return

    def _cursor(
        self, key: Key, job: OpenJob, request: Request
    ) -> tuple[tuple[Stream, int], _Cursor]:
        """A cursor that comes to the batch, or a new one."""
        for place, cursor in self._cursors.items():
            if place[0] == request.stream and cursor.comes_to(key.batch):
                self._cursors.move_to_end(place)
                return place, cursor
        self.openings += 1
        while len(self._cursors) >= CURSORS:
            self._cursors.popitem(last=False)
        ranges = self._ranges(key, request)
        place = (request.stream, self.openings)
        self._cursors[place] = _Cursor(job.batches(key.consumer, key.epoch, ranges), ranges)
        return place, self._cursors[place]

    def _ranges(self, key: Key, request: Request) -> list[range]:
        """The batches for a new cursor: from the first missing one before this batch to the end of
        its turn, then the client's next turns, up to one that has been begun."""
        asked = [range(*one) for one in ((request.batch, request.stop), *request.ahead)]
        around = [one for one in asked if key.batch in one]
        stop = max(one.stop for one in around)
        first = max(min(one.start for one in around), key.batch - PASSED)
        made = (n for n in range(first, key.batch) if key._replace(batch=n) not in self._buffer)
        later = takewhile(
            lambda one: key._replace(batch=one.start) not in self._buffer,
            (one for one in asked if one.start >= stop and one),
        )
        return [range(next(made, key.batch), stop), *later]


class OpenJob:
    """A job on an open table."""

    def __init__(
        self, job: BatchJob, table: Any, transform: Callable[[Batch], Batch] | None
    ) -> None:
        self._job, self._table, self._transform = job, table, transform
        if job.sessions != "split" and table.schema.session_id is None:
            raise DataError(
                f"sessions: {job.sessions}, but the table has no sessions. Name its session_id in "
                "`dataset.schema`, or write `sessions: split`."
            )
        self._order = job.order(tuple(stripe.num_rows for stripe in table.stripes))
        self.length = self._order.num_batches

    def batches(self, consumer: int, epoch: int, ranges: Sequence[range]) -> Iterator[Any]:
        """The consumer's batches in these ranges, or an error in place of one."""
        shares = Shares(world_size=self._job.consumers, streams=self._job.streams)
        rank = RankBatches(
            self._table,
            self._order,
            shares,
            rank=consumer,
            prefetch=WINDOWS_AHEAD,
            transform=self._transform,
            gently=True,
        )
        rank.left_out, rank.tries = self._job.left_out, TRIES
        first, *then = ranges
        return rank.batches(epoch, first.start, first.stop, then)


@dataclass
class _Demand:
    """A batch for which calls wait, and how many."""

    job: OpenJob
    request: Request
    made: Future[pa.RecordBatch]
    calls: int = 0


class _Announced:
    """The batches that a client will ask for, from the first that is not made yet."""

    def __init__(self, job: OpenJob, request: Request, most: int | None = None) -> None:
        self.job, self.request, self.at = job, request, time.monotonic()
        ranges = (range(first, min(stop, job.length)) for first, stop in request.ahead)
        self._positions = islice(chain.from_iterable(ranges), most)
        self._next = next(self._positions, None)
        self._there = 0
        """How many batches in a row, up to that one, are already there."""
        self.handed: set[int] = set()
        """Batches that the client has received since: they are not made again after they made
        room."""

    def key(self, buffer: Buffer) -> Key | None:
        """The key of the first batch that is not made yet, or None; a batch that was once found is
        not looked for again."""
        while self._next is not None and self._there < AHEAD:
            key = Key(*self.request.stream, self._next)
            if self._next not in self.handed and key not in buffer:
                self._there = 0
                return key
            self._next = next(self._positions, None)
            self._there += 1
        return None


class _Cursor:
    """A place at which a consumer's epoch is read, and the batches that come next there."""

    def __init__(self, batches: Iterator[Any], ranges: Iterable[range]) -> None:
        self.batches = batches
        self._left = deque(ranges)

    def comes_to(self, batch: int) -> bool:
        """Whether a batch comes next here, with few others to be made before it."""
        passed = 0
        for one in self._left:
            if batch in one:
                return passed + batch - one.start < PASSED
            passed += len(one)
        return False

    def advance(self) -> int:
        """Move on by one batch; returns its position."""
        first = self._left.popleft()
        if len(first) > 1:
            self._left.appendleft(first[1:])
        return first.start

    @property
    def ended(self) -> bool:
        """Whether no batch is left."""
        return not self._left
