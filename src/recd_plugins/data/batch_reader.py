"""A consumer's batches: the stripes of a window are decoded, gathered in order, cut and joined.

Memory holds, per stream of the consumer, the window in use and, while the next one is loaded,
that one twice (decoded, and in its order); allocators keep what is freed. A window is
`reader.window` stripes at 8 bytes an id, 4 a length or float; of the features that a `dedup`
converter takes, each different row once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import Columns, PooledColumns
from recd_plugins.data.conform.ids import id_error
from recd_plugins.data.decoded import DecodedRows, decode_rows
from recd_plugins.data.files import opened
from recd_plugins.data.order import Order, Piece, ReadWindow, runs_of
from recd_plugins.data.table import Stripe, Table, id_ranges, read_stripe
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.sparse.jagged import Jagged, Scratch, WeightedJagged
from recd_plugins.sparse.rows.pool import Picked, RowBlock, gather_blocks, join_blocks

__all__ = ["BatchReader", "StripeReader", "key_column"]


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
    """What was asked for beside the features, [b] int64 each."""


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
        prefetch: bool = True,
        threads: bool = True,
    ) -> None:
        """Features `unjoined` come as columns beside the batches, not in them.

        With them come those of `ASKABLE` that `beside` names, each from a column of the table.
        `prefetch` loads each stream's next window in a thread, while this one is used.
        """
        names = table.schema.sparse_names
        self._features = [name for name in names if name not in unjoined]
        self._unjoined = [name for name in names if name in unjoined]
        self._order = order
        self._streams = streams
        self._prefetch = prefetch
        self._beside = beside or {}
        self._session_id = table.schema.session_id if order.sessions != "split" else None
        keys = {*self._beside.values(), *filter(None, [self._session_id])}
        self._stripes = StripeReader(table, threads=threads, keys=sorted(keys))
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

    def _parts(
        self, epoch: int, stream: int, first: int, pool: Executor | None
    ) -> Iterator[WindowPart]:
        """The stream cut at the borders of batches and of windows."""
        windows = self._order.windows(epoch, stream, first)
        if pool is None:
            for window in windows:
                yield from _given(self._load(window))
            return
        ahead: deque[Future[list[WindowPart]]] = deque()
        for window in windows:
            ahead.append(pool.submit(self._load, window))
            if len(ahead) == 2:
                yield from _given(ahead.popleft().result())
        while ahead:
            yield from _given(ahead.popleft().result())

    def _load(self, window: ReadWindow) -> list[WindowPart]:
        """The window's rows in order, cut at the borders of batches."""
        pieces = [self._stripes.decode(piece) for piece in window.pieces]
        runs = None
        if self._session_id is not None:
            runs = runs_of(piece.keys[self._session_id] for piece in pieces)
        order = self._order.rows(window, runs)
        sizes = window.cuts(self._order.rows_per_batch)
        weights = _take([piece.weights for piece in pieces], order)
        weights[len(order) - window.padding :] = 0
        features = [_column(pieces, name) for name in self._features]
        unjoined = [_column(pieces, name) for name in self._unjoined]
        parts = zip(
            _take([piece.dense for piece in pieces], order).split(sizes),
            _take([piece.labels for piece in pieces], order).split(sizes),
            weights.split(sizes),
            gather_blocks(features, order, sizes, self._scratch),
            Picked.of(unjoined, order).cut(sizes),
            self._asked(pieces, order, sizes),
            strict=True,
        )
        return [WindowPart(*part) for part in parts]

    def _asked(
        self, pieces: Sequence[DecodedRows], order: npt.NDArray[np.int64], sizes: list[int]
    ) -> list[dict[str, Tensor]]:
        """Each part's sessions and times, where they were asked for beside the features."""
        columns = {
            name: _take([_whole_numbers(piece.keys[key], key) for piece in pieces], order)
            for name, key in self._beside.items()
        }
        cut = {name: column.split(sizes) for name, column in columns.items()}
        return [{name: cut[name][part] for name in cut} for part in range(len(sizes))]

    def _join(self, parts: Sequence[WindowPart]) -> tuple[Batch, Columns]:
        batch = Batch(
            dense=torch.cat([part.dense for part in parts]),
            features=join_blocks([part.features for part in parts]).kjt(self._features),
            labels=torch.cat([part.labels for part in parts]),
            weights=torch.cat([part.weights for part in parts]),
        )
        beside = {name: torch.cat([part.beside[name] for part in parts]) for name in self._beside}
        return batch, PooledColumns(self._unjoined, [part.unjoined for part in parts], beside)


def key_column(table: Table, name: str) -> str:
    """The table's column of sessions or of times."""
    column: str | None = getattr(table.schema, name)
    if column is None:
        raise RegistryError(
            f"the converter asks for {name}, but the table {table.path} has none: its schema's "
            f"{name} is null. Name the column there, or choose another converter.",
            "dedup",
        )
    return column


def _whole_numbers(column: pa.ChunkedArray, name: str) -> Tensor:
    """[N] int64, of a column that has a whole number in each row."""
    if not pa.types.is_integer(column.type) or column.null_count:
        raise DataError(
            f"column {name!r} has {column.null_count} nulls and type {column.type}, but a "
            "converter takes whole numbers alone. Write the table again with such."
        )
    return torch.from_numpy(column.to_numpy().astype(np.int64))


def _given(parts: list[WindowPart]) -> Iterator[WindowPart]:
    """The parts, held no longer: a batch has the memory of its part."""
    parts.reverse()
    while parts:
        yield parts.pop()


def _column(pieces: Sequence[DecodedRows], name: str) -> list[Jagged | WeightedJagged]:
    return [part for piece in pieces for part in piece.features[name]]


def _take(parts: Sequence[Tensor], rows: npt.NDArray[np.int64]) -> Tensor:
    """Rows of [n_i, ...] laid end to end."""
    # numpy, since torch's own index would wake its threads, which belong to the model.
    whole = np.concatenate([part.numpy() for part in parts])
    return torch.from_numpy(whole.take(rows, axis=0))


OPEN_FILES = 16
"""Files that stay open, the last used: an epoch meets the stripes of a file in any order."""


class StripeReader:
    """Decodes pieces of stripes, and checks what their footers do not hold.

    Only the columns that a batch holds are read. A page that does not decode or whose
    checksum differs (tables of ours have checksums), nulls, and ids out of range (where
    there are no statistics) raise `DataError`, naming file and row group.
    """

    def __init__(self, table: Table, *, threads: bool = True, keys: Sequence[str] = ()) -> None:
        self._table = table
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
        self._files: dict[Path, pq.ParquetFile] = {}

    def decode(self, piece: Piece) -> DecodedRows:
        stripe = self._table.stripes[piece.stripe]
        file = self._open(stripe.file)
        rows = read_stripe(file, stripe, self._file_columns, threads=self._threads)
        rows = rows.slice(piece.start, piece.num_rows)
        known = id_ranges(file.metadata, stripe.group).keys()
        rows = self._table.conform(
            rows, str(stripe), self._columns, first_row=piece.start, in_range=known
        )
        decoded = decode_rows(rows, self._table.schema, str(stripe), self._keys, piece.start)
        if self._table.source is None:
            self._check_ids(stripe, decoded, known)
        return decoded

    def _open(self, path: Path) -> pq.ParquetFile:
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) == OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            file = opened(path)
        self._files[path] = file
        return file

    def _check_ids(self, stripe: Stripe, decoded: DecodedRows, known: Collection[str]) -> None:
        """What `Table.open` has done for the columns that have statistics."""
        for feature in self._table.schema.sparse:
            for part in () if feature.name in known else decoded.features[feature.name]:
                low, high = part.values.aminmax() if len(part.values) else (0, 0)
                worst = int(low if low < 0 else high)
                if not 0 <= worst < feature.num_ids:
                    raise id_error(stripe, feature.name, worst, feature.num_ids)
