"""A table's sessions and ids, streamed in pieces, which are counted one at a time.

A piece is a batch of exactly B rows, or a block of whole sessions of a clustered table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from recd_dedup.etl.scan import scan
from recd_plugins.api.data import Schema, SparseFeature, Table
from recd_plugins.api.rows import unique_rows, unique_rows_of_parts

__all__ = ["I64", "Lists", "SessionRows", "batches", "blocks", "chunks", "without_dense"]

I64 = NDArray[np.int64]

CHUNK_BYTES = 16 << 20


class Lists(NamedTuple):
    """N lists of one feature."""

    values: I64
    """Row i's ids are `values[offsets[i] : offsets[i + 1]]`."""
    offsets: I64
    """[N + 1], from 0."""
    codes: I64
    """[N], in [0, U): equal if lists of a batch are equal, including the weights of their ids."""
    firsts: I64
    """[U] the row in which each different list of a batch appears first."""

    @property
    def lengths(self) -> I64:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class SessionRows:
    """N rows in memory."""

    sessions: I64
    """[N] session ids."""
    columns: Mapping[str, pa.ListArray | pa.LargeListArray]
    paired: Collection[str]
    """The columns in whose lists the bits of its weight follow each id."""
    batches: I64 | None = None
    """[N] the number of each row's batch, ascending from 0; None if they are of one batch."""

    @classmethod
    def of(cls, rows: pa.Table, schema: Schema) -> SessionRows:
        whole = rows.combine_chunks()
        return cls(
            sessions=whole[schema.session_id].to_numpy(),
            columns={
                feature.name: _with_weights(whole, feature)
                if feature.scored
                else _one(whole[feature.name])
                for feature in schema.sparse
            },
            paired={feature.name for feature in schema.sparse if feature.scored},
        )

    @cached_property
    def starts(self) -> I64:
        """[R] the first row of each band of one session."""
        changes = self.sessions[1:] != self.sessions[:-1]
        return np.concatenate([[0], 1 + np.flatnonzero(changes)])

    @cached_property
    def order(self) -> I64:
        """[N] the rows batch by batch, and session by session within each."""
        if self.batches is None:
            return self.sessions.argsort(kind="stable")
        return np.lexsort((self.sessions, self.batches))

    @cached_property
    def follows(self) -> NDArray[np.bool_]:
        """[N - 1] whether each row but the first, in this order, follows another of its session and
        batch."""
        sessions = self.sessions[self.order]
        follows: NDArray[np.bool_] = sessions[1:] == sessions[:-1]
        if self.batches is not None:
            follows &= self.batches[1:] == self.batches[:-1]
        return follows

    def features(self) -> Iterator[tuple[str, Lists]]:
        """The lists of each feature, one after another, since each takes its own memory."""
        for name, column in self.columns.items():
            values = torch.from_dlpack(column.flatten())
            offsets = column.offsets.to_numpy().astype(np.int64)
            offsets -= offsets[0]
            ends = torch.from_numpy(offsets)
            unique = (
                unique_rows(values, ends)
                if self.batches is None
                else unique_rows_of_parts(values, ends, torch.from_numpy(self.batches))
            )
            ids = values.numpy()
            if name in self.paired:
                ids, offsets = np.ascontiguousarray(ids[::2]), offsets // 2
            yield (
                name,
                Lists(
                    values=ids,
                    offsets=offsets,
                    codes=unique.inverse_lookup.numpy(),
                    firsts=unique.firsts.numpy(),
                ),
            )

    def __len__(self) -> int:
        return len(self.sessions)


def _with_weights(rows: pa.Table, feature: SparseFeature) -> pa.LargeListArray:
    """Lists of ids and the bits of their weights: lists are equal if both are."""
    ids, weights = _one(rows[feature.name]), _one(rows[feature.weights_name])
    bits = weights.flatten().to_numpy().view(np.int32)
    pairs = np.stack([ids.flatten().to_numpy(), bits], axis=1).reshape(-1)
    offsets = ids.offsets.to_numpy().astype(np.int64)
    return pa.LargeListArray.from_arrays(2 * (offsets - offsets[0]), pa.array(pairs, pa.int64()))


def without_dense(table: Table) -> Table:
    """The same table without its dense columns."""
    schema = dataclasses.replace(table.schema, dense=(), vectors=())
    return dataclasses.replace(table, schema=schema)


def chunks(table: Table, skip: int = 0) -> Iterator[pa.Table]:
    """The rows from row number `skip` on, in order, some megabytes at a time."""
    yield from scan(table, CHUNK_BYTES, skip)


def batches(parts: Iterable[pa.Table], schema: Schema, batch_size: int) -> Iterator[SessionRows]:
    """Batches of `batch_size` consecutive rows; a smaller rest at the end is left out, unless it is
    all there is."""
    held, count, begun = _Held(), 0, False
    for part in parts:
        held.add(part)
        while held.num_rows >= batch_size:
            yield SessionRows.of(held.take(batch_size), schema)
            begun = True
        count += part.num_rows
    if count and not begun:
        yield SessionRows.of(held.take(count), schema)


def blocks(parts: Iterable[pa.Table], schema: Schema, rows: int) -> Iterator[SessionRows]:
    """Blocks of at most `rows` rows, cut between sessions; a larger session is cut, too."""
    held = _Held()
    for part in parts:
        held.add(part)
        while held.num_rows > rows:
            sessions = held.column(schema.session_id, rows + 1)
            borders = np.flatnonzero(sessions[1:] != sessions[:-1])
            yield SessionRows.of(held.take(int(borders[-1]) + 1 if len(borders) else rows), schema)
    if held.num_rows:
        yield SessionRows.of(held.take(held.num_rows), schema)


class _Held:
    """Rows that wait until there are enough of them."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        self.num_rows = 0

    def add(self, part: pa.Table) -> None:
        self._parts.append(part)
        self.num_rows += part.num_rows

    def column(self, name: str | None, rows: int) -> NDArray[Any]:
        whole = pa.concat_tables([part.select([name]) for part in self._parts])
        values: NDArray[Any] = whole[name].slice(0, rows).to_numpy()
        return values

    def take(self, rows: int) -> pa.Table:
        whole = pa.concat_tables(self._parts)
        rest = whole.slice(rows)
        self._parts, self.num_rows = [rest], rest.num_rows
        return whole.slice(0, rows)


def _one(column: pa.ChunkedArray) -> pa.ListArray:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
