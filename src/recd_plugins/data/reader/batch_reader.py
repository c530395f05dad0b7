"""A consumer's batches: each window's stripes are decoded, put in order, cut and joined.

For each stream of the consumer, memory holds the window in use and the windows loaded ahead. One of
these is held twice while it is gathered: as decoded, and in order. Allocators keep what is freed. A
window is `reader.window` stripes at 8 bytes an id and 4 bytes a length or float; the features that
a `dedup` converter takes hold each different row once. Decoded ids have 4 bytes where the files
have 4, and so have the converter's rows if all features that it takes have 4.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import Columns, PooledColumns
from recd_plugins.data.decoded import DecodedRows
from recd_plugins.data.read_seconds import DECODE, GATHER, IO, ReadSeconds
from recd_plugins.data.reader.order import Order, Piece, ReadWindow, bands_of
from recd_plugins.data.reader.stripe_reader import StripeReader
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError, so_many
from recd_plugins.sparse.jagged import HeldOnce, Jagged, WeightedJagged
from recd_plugins.sparse.rows.blocks import Each, RowBlock, gather_blocks, join_blocks
from recd_plugins.sparse.rows.pool import Picked
from recd_plugins.sparse.rows.take import take_blocks

__all__ = ["DECODING", "BatchReader"]

DECODING = 2
"""How many stripes are decoded at a time if batches wait for them: while one is read and checked,
which one thread does, the columns of the other use all cores. If batches wait for none, that would
only take processors from whoever makes them."""
GENTLY = 5
"""The `nice` value added to threads that load gently: they get a third of a processor that another
thread wants, too."""

I64 = npt.NDArray[np.int64]


class BatchReader:
    """The batches of one consumer: those streams of an order that it owns."""

    def __init__(
        self,
        table: Table,
        order: Order,
        streams: Sequence[int],
        *,
        unjoined: Collection[str] = (),
        beside: Mapping[str, str] | None = None,
        prefetch: int = 1,
        gently: bool = False,
        threads: bool = True,
        left_out: Collection[int] = (),
        tries: int = 1,
    ) -> None:
        """The features `unjoined` come as columns beside the batches, not in them.

        `beside` names those of `ASKABLE` that come with them, each from a column of the table.
        `prefetch` of each stream's next windows are loaded by other threads while one is used. With
        `gently` these give way to the thread that makes batches: none loads another window before
        the first is there, and the system gives them less priority where it can (Linux). With
        `threads`, up to `DECODING` stripes are decoded at a time, and as many threads as Arrow has
        decode their columns and copy the features of a window. Rows of the stripes `left_out` are
        empty and have weight 0; other stripes are tried `tries` times.
        """
        names = table.schema.sparse_names
        self._features = [name for name in names if name not in unjoined]
        self._unjoined = [name for name in names if name in unjoined]
        self._order = order
        self._streams = streams
        self._prefetch = prefetch
        self._gently = gently
        self._threads = pa.cpu_count() if threads else 1
        self._beside = beside or {}
        self._session_id = table.schema.session_id if order.sessions != "split" else None
        keys = {*self._beside.values(), *filter(None, [self._session_id])}
        self._decoding = min(DECODING, self._threads)
        self._idle: SimpleQueue[StripeReader] = SimpleQueue()
        """The readers of stripes that no thread uses at present."""
        for _ in range(self._decoding):
            stripes = StripeReader(
                table, threads=threads, keys=sorted(keys), left_out=left_out, tries=tries
            )
            self._idle.put(stripes)
        self._gate = _Gate(self._decoding)
        self.seconds = ReadSeconds()
        """The seconds spent on the windows from which a batch has been made so far."""

    def batches(
        self, epoch: int, first: int = 0, stop: int | None = None, then: Sequence[range] = ()
    ) -> Iterator[tuple[Batch, Columns]]:
        """The epoch from batch `first` on; starting there is as fast as starting at batch 0.

        The epoch ends at `stop`, and no window is read that only later batches need. Then come the
        batches of the ranges `then`, whose windows are loaded ahead like all others.
        """
        length = self._order.num_batches
        ranges = [range(first, length if stop is None else stop), *then]
        wanted = [range(one.start, min(one.stop, length)) for one in ranges]
        begin = _give_way if self._gently else None
        copies = ThreadPoolExecutor(self._threads, "recd-copies")
        threads = _Threads(
            decoding=ThreadPoolExecutor(self._decoding, "recd-decoding", begin),
            gathering=ThreadPoolExecutor(1, "recd-gathering", begin),
            each=copies.map if self._threads > 1 else map,
        )
        try:
            yield from self._batches(epoch, wanted, threads)
        finally:
            # In this order, no thread waits for work that was cancelled.
            for pool in (threads.decoding, threads.gathering, copies):
                pool.shutdown(cancel_futures=True)

    def _batches(
        self, epoch: int, wanted: Sequence[range], threads: _Threads
    ) -> Iterator[tuple[Batch, Columns]]:
        streams = [self._parts(epoch, stream, wanted, threads) for stream in self._streams]
        for batch in chain.from_iterable(wanted):
            parts = []
            for stream in streams:
                left = self._order.batch_rows(batch)
                while left:
                    parts.append(next(stream))
                    left -= len(parts[-1].labels)
            yield self._join(parts)

    def _parts(
        self, epoch: int, stream: int, wanted: Sequence[range], threads: _Threads
    ) -> Iterator[WindowPart]:
        """The stream cut at the borders of batches and of windows."""
        windows = chain.from_iterable(self._windows(epoch, stream, one) for one in wanted)
        if not self._prefetch:
            for window in windows:
                decoded = map(self._decode, window.pieces)
                yield from self._given(self._gather(window, decoded, threads.each))
            return
        ahead: deque[Future[Loaded]] = deque()
        used = 0.0
        for window in windows:
            ahead.append(self._load(window, threads))
            if self._gently and len(ahead) == 1:
                wait(ahead)
            if len(ahead) == 1 + self._prefetch:
                loaded = self._waited(ahead.popleft(), used)
                began = time.perf_counter()
                yield from self._given(loaded)
                used = time.perf_counter() - began
        while ahead:
            yield from self._given(ahead.popleft().result())

    def _waited(self, window: Future[Loaded], used: float) -> Loaded:
        """The window once it is loaded. Only if that takes longer than the one before was `used`,
        several stripes are decoded at a time from then on."""
        began = time.perf_counter()
        loaded = window.result()
        waited = time.perf_counter() - began
        self._gate.allow(self._decoding if waited > used else 1)
        return loaded

    def _windows(self, epoch: int, stream: int, wanted: range) -> Iterator[ReadWindow]:
        """The windows of the stream's part of these batches, the last one cut off where they
        end."""
        end = wanted.stop * self._order.rows_per_batch
        for window in self._order.windows(epoch, stream, wanted.start):
            if window.position >= end:
                return
            yield window.until(end)

    def _given(self, loaded: Loaded) -> Iterator[WindowPart]:
        """The parts, each released once it is yielded: a batch uses the memory of its part."""
        parts, seconds = loaded
        self.seconds.add_all(seconds)
        parts.reverse()
        while parts:
            yield parts.pop()

    def _load(self, window: ReadWindow, threads: _Threads) -> Future[Loaded]:
        decoding = [threads.decoding.submit(self._decode, piece) for piece in window.pieces]

        def gather() -> Loaded:
            decoded = (piece.result() for piece in decoding)
            return self._gather(window, decoded, threads.each)

        return threads.gathering.submit(gather)

    def _decode(self, piece: Piece) -> Decoded:
        """The piece's rows, and the seconds that took."""
        seconds = ReadSeconds()
        with self._gate:
            began, stripes = time.perf_counter(), self._idle.get()
            try:
                rows = stripes.decode(piece)
                io = stripes.io_seconds()
            finally:
                self._idle.put(stripes)
            seconds.add(IO, io)
            seconds.add(DECODE, time.perf_counter() - began - io)
        return rows, seconds

    def _gather(self, window: ReadWindow, decoded: Iterable[Decoded], each: Each) -> Loaded:
        """The window's rows in order, cut at the borders of batches, and the seconds that took."""
        pieces, seconds = [], ReadSeconds()
        for rows, of_piece in decoded:
            pieces.append(rows)
            seconds.add_all(of_piece.parts)
        began = time.perf_counter()
        bands = None
        if self._session_id is not None:
            bands = bands_of(piece.keys[self._session_id] for piece in pieces)
        order = self._order.rows(window, bands)
        sizes = window.cuts(self._order.rows_per_batch)
        weights = take_blocks([piece.weights for piece in pieces], order, sizes)
        if window.padding:
            weights[-1][-window.padding :] = 0
        features = [_column(pieces, name) for name in self._features]
        unjoined = [_column(pieces, name) for name in self._unjoined]
        parts = zip(
            take_blocks([piece.dense for piece in pieces], order, sizes),
            take_blocks([piece.labels for piece in pieces], order, sizes),
            weights,
            gather_blocks(features, order, sizes, each),
            Picked.of(unjoined, order).cut(sizes),
            self._asked(pieces, order, sizes),
            strict=True,
        )
        found = [WindowPart(*part) for part in parts]
        seconds.add(GATHER, time.perf_counter() - began)
        return found, seconds.parts

    def _asked(
        self, pieces: Sequence[DecodedRows], order: I64, sizes: Sequence[int]
    ) -> list[dict[str, Tensor]]:
        """Each part's columns that were requested in addition to the features, by name."""
        columns = {
            name: take_blocks(
                [_whole_numbers(piece.keys[key], key) for piece in pieces], order, sizes
            )
            for name, key in self._beside.items()
        }
        return [{name: columns[name][part] for name in columns} for part in range(len(sizes))]

    def _join(self, parts: Sequence[WindowPart]) -> tuple[Batch, Columns]:
        began = time.perf_counter()
        batch = Batch(
            dense=_joined([part.dense for part in parts]),
            features=join_blocks([part.features for part in parts]).kjt(self._features),
            labels=_joined([part.labels for part in parts]),
            weights=_joined([part.weights for part in parts]),
        )
        beside = {name: _joined([part.beside[name] for part in parts]) for name in self._beside}
        self.seconds.add(GATHER, time.perf_counter() - began)
        return batch, PooledColumns(self._unjoined, [part.unjoined for part in parts], beside)


@dataclass(frozen=True)
class WindowPart:
    """b rows of a window that go into one batch."""

    dense: Tensor
    """[b, n_dense] float32."""
    labels: Tensor
    """[b] float32; [b, T] of T labels."""
    weights: Tensor
    """[b] float32; 0 marks padding."""
    features: RowBlock
    """The features that go into the batch."""
    unjoined: Picked
    """The features that do not, their rows in a pool."""
    beside: Mapping[str, Tensor]
    """The columns requested in addition to the features, [b] int64 each."""


Decoded = tuple[DecodedRows, ReadSeconds]
"""A piece of a window, and the seconds that decoding it took."""
Loaded = tuple[list[WindowPart], Mapping[str, float]]
"""The parts of a window, and the seconds that they took."""


class _Threads(NamedTuple):
    """The threads that load windows."""

    decoding: Executor
    """They decode a piece each."""
    gathering: Executor
    each: Each
    """The threads that copy features of a window, or none beside the one that gathers it."""


class _Gate:
    """Lets only so many threads be inside it at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._inside = most, 0
        self._change = threading.Condition()

    def allow(self, most: int) -> None:
        """From now on, let in `most` threads at a time; whoever is inside stays."""
        with self._change:
            self._most = most
            self._change.notify_all()

    def __enter__(self) -> None:
        with self._change:
            self._change.wait_for(lambda: self._inside < self._most)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._inside -= 1
            self._change.notify()


def _give_way() -> None:
    """Give this thread less priority than its process has."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # where a system forbids it, all keep the same priority
            thread = threading.get_native_id()
            os.setpriority(
                os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + GENTLY
            )


def _whole_numbers(column: pa.ChunkedArray, name: str) -> Tensor:
    """[N] int64, of a column that has a whole number in each row."""
    if not pa.types.is_integer(column.type) or column.null_count:
        raise DataError(
            f"column {name!r} has {so_many(column.null_count, 'null')} and type {column.type}, but "
            "a converter takes only whole numbers. Write the table again with whole numbers."
        )
    return torch.from_numpy(column.to_numpy().astype(np.int64))


def _column(pieces: Sequence[DecodedRows], name: str) -> list[Jagged | HeldOnce | WeightedJagged]:
    return [part for piece in pieces for part in piece.features[name]]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of all parts; a single part is returned without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat([*parts])
