"""The order of rows: which rows a consumer reads is a pure function of seed and position.

An epoch permutes the stripes, lays their rows end to end and cuts them into `streams`
equal ranges. A batch takes the same number of rows from each stream of its consumer (a
rank, or one worker of a rank), so with the streams fixed the global batch of a step holds
the same rows at any world size. Within a stream, rows are shuffled window by window, or
whole sessions are: bands of one session then move as one, and fill batches whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import RegistryError, so_many

__all__ = [
    "Order",
    "Piece",
    "ReadWindow",
    "SessionOrder",
    "Shares",
    "Tail",
    "bands_of",
    "pack",
    "rows_of_spans",
]

Tail = Literal["drop", "pad"]
"""What happens to rows that do not fill the last batch: they are left out, or padded with rows of
weight 0."""
Rows = npt.NDArray[np.int64]
SessionOrder = Literal["split", "together", "whole"]
"""What shuffling does to consecutive rows of a session: see `reader.sessions`."""
Spans = tuple[Rows, Rows]
"""Where each span of rows begins, and how many rows it has."""

STRIPES, ROWS = 0, 1
"""What a random generator is for; a part of its seed."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How streams are shared out evenly to consumers: ranks, or `workers` workers of each."""

    world_size: int
    workers: int = 0
    streams: int
    """V, a multiple of the consumers."""

    def __post_init__(self) -> None:
        if self.streams % self.consumers:
            raise RegistryError(
                f"reader.streams is {self.streams}, but must be a multiple of {self.consumers} "
                f"({so_many(self.world_size, 'rank')} of "
                f"{so_many(max(1, self.workers), 'consumer')} each)."
            )

    @property
    def consumers(self) -> int:
        return self.world_size * max(1, self.workers)

    def streams_of(self, rank: int, worker: int = 0) -> range:
        each = self.streams // self.consumers
        consumer = rank * max(1, self.workers) + worker
        return range(consumer * each, (consumer + 1) * each)

    def rows_per_batch(self, batch_size: int) -> int:
        """Rows that a batch of one consumer takes from each of its streams."""
        each = self.streams // self.consumers
        if batch_size % each:
            raise RegistryError(
                f"train.batch_size is {batch_size}, but a batch is drawn from "
                f"{so_many(each, 'stream')} evenly: make it a multiple of {each}, or change "
                "reader.streams."
            )
        return batch_size // each


class Piece(NamedTuple):
    """Rows [start, stop) of a stripe."""

    stripe: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class ReadWindow:
    """Pieces of a stream that are read, and shuffled, as one."""

    pieces: tuple[Piece, ...]
    index: tuple[int, int, int]
    """Epoch, stream, and which of the stream's windows it is."""
    position: int
    """The position in the stream of the first row that it delivers."""
    num_rows: int
    """Rows that it delivers, padding included."""
    skipped: int = 0
    """Rows before those, which a resumed epoch has already delivered."""
    padding: int = 0
    """The number of rows at the end that repeat a row to fill the batch; their weight is 0."""

    @property
    def rows_read(self) -> int:
        return sum(piece.num_rows for piece in self.pieces)

    def cuts(self, rows_per_batch: int) -> list[int]:
        """The sizes of the parts into which the borders of batches cut the rows that it
        delivers."""
        return _cuts(self.position, self.num_rows, rows_per_batch)

    def until(self, end: int) -> ReadWindow:
        """The same window, without the rows from position `end` of the stream on."""
        over = max(0, self.position + self.num_rows - end)
        padding = max(0, self.padding - over)
        return replace(self, num_rows=self.num_rows - over, padding=padding)


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a table's N rows over the epochs."""

    stripe_rows: tuple[int, ...]
    """Rows of each stripe."""
    streams: int
    """V."""
    rows_per_batch: int
    """Rows that a batch takes from each of its streams."""
    shuffle: bool
    window: int
    """Pieces that are shuffled together; 0 keeps rows in the order of their stripe."""
    tail: Tail
    """`drop` leaves out what does not fill a batch; `pad` has a shorter last batch, padded."""
    seed: int
    sessions: SessionOrder = "split"
    """`split` shuffles rows one by one, `together` moves a band of one session as one, and `whole`
    also packs bands so that the borders of batches cut few."""

    @cached_property
    def num_rows(self) -> int:
        return sum(self.stripe_rows)

    @cached_property
    def rows_per_stream(self) -> int:
        """Rows that every stream delivers in an epoch, padding included.

        `pad`: ceil(N / V); `drop`: floor(N / V), down to a multiple of `rows_per_batch`.
        """
        if self.tail == "pad":
            return -(-self.num_rows // self.streams)
        return self.num_rows // self.streams // self.rows_per_batch * self.rows_per_batch

    @property
    def num_batches(self) -> int:
        """Batches of every consumer in an epoch."""
        return -(-self.rows_per_stream // self.rows_per_batch)

    def batch_rows(self, batch: int) -> int:
        """Rows that this batch takes from each of its streams: the last batch may take fewer."""
        return min(self.rows_per_batch, self.rows_per_stream - batch * self.rows_per_batch)

    def windows(self, epoch: int, stream: int, batch: int = 0) -> Iterator[ReadWindow]:
        """The windows of a stream; the first begins at the stream's part of `batch`."""
        if batch >= self.num_batches:
            return
        wanted, length = batch * self.rows_per_batch, self.rows_per_stream
        start, stop = (self.num_rows * bound // self.streams for bound in (stream, stream + 1))
        own = stop - start
        # If there are more streams than rows, a stream without any is padded with a row of another
        # stream.
        pieces = self._pieces(epoch, start, max(own, 1))
        step = self.window if self.shuffle and self.window else 1
        position = 0
        for index in range(0, len(pieces), step):
            window = pieces[index : index + step]
            end = position + sum(piece.num_rows for piece in window)
            last = index + step >= len(pieces)
            padding = max(0, length - own) if last else 0
            if end > wanted or last:
                first = max(position, wanted)
                yield ReadWindow(
                    pieces=window,
                    index=(epoch, stream, index // step),
                    position=first,
                    num_rows=(length if last else min(end, length)) - first,
                    skipped=first - position,
                    padding=padding,
                )
            position = end
            if position >= length:
                return

    def rows(self, window: ReadWindow, runs: Rows | None = None) -> Rows:
        """[num_rows] the rows that a window delivers, in order: indices into its pieces laid end to
        end.

        `runs` [R] are the rows of each band of one session in these pieces (`bands_of`), which
        `sessions` needs unless it is `split`.
        """
        if self.sessions == "split":
            rows = self._shuffled(window, window.rows_read)
        else:
            assert runs is not None
            order = self._shuffled(window, len(runs))
            spans = (runs.cumsum() - runs)[order], runs[order]
            if self.sessions == "whole":
                start = window.position - window.skipped
                spans = pack(*spans, _cuts(start, window.rows_read, self.rows_per_batch))
            rows = rows_of_spans(spans)
        if window.padding:
            rows = np.append(rows, rows[-1])
        return rows[window.skipped : window.skipped + window.num_rows]

    def _pieces(self, epoch: int, start: int, num_rows: int) -> tuple[Piece, ...]:
        """Rows [start, start + num_rows) of the epoch's stripes laid end to end."""
        stripes, ends = self._stripes(epoch)
        pieces = []
        index = int(np.searchsorted(ends, start, side="right"))
        while num_rows:
            first = start - (int(ends[index - 1]) if index else 0)
            taken = min(num_rows, int(ends[index]) - start)
            pieces.append(Piece(int(stripes[index]), first, first + taken))
            start, num_rows, index = start + taken, num_rows - taken, index + 1
        return tuple(pieces)

    def _stripes(self, epoch: int) -> tuple[Rows, Rows]:
        """The stripes in the epoch's order, and where the rows of each end."""
        sizes = np.asarray(self.stripe_rows, dtype=np.int64)
        stripes = np.arange(len(sizes))
        if self.shuffle:
            stripes = self._random(STRIPES, epoch).permutation(stripes)
        return stripes, sizes[stripes].cumsum()

    def _shuffled(self, window: ReadWindow, count: int) -> Rows:
        if self.shuffle and self.window:
            return self._random(ROWS, *window.index).permutation(count)
        return np.arange(count)

    def _random(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed % 2**64, *purpose])


def _cuts(position: int, num_rows: int, rows_per_batch: int) -> list[int]:
    """The sizes of the parts of `num_rows` rows from `position` on, cut at the borders of
    batches."""
    first = rows_per_batch - position % rows_per_batch
    borders = [0, *range(first, num_rows, rows_per_batch), num_rows]
    sizes: list[int] = np.diff(borders).tolist()
    return sizes


def bands_of(columns: Iterable[pa.ChunkedArray]) -> Rows:
    """[R] the number of rows of each band: consecutive rows of one session, with the columns laid
    end to end.

    A row without a session is a band of its own.
    """
    chunks = [chunk for column in columns for chunk in column.chunks]
    sessions = pa.concat_arrays(chunks)
    changes = pc.not_equal(sessions[1:], sessions[:-1]).fill_null(True)
    starts = 1 + np.flatnonzero(changes.to_numpy(zero_copy_only=False))
    return np.diff(starts, prepend=0, append=len(sessions))


def pack(begins: Rows, sizes: Rows, rooms: Sequence[int]) -> Spans:
    """Packs bands into batches with room for `rooms` rows each, which are filled exactly, one after
    the other.

    The next band goes into the batch if it fits. If it does not, the first later one that fits goes
    before it; if none fits, the band is cut, and its rest is the next band. A band that no room can
    hold is cut at once, else all of these would come last. The bands must fill all rooms.
    """
    spans = np.empty((2, len(begins) + len(rooms)), np.int64)  # a room cuts at most one band
    count = _pack(begins, sizes.copy(), np.array(rooms), spans)
    return spans[0, :count], spans[1, :count]


@kernel
def _pack(begins: Rows, left: Rows, rooms: Rows, spans: Rows) -> int:
    """Writes where each span begins, and its size, and returns the number of spans. The numbers
    `left`, rows of each band, become 0."""
    widest = rooms.max()
    ends = begins + left
    head = count = 0
    for room in rooms:
        while room:
            if not left[head]:  # it went before
                head += 1
                continue
            band = head
            if room < left[head] <= widest:
                band = _first_fitting(left, head, room)
            size = min(room, left[band])
            spans[0, count] = ends[band] - left[band]
            spans[1, count] = size
            count += 1
            left[band] -= size
            room -= size
    return count


@kernel
def _first_fitting(left: Rows, head: int, room: int) -> int:
    """The first band behind `head` with at least one row left and at most `room`; `head` if there
    is none."""
    for band in range(head + 1, len(left)):
        if 0 < left[band] <= room:
            return band
    return head


def rows_of_spans(spans: Spans) -> Rows:
    """[n] the rows of the spans, one span after the other."""
    begins, sizes = spans
    ends = sizes.cumsum()
    rows: Rows = np.repeat(begins - (ends - sizes), sizes)
    rows += np.arange(len(rows))
    return rows
