"""A rank's batches by epoch and position: read, transformed, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import Columns
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.read_seconds import (
    DECODE,
    GATHER,
    HAND_OVER,
    IO,
    HandedOver,
    ReadSeconds,
)
from recd_plugins.data.reader.batch_reader import BatchReader
from recd_plugins.data.reader.order import Order, Shares
from recd_plugins.data.reader.shared_tensors import share_memory
from recd_plugins.data.table import Table
from recd_plugins.errors import RecdError, RegistryError

__all__ = ["RankBatches"]

Transform = Callable[[Batch], Batch]

WINDOW_ROWS, WINDOW_SHARE = 2_000_000, 0.02
"""How much of an epoch is read for batches from all over it: this many rows, or this part."""
FEWEST, SECONDS = 8, 20.0
"""This many windows are read however long they take; after this many seconds, no more are."""


class RankBatches(IterableDataset[HandedOver]):
    """The batches that a rank, or the worker in which this runs, reads in an epoch.

    A `RecdError` is handed over in place of a batch, so that a worker's error reaches the user as
    it is, not wrapped in a traceback.
    """

    def __init__(
        self,
        table: Table,
        order: Order,
        shares: Shares,
        *,
        rank: int,
        prefetch: int,
        transform: Transform | None,
        gently: bool = False,
    ) -> None:
        """`prefetch` windows are loaded ahead, `gently` or not, as in a `BatchReader`."""
        self.epoch = 0
        """The epoch that the next `iter` reads."""
        self.first = 0
        """The batch that it begins with, if torchdata has no state of it."""
        self.left_out: tuple[int, ...] = ()
        """Stripes that could not be read: their rows are empty and have weight 0."""
        self.tries = 1
        """The number of times that a stripe is read until it counts as damaged."""
        self.order = order
        self._table = table
        self._shares = shares
        self._rank = rank
        self._prefetch, self._gently = prefetch, gently
        self._transform = transform
        steps = transform if isinstance(transform, BatchTransform) else None
        self._unjoined = steps.takes if steps else frozenset()
        self._beside = {name: _key_column(table, name) for name in steps.asks} if steps else {}

    def __iter__(self) -> EpochIterator:
        return EpochIterator(self, self.epoch, self.first)

    @property
    def transform(self) -> Transform | None:
        """The transform that its batches go through."""
        return self._transform

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that are timed."""
        transform = self._transform
        own = transform.parts if isinstance(transform, BatchTransform) else ()
        return (IO, DECODE, GATHER, *own, HAND_OVER)

    def batches(
        self, epoch: int, first: int, stop: int | None = None, then: Sequence[range] = ()
    ) -> Iterator[HandedOver]:
        """The epoch from batch `first` on, up to `stop`; then the batches of the ranges `then`,
        whose windows are loaded ahead like all others."""
        worker, transform = get_worker_info(), self._transform
        own = transform.seconds if isinstance(transform, BatchTransform) else ReadSeconds()
        own.taken()  # of an epoch that was left in the middle
        try:
            reader = self._reader(
                worker.id if worker else 0, prefetch=self._prefetch, threads=worker is None
            )
            for batch, unjoined in reader.batches(epoch, first, stop, then):
                made = self._transformed(batch, unjoined)
                if worker is not None:
                    share_memory(made)
                seconds = reader.seconds.taken() | own.taken()
                yield HandedOver(made, seconds, time.perf_counter())
        except RecdError as error:
            yield HandedOver(error, {}, time.perf_counter())

    def places(self, epoch: int) -> int:
        """The number of places where an epoch may be begun. If the epoch has no more than
        `WINDOW_ROWS` rows, these are all of its batches, since no window is read twice; else as
        many windows as have that many rows, or `WINDOW_SHARE` of the windows if that is more."""
        rows = self._rows
        if rows <= WINDOW_ROWS:
            return self.order.num_batches * max(1, self._shares.workers)
        windows = sum(1 for _ in self.order.windows(epoch, self._shares.streams_of(self._rank)[0]))
        return max(FEWEST, int(windows * max(WINDOW_SHARE, WINDOW_ROWS / rows)))

    def spread(
        self, epoch: int, blocks: range, size: int, first: int | None = None
    ) -> Iterator[tuple[int, Batch]]:
        """`LocalLoader.spread` of an epoch: block b comes from worker b modulo their number."""
        workers = max(1, self._shares.workers)
        length = self.order.num_batches
        if first is not None:  # the workers take turns
            length = min(length, max(1, -(-first // workers)))
        size = min(size, length)
        for worker in range(workers):
            starts = self._drawn_starts(worker, size, length)
            wanted = [block for block in blocks if block % workers == worker]
            drawn = {b: starts[b // workers] for b in wanted if b // workers < len(starts)}
            if not drawn:
                continue
            reader = self._reader(worker, prefetch=0, threads=True)
            windows = self._window_starts(epoch, worker)
            found = _by_window(partial(reader.batches, epoch), drawn, size, windows)
            for block, (batch, unjoined) in found:
                yield block, self._transformed(batch, unjoined)

    def _drawn_starts(self, worker: int, size: int, length: int) -> list[int]:
        """Where a worker's first `length` batches are cut into blocks of `size`, in random
        order."""
        draw = np.random.default_rng([self.order.seed % 2**64, self._rank, worker])
        starts: list[int] = (size * draw.permutation(length // size)).tolist()
        return starts

    def _window_starts(self, epoch: int, worker: int) -> npt.NDArray[np.int64]:
        """The batch in which each window of a worker's first stream begins."""
        stream = self._shares.streams_of(self._rank, worker)[0]
        begins = [window.position for window in self.order.windows(epoch, stream)]
        return np.array(begins) // self.order.rows_per_batch

    def _transformed(self, batch: Batch, unjoined: Columns) -> Batch:
        if isinstance(self._transform, BatchTransform):
            return self._transform(batch, unjoined)
        return batch if self._transform is None else self._transform(batch)

    @property
    def _rows(self) -> int:
        """Rows of the rank's streams."""
        streams = self._shares.streams_of(self._rank)
        each = len(streams) * max(1, self._shares.workers)
        return self.order.num_rows * each // self._shares.streams

    def _reader(self, worker: int, *, prefetch: int, threads: bool) -> BatchReader:
        return BatchReader(
            self._table,
            self.order,
            self._shares.streams_of(self._rank, worker),
            unjoined=self._unjoined,
            beside=self._beside,
            prefetch=prefetch,
            gently=self._gently,
            threads=threads,
            left_out=self.left_out,
            tries=self.tries,
        )


class EpochIterator(Iterator[HandedOver]):
    """An epoch, from the batch on that its state gives."""

    def __init__(self, source: RankBatches, epoch: int, first: int) -> None:
        self._source = source
        self._epoch = epoch
        self._batches = first
        self._running: Iterator[HandedOver] | None = None

    def __next__(self) -> HandedOver:
        if self._running is None:
            self._running = self._source.batches(self._epoch, self._batches)
        batch = next(self._running)
        self._batches += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "batches": self._batches}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._epoch, self._batches = state["epoch"], state["batches"]


def _key_column(table: Table, name: str) -> str:
    """The table's column of sessions or of times."""
    column: str | None = getattr(table.schema, name)
    if column is None:
        raise RegistryError(
            f"the converter asks for {name}, but the table {table.path} has no such column: {name} "
            "of its schema is null. Name the column there, or choose another converter.",
            "dedup",
        )
    return column


def _by_window(
    read: Callable[[int], Iterator[tuple[Batch, Columns]]],
    drawn: Mapping[int, int],
    size: int,
    windows: npt.NDArray[np.int64],
) -> Iterator[tuple[int, tuple[Batch, Columns]]]:
    """Each batch of the blocks, with its block's number, until they take too long. `drawn` has each
    block's first batch, and `windows` those in which windows begin.

    Blocks of a window come together, so that it is read once. Windows come in random order, so that
    any number of them is from all over the epoch.
    """
    began = time.monotonic()
    within: dict[int, list[int]] = {}
    for block, first in drawn.items():
        window = int(np.searchsorted(windows, first, side="right")) - 1
        within.setdefault(window, []).append(block)
    for done, blocks in enumerate(within.values()):
        if done >= FEWEST and time.monotonic() - began > SECONDS:
            return
        block_of = {drawn[block] + n: block for block in blocks for n in range(size)}
        start = min(block_of)
        for number, batch in enumerate(islice(read(start), 1 + max(block_of) - start), start):
            if number in block_of:
                yield block_of[number], batch
