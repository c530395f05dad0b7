"""A worker: reads windows, transforms, and serves whole batches to whoever asks.

One thread makes batches: those that somebody waits for first, then those that clients announced,
until the buffer is full. A worker knows nothing of what it gave to whom: its end loses nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import torch

from recd_dsi.service.buffer import Buffer, DiskCache, Key
from recd_dsi.service.calls import (
    HOST,
    NO_CREDENTIALS,
    Credentials,
    Refused,
    flight_error,
    json_result,
    listening,
    server_options,
    starting,
)
from recd_dsi.service.job import MOST_BATCHES, BatchJob, Request
from recd_dsi.service.shared_memory import SharedRing
from recd_plugins.api import DataError, PluginError, RecdError, so_many
from recd_plugins.api.batch import (
    WIRED_SCHEMA,
    Batch,
    RankBatches,
    batch_to_record,
    body_of,
    joined_records,
    without_bodies,
)
from recd_plugins.api.reading import Delivery, Shares, table_digest

__all__ = ["TRIES", "Worker", "WorkerOptions", "settle"]

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
MALLOPT = {-8: 1, -3: 1 << 30, -1: 1 << 30, -2: 64 << 20}
"""glibc's M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD: one area of memory for all
threads, which keeps up to 1 GiB that nobody uses."""
LARGEST_THRESHOLD = 32 << 20
"""The M_MMAP_THRESHOLD that older glibc (before 2.35) takes at most."""
AHEAD = 256
"""Batches one after another that are there ahead of a request, until a worker looks no further:
else it would look through an epoch that is there for each request."""
ENDS = "the worker ends: ask another one."
PASSED = MOST_BATCHES
"""Batches that are made in passing, rather than a window read anew for one behind them: a client
asks for several runs of them at a time, and the first is not the first to arrive."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options by which a worker serves."""

    host: str = HOST
    port: int = 0
    """0: one that is free."""
    buffer_bytes: int = 256 << 20
    disk: Path | None = None
    """A folder where batches are kept, which workers of a machine may share."""
    disk_bytes: int = 8 << 30
    shared_bytes: int = 64 << 20
    """Memory through which clients of this machine have batches; 0: over the wire."""
    credentials: Credentials = NO_CREDENTIALS
    join: str | None = None
    """The host:port of a coordinator that hears of it, once it serves."""


def settle() -> None:
    """Suit this process to a worker: torch has one thread in it, and it has the memory of each
    window again for the next."""
    torch.set_num_threads(1)
    _keep_memory()
    # What was imported before a fork would be copied as it is looked through for garbage.
    gc.freeze()


def _keep_memory() -> None:
    # The kernel clears each page that it gives, which took a tenth of a worker's time: each thread
    # has an area of memory by default, and a window was read in another than the one before it.
    with contextlib.suppress(AttributeError):  # glibc alone has it
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOPT.items():
            if not mallopt(option, value):
                mallopt(option, min(value, LARGEST_THRESHOLD))
        pa.set_memory_pool(pa.system_memory_pool())


class Worker(flight.FlightServerBase):
    """Serves the batches of one registry's tables."""

    def __init__(self, delivery: Delivery, options: WorkerOptions) -> None:
        options.credentials.check(options.host)
        self._opened = delivery.open()
        self._digests = {
            split: table_digest(self._opened.tables[split]) for split in ("train", "test")
        }
        self._transform = self._opened.transform
        self._jobs: dict[str, _OpenJob] = {}
        self._jobs_lock = threading.Lock()
        self.id = uuid.uuid4().hex[:12]
        self.began = time.time()
        disk = None if options.disk is None else DiskCache(options.disk, options.disk_bytes)
        self.buffer = Buffer(options.buffer_bytes, disk)
        self._maker = Maker(self.buffer)
        self._shared = SharedRing(options.shared_bytes)
        location = listening(options.host, options.port, options.credentials)
        serves = server_options(options.credentials)
        with starting(options.host, options.port, options.credentials):
            super().__init__(location, **serves)
        self.address = f"{options.host}:{self.port}"

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        """The batches of a request one after another, each made now if it was not yet."""
        try:
            request = Request.from_bytes(ticket.ticket)
            job = self._open(request)
        except RecdError as error:
            raise flight_error(error) from None
        return flight.GeneratorStream(WIRED_SCHEMA, self._answers(job, request))

    def _answers(self, job: _OpenJob, request: Request) -> Iterator[Any]:
        """Batches as they are; or their heads, beside where bodies lie in shared memory."""
        self._maker.announce(job, request)
        first = request.batch
        while first < request.stop:
            try:
                records = self._maker.batches(job, request, first)
            except RecdError as error:
                raise flight_error(error) from None
            first += len(records)
            places = self._shared.put_all([*map(body_of, records)]) if request.shared else None
            if places is None:
                yield joined_records(records)
            else:
                yield without_bodies(records), pa.py_buffer(places)

    def do_action(self, context: Any, action: flight.Action) -> list[flight.Result]:
        """`ping`; `about`: what it makes batches of, and what it has done."""
        if action.type == "ping":
            return json_result({"id": self.id})
        if action.type == "about":
            return json_result(self.about() | {"decides": self._opened.delivery.decides})
        raise flight_error(DataError(f"there is no action {action.type[:40]!r}: ping or about."))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """The actions that may be asked for beside batches."""
        return [("ping", "Whether it answers."), ("about", "What it serves, and what it did.")]

    def about(self) -> dict[str, Any]:
        """Who it is and what it has done: what heartbeats carry."""
        maker, buffer = self._maker, self.buffer
        return {
            "id": self.id,
            "address": self.address,
            "pid": os.getpid(),
            "delivery": self._opened.delivery.digest,
            "tables": self._digests,
            "began": self.began,
            "made": maker.made,
            "rows": maker.rows,
            "served": maker.served,
            "hits": buffer.hits,
            "windows": maker.openings,
            "seconds_made": round(maker.seconds, 3),
            "processor_seconds": round(time.process_time(), 3),
            "buffer_bytes": buffer.bytes,
            "wanted_bytes": buffer.wanted_bytes,
        }

    def stop(self) -> None:
        """Answer nothing any more."""
        self._maker.close()
        self.shutdown()
        self._shared.close()

    def _open(self, request: Request) -> _OpenJob:
        """The job, checked against what this worker reads."""
        job = request.job
        found = self._jobs.get(job.digest)
        if found is None:
            ours = (self._opened.delivery.digest, self._digests[job.split])
            table = self._opened.table(job.split, job.table) if job.delivery == ours[0] else None
            if table is None:
                raise Refused(
                    f"the worker at {self.address} makes batches of registry {ours[0]} and table "
                    f"{ours[1]}, but was asked for registry {job.delivery} and table {job.table}."
                )
            found = _OpenJob(job, table, self._transform)
            with self._jobs_lock:
                if len(self._jobs) >= STREAMS:
                    self._jobs.pop(next(iter(self._jobs)))
                self._jobs[job.digest] = found
        if request.stop > found.length:
            raise DataError(
                f"batch {request.stop - 1} was asked for, but an epoch has "
                f"{so_many(found.length, 'batch')}."
            )
        return found


class _OpenJob:
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

    job: _OpenJob
    request: Request
    made: Future[pa.RecordBatch]
    calls: int = 0


class _Announced:
    """The batches that a client will ask for, from the first on that is not yet made."""

    def __init__(self, job: _OpenJob, request: Request) -> None:
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

    def announce(self, job: _OpenJob, request: Request) -> None:
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

    def batches(self, job: _OpenJob, request: Request, first: int) -> list[pa.RecordBatch]:
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

    def _batch(self, job: _OpenJob, request: Request, batch: int, seconds: float) -> pa.RecordBatch:
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

    def _next(self) -> tuple[Key, _OpenJob, Request] | None:
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

    def _make(self, key: Key, job: _OpenJob, request: Request) -> None:
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
        self, key: Key, job: _OpenJob, request: Request
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
