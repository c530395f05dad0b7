"""A consumer's batches: each window's stripes are decoded, put in order, cut and joined.

For each stream of the consumer, memory holds the window in use and the windows loaded ahead, one
per loading thread. One of these is held twice while it is gathered: as decoded, and in order.
Allocators keep what is freed. A window is `reader.window` stripes at 8 bytes an id and 4 bytes a
length or float; the features that a `dedup` converter takes hold each different row once. Decoded
ids have 4 bytes where the files have 4, and so have the converter's rows if all features that it
takes have 4.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import Columns, PooledColumns
from recd_plugins.data.conform.ids import id_error
from recd_plugins.data.decoded import DecodedRows, absent_rows, decode_rows
from recd_plugins.data.kept_stripes import kept_stripes
from recd_plugins.data.order import Order, Piece, ReadWindow, runs_of
from recd_plugins.data.parquet_file import OpenedFile
from recd_plugins.data.read_seconds import DECODE, GATHER, IO, ReadSeconds
from recd_plugins.data.stripes import DamagedStripe, Stripe
from recd_plugins.data.table import Table, id_ranges
from recd_plugins.errors import DataError, RegistryError, so_many
from recd_plugins.sparse.jagged import HeldOnce, Jagged, WeightedJagged
from recd_plugins.sparse.rows.pool import Each, Picked, RowBlock, gather_blocks, join_blocks
from recd_plugins.sparse.rows.take import take_blocks
from recd_plugins.storage.uri import Location

__all__ = ["BatchReader", "StripeReader", "key_column"]

GENTLY = 5
"""The `nice` value added to threads that load gently: they get a third of a processor that another
thread wants, too."""

I64 = npt.NDArray[np.int64]


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


Decoded = tuple[list[DecodedRows], ReadSeconds]
"""The pieces of a window, and the seconds that decoding them took."""
Loaded = tuple[list[WindowPart], Mapping[str, float]]
"""The parts of a window, and the seconds that they took."""


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
        `prefetch` threads load that many of each stream's next windows while one is used; of two
        threads, one gathers a window while the other decodes the next. With `gently` they give way
        to the thread that makes batches: none loads another window before the first is there, and
        the system gives them less priority where it can (Linux). With `threads`, as many threads as
        Arrow has decode a window and copy its features. Rows of the stripes `left_out` are empty
        and have weight 0; other stripes are tried `tries` times.
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
        self._stripes = StripeReader(
            table, threads=threads, keys=sorted(keys), left_out=left_out, tries=tries
        )
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
        copies = ThreadPoolExecutor(self._threads, "recd-copies")
        each: Each = copies.map if self._threads > 1 else map
        begin = _give_way if self._gently else None
        pools = [ThreadPoolExecutor(1, "recd-reader", begin) for _ in range(self._prefetch)]
        try:
            yield from self._batches(epoch, wanted, pools, each)
        finally:
            # In this order, no thread waits for work that was cancelled.
            for pool in (*pools, copies):
                pool.shutdown(cancel_futures=True)

    def _batches(
        self, epoch: int, wanted: Sequence[range], pools: Sequence[Executor], each: Each
    ) -> Iterator[tuple[Batch, Columns]]:
        streams = [self._parts(epoch, stream, wanted, pools, each) for stream in self._streams]
        for batch in chain.from_iterable(wanted):
            parts = []
            for stream in streams:
                left = self._order.batch_rows(batch)
                while left:
                    parts.append(next(stream))
                    left -= len(parts[-1].labels)
            yield self._join(parts)

    def _parts(
        self,
        epoch: int,
        stream: int,
        wanted: Sequence[range],
        pools: Sequence[Executor],
        each: Each,
    ) -> Iterator[WindowPart]:
        """The stream cut at the borders of batches and of windows."""
        windows = chain.from_iterable(self._windows(epoch, stream, one) for one in wanted)
        if not pools:
            for window in windows:
                yield from self._given(self._gather(window, self._decode(window), each))
            return
        ahead: deque[Future[Loaded]] = deque()
        for window in windows:
            ahead.append(self._load(window, pools, each))
            if self._gently and len(ahead) == 1:
                wait(ahead)
            if len(ahead) == 1 + len(pools):
                yield from self._given(ahead.popleft().result())
        while ahead:
            yield from self._given(ahead.popleft().result())

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

    def _load(self, window: ReadWindow, pools: Sequence[Executor], each: Each) -> Future[Loaded]:
        """The window: the first thread decodes it, the last one gathers it."""
        decoded = pools[0].submit(self._decode, window)
        return pools[-1].submit(lambda: self._gather(window, decoded.result(), each))

    def _decode(self, window: ReadWindow) -> Decoded:
        """The window's rows in the order of their stripes, and the seconds that took."""
        began, seconds = time.perf_counter(), ReadSeconds()
        pieces = [self._stripes.decode(piece) for piece in window.pieces]
        io = self._stripes.io_seconds()
        seconds.add(IO, io)
        seconds.add(DECODE, time.perf_counter() - began - io)
        return pieces, seconds

    def _gather(self, window: ReadWindow, decoded: Decoded, each: Each) -> Loaded:
        """The window's rows in order, cut at the borders of batches, and the seconds that took."""
        began = time.perf_counter()
        pieces, seconds = decoded
        runs = None
        if self._session_id is not None:
            runs = runs_of(piece.keys[self._session_id] for piece in pieces)
        order = self._order.rows(window, runs)
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
        """Each part's sessions and times, if they were requested in addition to the features."""
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


def key_column(table: Table, name: str) -> str:
    """The table's column of sessions or of times."""
    column: str | None = getattr(table.schema, name)
    if column is None:
        raise RegistryError(
            f"the converter asks for {name}, but the table {table.path} has no such column: {name} "
            "of its schema is null. Name the column there, or choose another converter.",
            "dedup",
        )
    return column


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


PAUSE = 0.05
"""Seconds: the first wait before a stripe is tried again is twice as long, the next one four
times."""
OPEN_FILES = 16
"""How many files, the last used ones, stay open: an epoch reads a file's stripes in any order."""


class StripeReader:
    """Decodes pieces of stripes, and checks what the footers do not show.

    Only the columns that a batch holds are read. A page that does not decode or whose
    checksum differs (tables of ours have checksums), nulls, and ids out of range (where
    there are no statistics) raise `DamagedStripe`, naming file and row group.
    """

    def __init__(
        self,
        table: Table,
        *,
        threads: bool = True,
        keys: Sequence[str] = (),
        left_out: Collection[int] = (),
        tries: int = 1,
    ) -> None:
        self._table = table
        self._left_out, self._tries = frozenset(left_out), tries
        self._threads = threads
        self._keys = keys
        schema = table.schema
        self._columns = [
            *schema.float_columns,
            *schema.sparse_names,
            *schema.weights_names,
            *keys,
        ]
        self._file_columns = table.file_columns(self._columns)
        self._files: dict[Location, OpenedFile] = {}
        self._kept = kept_stripes()  # belongs to the thread that made it: other threads may decode
        self._io = 0.0

    def decode(self, piece: Piece) -> DecodedRows:
        """The rows; `DamagedStripe` if no try succeeds."""
        if piece.stripe in self._left_out:
            return absent_rows(self._table.schema, piece.num_rows, self._keys)
        for tried in range(1, self._tries + 1):
            try:
                return self._decode(piece)
            except DataError as error:
                self._forget(self._table.stripes[piece.stripe].file)
                if tried == self._tries:
                    raise DamagedStripe(str(error), piece.stripe) from error
                time.sleep(PAUSE * 2**tried)
        raise AssertionError("a stripe is tried at least once")

    def _decode(self, piece: Piece) -> DecodedRows:
        stripe = self._table.stripes[piece.stripe]
        file = self._open(stripe.file)
        rows = self._table.stored(
            file,
            stripe,
            self._file_columns,
            threads=self._threads,
            kept=self._kept,
            expand=self._table.source is not None,
        )
        self._io += file.io_seconds()
        rows = rows.slice(piece.start, piece.num_rows)
        known = id_ranges(file.metadata, stripe.group).keys()
        rows = self._table.conform(
            rows, str(stripe), self._columns, first_row=piece.start, in_range=known
        )
        decoded = decode_rows(rows, self._table.schema, str(stripe), self._keys, piece.start)
        if self._table.source is None:
            self._check_ids(stripe, decoded, known)
        return decoded

    def io_seconds(self) -> float:
        """The seconds spent reading bytes since the last call."""
        found, self._io = self._io, 0.0
        return found

    def _open(self, path: Location) -> OpenedFile:
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) == OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            file = self._table.opened(path)
        self._files[path] = file
        return file

    def _forget(self, path: Location) -> None:
        """Close the file, so that the next try opens it again."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def _check_ids(self, stripe: Stripe, decoded: DecodedRows, known: Collection[str]) -> None:
        """Check the ids of columns without statistics; `Table.open` has checked the others."""
        for feature in self._table.schema.sparse:
            for part in () if feature.name in known else decoded.features[feature.name]:
                low, high = part.values.aminmax() if len(part.values) else (0, 0)
                worst = int(low if low < 0 else high)
                if not 0 <= worst < feature.num_ids:
                    raise id_error(stripe, feature.name, worst, feature.num_ids)
