"""The thread of a worker that makes batches: those that somebody waits for first, then those that
clients announced, until the buffer is full."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from recd_dsi.service.buffer import Buffer, Key
from recd_dsi.service.job import MOST_BATCHES, BatchJob, Request
from recd_plugins.api import DataError, PluginError, RecdError
from recd_plugins.api.batch import Batch, RankBatches, batch_to_record
from recd_plugins.api.reading import Shares

__all__ = ["STREAMS", "TOGETHER", "TRIES", "Maker", "OpenJob"]

WAIT = 600.0
"""Seconds that a call waits for its batch at most; callers have deadlines of their own."""
CURSORS = 3
"""Places at which a worker reads at once: each has up to three windows in memory, and a fourth
while one is gathered."""
STREAMS = 1024
"""Clients whose announcements are remembered."""
STALE = 60.0
"""Seconds without a request after which a client may be gone: what was made ahead for it makes room
first, and no more is, until it asks again."""
LOADING = 2
"""Threads that load windows: one gathers a window while another decodes the next."""
TRIES = 3
"""How often a stripe is read until it counts as damaged."""
TOGETHER, TOGETHER_BYTES = 16, 4 << 20
"""Batches that go in one message at most, and how large they may be together, if they are more than
one."""
LINGER = 0.02
"""Seconds that batches wait for those behind them, as each message costs both sides. Of a request
that a trainer waits for they wait for as many as the trainer has had of it, the first for none."""
AHEAD = 256
"""Batches one after another that are there ahead of a request, until a worker looks no further:
else it would look through an epoch that is there for each request."""
ENDS = "the worker ends: ask another one."
PASSED = MOST_BATCHES
"""Batches that are made in passing, rather than a window read anew for one behind them: a client
asks for several runs of them at a time, and the first is not the first to arrive."""


class OpenJob:
    """A job over an open table."""

    def __init__(
        self, job: BatchJob, table: Any, transform: Callable[[Batch], Batch] | None
    ) -> None:
        self._job, self._table, self._transform = job, table, transform
        if job.sessions != "split" and table.schema.session_id is None:
            raise DataError(f"sessions: {job.sessions}, but the table has no sessions.")
        self._order = job.order(tuple(stripe.num_rows for stripe in table.stripes))
        self.length = self._order.num_batches

    def batches(self, consumer: int, epoch: int, ranges: Sequence[range]) -> Iterator[Any]:
        """The consumer's batches of these ranges, or an error in the place of one."""
        shares = Shares(world_size=self._job.consumers, streams=self._job.streams)
        rank = RankBatches(
            self._table,
            self._order,
            shares,
            rank=consumer,
            prefetch=LOADING,
            transform=self._transform,
            gently=True,
        )
        rank.left_out, rank.tries = self._job.left_out, TRIES
        first, *then = ranges
        return rank.batches(epoch, first.start, first.stop, then)


class _Cursor:
    """The place where an epoch of a consumer is read, and the batches that come next there."""

    def __init__(self, batches: Iterator[Any], ranges: Iterable[range]) -> None:
        self.batches = batches
        self._left = deque(ranges)

    def comes_to(self, batch: int) -> bool:
        """Whether it is one of the next, before which few are made in passing."""
        passed = 0
        for one in self._left:
            if batch in one:
                return passed + batch - one.start < PASSED
            passed += len(one)
        return False

    def advance(self) -> int:
        """Go by a batch: which one that is."""
        first = self._left.popleft()
        if len(first) > 1:
            self._left.appendleft(first[1:])
        return first.start

    @property
    def ended(self) -> bool:
        """Whether none is left."""
        return not self._left


Stream = tuple[str, int, int]


@dataclass
class _Demand:
    """A batch that calls wait for, so many of them."""

    job: OpenJob
    request: Request
    made: Future[pa.RecordBatch]
    calls: int = 0


class _Announced:
    """The batches that a client will ask for, from the first on that is not yet made."""

    def __init__(self, job: OpenJob, request: Request) -> None:
        self.job, self.request, self.at = job, request, time.monotonic()
        ranges = (range(first, min(stop, job.length)) for first, stop in request.ahead)
        self._positions = chain.from_iterable(ranges)
        self._next = next(self._positions, None)
        self._there = 0
        """Batches one after another, up to that one, that are there already."""
        self.handed: set[int] = set()
        """Batches that the client has had since: they are not made again once they make room."""

    def key(self, buffer: Buffer) -> Key | None:
        """The key of that batch; one that was made once is not looked for again."""
        while self._next is not None and self._there < AHEAD:
            key = Key(*self.request.stream, self._next)
            if self._next not in self.handed and key not in buffer:
                self._there = 0
                return key
            self._next = next(self._positions, None)
            self._there += 1
        return None


class Maker:
    """Makes batches in a thread of its own, in the order in which they are needed."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._change = threading.Condition()
        self._demands: OrderedDict[Key, _Demand] = OrderedDict()
        self._announced: OrderedDict[tuple[str, Stream], _Announced] = OrderedDict()
        """By client and stream, of its latest request."""
        self._cursors: OrderedDict[tuple[Stream, int], _Cursor] = OrderedDict()
        self._closed = False
        self.made = self.rows = self.served = self.openings = 0
        self.seconds = 0.0
        threading.Thread(target=self._run, daemon=True, name="recd-maker").start()

    def announce(self, job: OpenJob, request: Request) -> None:
        """Take note of the batches that a client asks for, and of those that it will ask for."""
        with self._change:
            self._announced.pop((request.client, request.stream), None)
            latest = self._announced[request.client, request.stream] = _Announced(job, request)
            latest.key(self._buffer)  # what is there now was made once, even if it goes soon
            for one in [*self._announced.values()]:
                if one.at >= latest.at - STALE and len(self._announced) <= STREAMS:
                    break
                self._forget(one.request)
            self._change.notify_all()

    def _forget(self, request: Request) -> None:
        """Make nothing ahead for a client any more."""
        del self._announced[request.client, request.stream]
        if all(stream != request.stream for _, stream in self._announced):
            self._buffer.unwant(request.stream)

    def batches(self, job: OpenJob, request: Request, first: int) -> list[pa.RecordBatch]:
        """The batch, from the buffer or made now, and those behind it that are there, or soon."""
        found = [self._batch(job, request, first, WAIT)]
        size = found[0].nbytes
        most = min(TOGETHER, max(1, TOGETHER_BYTES // size))
        last = min(first + most, request.stop) - 1
        # A trainer that waits has had so many of the request: as many more may come together.
        until = min(last, 2 * first - request.batch - 1) if request.awaited else last
        there: dict[int, pa.RecordBatch] = {}
        if until > first:
            # What is wrong with one of them is said once it is the first.
            with contextlib.suppress(TimeoutError, RecdError):
                there[until] = self._batch(job, request, until, LINGER)
        for batch in range(first + 1, last + 1):
            record = there.get(batch) or self._buffer.get(Key(*request.stream, batch))
            size += 0 if record is None else record.nbytes
            if record is None or size > TOGETHER_BYTES:
                break
            found.append(record)
        with self._change:
            self.served += len(found)
            announced = self._announced.get((request.client, request.stream))
            if announced is not None:
                announced.handed.update(range(first, first + len(found)))
            self._change.notify_all()  # there is room now
        return found

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
                # It is made in its turn from now on, not before all that is announced.
                if not demand.calls and self._demands.get(key) is demand:
                    del self._demands[key]

    def close(self) -> None:
        """Make no more; calls that wait for a batch end, as those of a worker that is gone."""
        with self._change:
            self._closed = True
            for demand in self._demands.values():
                demand.made.set_exception(flight.FlightUnavailableError(ENDS))
            self._demands.clear()
            self._change.notify_all()

    def _run(self) -> None:
        while True:
            with self._change:
                while (found := self._next()) is None and not self._closed:
                    self._change.wait()
                if found is None:
                    return
                key, job, request = found
                demanded = key in self._demands
            wrong: RecdError | None = None
            try:
                record = self._buffer.get(key) if demanded else None
                if record is None:
                    self._make(key, job, request)
                else:
                    self._give(key, record)
            except RecdError as error:
                wrong = error
            except Exception as error:
                wrong = PluginError(f"a batch raised {type(error).__name__} when made: {error}")
            if wrong is None:
                continue
            with self._change:
                # Somebody may have asked while it was made ahead.
                waiting = self._demands.pop(key, None)
                if waiting is not None:
                    waiting.made.set_exception(wrong)
                if not demanded:
                    # Whoever asks for it hears of it; until then nothing is made ahead there.
                    self._announced = OrderedDict(
                        (who, what)
                        for who, what in self._announced.items()
                        if what.request.stream != request.stream
                    )

    def _give(self, key: Key, record: pa.RecordBatch) -> None:
        """Keep the batch, for whoever waits for it or will."""
        with self._change:
            waiting = self._demands.pop(key, None)
        self._buffer.put(key, record, wanted=waiting is None)
        if waiting is not None:
            waiting.made.set_result(record)

    def _next(self) -> tuple[Key, OpenJob, Request] | None:
        """The batch that is made next: one that somebody waits for, or one that a client will ask
        for, if there is room."""
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
        return None

    def _make(self, key: Key, job: OpenJob, request: Request) -> None:
        """Make the batch where its epoch is read already, or begin to read there."""
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
            # Before: whoever has the batch, and asks, finds it counted.
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
        """One that comes to the batch, or a new one."""
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
        """The batches that a new cursor comes to: from the first that is wanted before this one on,
        up to the end of its turn; then the client's next turns, as far as nobody has begun them."""
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
