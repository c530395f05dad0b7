"""A worker: it reads windows, transforms them, and serves whole batches to whoever asks.

A worker does not record what it gave to whom, so nothing is lost if it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import torch

from recd_dsi.service.addresses import HOST, address_of, check_callable, without_brackets
from recd_dsi.service.buffer import Buffer, DiskCache
from recd_dsi.service.calls import (
    OtherTable,
    Refused,
    Server,
    flight_error,
    json_result,
    listening,
    server_options,
    starting,
)
from recd_dsi.service.credentials import NO_CREDENTIALS, Credentials
from recd_dsi.service.job import Request
from recd_dsi.service.maker import STREAMS, Maker, OpenJob
from recd_dsi.service.shared_memory import SharedRing
from recd_plugins.api import DataError, RecdError, so_many
from recd_plugins.api.batch import WIRED_SCHEMA, body_of, joined_records, without_bodies
from recd_plugins.api.data import Table
from recd_plugins.api.reading import Delivery, table_digest

__all__ = ["Worker", "WorkerOptions", "settle"]

MALLOPT = {-8: 1, -3: 1 << 30, -1: 1 << 30, -2: 64 << 20}
"""glibc's M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD: one memory arena for all
threads, which keeps up to 1 GiB that is unused."""
LARGEST_THRESHOLD = 32 << 20
"""The largest M_MMAP_THRESHOLD that older glibc (before 2.35) accepts."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of a worker."""

    host: str = HOST
    port: int = 0
    """0 takes a free one."""
    buffer_bytes: int = 256 << 20
    disk: Path | None = None
    """A folder in which batches are kept; workers of a machine may share it."""
    disk_bytes: int = 8 << 30
    shared_bytes: int = 64 << 20
    """Memory through which clients on this machine get batches; with 0, they come over the wire."""
    credentials: Credentials = NO_CREDENTIALS
    join: str | None = None
    """The host:port of a coordinator to which the worker reports once it serves."""


def settle() -> None:
    """Set up this process for a worker: torch gets one thread, and the memory of a window is reused
    for the next."""
    torch.set_num_threads(1)
    _keep_memory()
    # Garbage collection would copy what was imported before a fork, by writing to it.
    gc.freeze()


def _keep_memory() -> None:
    # The kernel clears each new page, which took a tenth of a worker's time: by default, each
    # thread has its own arena, and a window was read in another arena than the one before.
    with contextlib.suppress(AttributeError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOPT.items():
            if not mallopt(option, value):
                mallopt(option, min(value, LARGEST_THRESHOLD))
        pa.set_memory_pool(pa.system_memory_pool())


class Worker(Server):
    """Serves the batches of one registry's tables."""

    def __init__(self, delivery: Delivery, options: WorkerOptions) -> None:
        host = without_brackets(options.host)
        options.credentials.check(host)
        check_callable(host)
        self._opened = delivery.open()
        tables = {split: self._opened.tables[split] for split in ("train", "test")}
        self._digests = {split: table_digest(table) for split, table in tables.items()}
        self._transform = self._opened.transform
        self._jobs: dict[str, OpenJob] = {}
        self._jobs_lock = threading.Lock()
        self.id = uuid.uuid4().hex[:12]
        self.began = time.time()
        disk = None
        if options.disk is not None:
            disk = DiskCache(options.disk, options.disk_bytes, _written([*tables.values()]))
        self.buffer = Buffer(options.buffer_bytes, disk)
        self._maker = Maker(self.buffer)
        self._shared = SharedRing(options.shared_bytes)
        location = listening(host, options.port, options.credentials)
        serves = server_options(options.credentials)
        with starting(host, options.port, options.credentials):
            super().__init__(location, **serves)
        self.address = address_of(host, self.port)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        """The batches of a request, one after another; a batch that is not there is made now."""
        try:
            request = Request.from_bytes(ticket.ticket)
            job = self._open(request)
        except RecdError as error:
            raise flight_error(error) from None
        return flight.GeneratorStream(WIRED_SCHEMA, self._answers(job, request))

    def _answers(self, job: OpenJob, request: Request) -> Iterator[Any]:
        """Whole batches; or their heads, with the places of their bodies in shared memory."""
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
        """Answer `ping`, or `about`: what it makes batches of, and what it has done."""
        if action.type == "ping":
            return json_result({"id": self.id})
        if action.type == "about":
            return json_result(self.about() | {"decides": self._opened.delivery.decides})
        raise flight_error(DataError(f"there is no action {action.type[:40]!r}: ping or about."))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """The actions that may be requested besides batches."""
        return [("ping", "Whether it answers."), ("about", "What it serves, and what it did.")]

    def about(self) -> dict[str, Any]:
        """What heartbeats carry: who the worker is, and what it has done."""
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
        """Answer no more requests."""
        self._maker.close()
        self.shutdown()
        self._shared.close()

    def _open(self, request: Request) -> OpenJob:
        """The job of a request, checked against what this worker reads."""
        job = request.job
        found = self._jobs.get(job.digest)
        if found is None:
            ours = (self._opened.delivery.digest, self._digests[job.split])
            table = self._opened.table(job.split, job.table) if job.delivery == ours[0] else None
            if table is None:
                kind = OtherTable if job.delivery == ours[0] else Refused
                raise kind(
                    f"the worker at {self.address} makes batches of registry {ours[0]} and table "
                    f"{ours[1]}, but was asked for registry {job.delivery} and table {job.table}. "
                    "Start workers of the registry and the table that the trainer reads, or let "
                    "the trainer read these."
                )
            found = OpenJob(job, table, self._transform)
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


def _written(tables: Sequence[Table]) -> str:
    """Differs if files of these tables, or of what is joined to them, were written at other
    times."""
    joined = chain.from_iterable(table.joins for table in tables)
    files = chain((table.facts for table in tables), (side.facts for side in joined))
    return repr([one.mtime_ns for facts in files for one in facts.values()])
