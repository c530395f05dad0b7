"""Windows of a table → the batches of a consumer: gather in order, cut, join.

Memory, per stream of the consumer: the window in use and, while the next one is loaded, that
one twice (decoded, and in its order); allocators keep what is freed. A window is
`reader.window` stripes at 8 bytes an id, 4 a length or float; of the features that a `dedup`
converter takes, each different row once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import Columns, PooledColumns
from recd_plugins.data.order import Order, Window
from recd_plugins.data.sessions import runs_of
from recd_plugins.data.stripes import Decoded, StripeReader
from recd_plugins.data.table import Table
from recd_plugins.sparse.jagged import Jagged, Scratch
from recd_plugins.sparse.rows.pool import Picked, RowBlock, gather_blocks, join_blocks

__all__ = ["BatchReader"]


@dataclass(frozen=True)
class Part:
    """b rows of a window that go into one batch."""

    dense: Tensor
    """[b, n_dense] float32."""
    labels: Tensor
    """[b] float32."""
    weights: Tensor
    """[b] float32; 0 marks padding."""
    features: RowBlock
    """Of the features that go into the batch."""
    apart: Picked
    """Of those that do not."""


class BatchReader:
    """The batches of one consumer: those streams of an order that it owns."""

    def __init__(
        self,
        table: Table,
        order: Order,
        streams: Sequence[int],
        *,
        apart: Collection[str] = (),
        prefetch: bool = True,
        threads: bool = True,
    ) -> None:
        """Features `apart` come beside the batches, not in them.

        `prefetch` loads each stream's next window in a thread, while this one is used.
        """
        names = table.schema.sparse_names
        self._features = [name for name in names if name not in apart]
        self._apart = [name for name in names if name in apart]
        self._order = order
        self._streams = streams
        self._prefetch = prefetch
        self._stripes = StripeReader(table, threads=threads, sessions=order.sessions != "split")
        self._scratch = Scratch()

    def batches(self, epoch: int, first: int = 0) -> Iterator[tuple[Batch, Columns]]:
        """The epoch from batch `first` on, which begins as fast as from its start."""
        if not self._prefetch:
            yield from self._batches(epoch, first, None)
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="recd-reader")
        try:
            yield from self._batches(epoch, first, pool)
        finally:
            pool.shutdown(cancel_futures=True)

    def _batches(
        self, epoch: int, first: int, pool: Executor | None
    ) -> Iterator[tuple[Batch, Columns]]:
        streams = [self._parts(epoch, stream, first, pool) for stream in self._streams]
        for batch in range(first, self._order.num_batches):
            parts = []
            for stream in streams:
                left = self._order.batch_rows(batch)
                while left:
                    parts.append(next(stream))
                    left -= len(parts[-1].labels)
            yield self._join(parts)

    def _parts(self, epoch: int, stream: int, first: int, pool: Executor | None) -> Iterator[Part]:
        """The stream cut at the borders of batches and of windows."""
        windows = self._order.windows(epoch, stream, first)
        if pool is None:
            for window in windows:
                yield from _given(self._load(window))
            return
        ahead: deque[Future[list[Part]]] = deque()
        for window in windows:
            ahead.append(pool.submit(self._load, window))
            if len(ahead) == 2:
                yield from _given(ahead.popleft().result())
        while ahead:
            yield from _given(ahead.popleft().result())

    def _load(self, window: Window) -> list[Part]:
        """The window's rows in order, cut at the borders of batches."""
        pieces = [self._stripes.decode(piece) for piece in window.pieces]
        sessions = [piece.sessions for piece in pieces if piece.sessions is not None]
        order = self._order.rows(window, runs_of(sessions) if sessions else None)
        sizes = window.cuts(self._order.rows_per_batch)
        weights = torch.ones(len(order))
        weights[len(order) - window.padding :] = 0
        features = [_column(pieces, name) for name in self._features]
        apart = [_column(pieces, name) for name in self._apart]
        parts = zip(
            _take([piece.dense for piece in pieces], order).split(sizes),
            _take([piece.labels for piece in pieces], order).split(sizes),
            weights.split(sizes),
            gather_blocks(features, order, sizes, self._scratch),
            Picked.of(apart, order).cut(sizes),
            strict=True,
        )
        return [Part(*part) for part in parts]

    def _join(self, parts: Sequence[Part]) -> tuple[Batch, Columns]:
        batch = Batch(
            dense=torch.cat([part.dense for part in parts]),
            features=join_blocks([part.features for part in parts]).kjt(self._features),
            labels=torch.cat([part.labels for part in parts]),
            weights=torch.cat([part.weights for part in parts]),
        )
        return batch, PooledColumns(self._apart, [part.apart for part in parts])


def _given(parts: list[Part]) -> Iterator[Part]:
    """The parts, held no longer: a batch has the memory of its part."""
    parts.reverse()
    while parts:
        yield parts.pop()


def _column(pieces: Sequence[Decoded], name: str) -> list[Jagged]:
    return [part for piece in pieces for part in piece.features[name]]


def _take(parts: Sequence[Tensor], rows: npt.NDArray[np.int64]) -> Tensor:
    """Rows of [n_i, ...] laid end to end."""
    # numpy, since torch's own index would wake its threads, which belong to the model.
    whole = np.concatenate([part.numpy() for part in parts])
    return torch.from_numpy(whole.take(rows, axis=0))
