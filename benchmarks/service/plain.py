"""The limits of a service: the same bytes by plain Arrow Flight, and by a copy; and packing
alone."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import torch

from benchmarks.service.processes import processor_seconds
from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_batch import batch_to_record
from recd_plugins.launch.environment import die_with_parent

__all__ = ["copied", "packed", "plain_flight"]

SCHEMA = pa.schema([("body", pa.large_binary())])


class _Plain(flight.FlightServerBase):
    """Sends one record batch over and over from memory, without running Python code."""

    def __init__(self, size: int, count: int) -> None:
        super().__init__("grpc://127.0.0.1:0")
        body = pa.array([np.random.default_rng(0).bytes(size)], pa.large_binary())
        record = pa.RecordBatch.from_arrays([body], schema=SCHEMA)
        self._table = pa.Table.from_batches([record] * count)

    def do_get(self, context: object, ticket: flight.Ticket) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(self._table)


@contextmanager
def plain_flight(size: int, count: int) -> Iterator[Callable[[], float]]:
    """Take `count` bodies of so many bytes by one `do_get` from another process. Returns the
    seconds of that process's processor time."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(size, count, theirs), daemon=True)
    process.start()
    client = flight.FlightClient(f"grpc://127.0.0.1:{ours.recv()}")

    assert process.pid is not None
    sender = process.pid

    def take() -> float:
        began = processor_seconds(sender)
        if sum(chunk.data.num_rows for chunk in client.do_get(flight.Ticket(b"all"))) != count:
            raise AssertionError("plain Flight gave fewer bodies than it has")
        return processor_seconds(sender) - began

    try:
        yield take
    finally:
        client.close()
        process.kill()
        process.join()


def _serve(size: int, count: int, pipe: Connection) -> None:
    die_with_parent()
    server = _Plain(size, count)
    pipe.send(server.port)
    server.serve()


def copied(size: int, count: int) -> Callable[[], int]:
    """A call that copies `count` bodies of `size` bytes, each to its own memory."""
    body = torch.zeros(size, dtype=torch.uint8)

    def take() -> int:
        return sum(len(body.clone()) > 0 for _ in range(count))

    return take


def packed(batches: Sequence[Batch]) -> Callable[[], None]:
    """A call that packs these batches, as a worker does, and keeps none."""

    def pack() -> None:
        for batch in batches:
            batch_to_record(batch)

    return pack
