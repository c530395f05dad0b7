"""Rows in the order of a clustered table: by session hash, then timestamp, then original order.

Rows that fit in memory are sorted there. If they do not fit (one session may be the whole table),
they are sorted in bands on disk, which are then merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from recd_dedup.hashing import I64, U64, mix
from recd_plugins.api.data import Schema

__all__ = ["clustered", "keys_of"]

PIECE_SHARE = 16
"""Rows are returned in pieces of a 16th of a band."""
HEAD_SHARE = 128
"""A 128th of each band on disk is held in memory, so up to 128 bands take as much as one does."""


class Keys(NamedTuple):
    """The keys by which N rows are sorted."""

    hashes: U64
    """[N] of the rows' sessions."""
    times: I64
    """[N]; zeros if the table has no timestamp."""

    def order(self) -> I64:
        """[N] the rows in order; rows with equal keys keep their order."""
        return np.lexsort((self.times, self.hashes))

    @property
    def are_in_order(self) -> bool:
        """Whether the rows are in order as they are."""
        hashes, times = self
        alike = (hashes[1:] == hashes[:-1]) & (times[1:] >= times[:-1])
        return bool(((hashes[1:] > hashes[:-1]) | alike).all())

    def at(self, row: int) -> tuple[int, int]:
        """The keys of one row."""
        return int(self.hashes[row]), int(self.times[row])

    def before(self, hash_: int, time: int, *, or_at: bool) -> int:
        """How many of these keys, which are sorted, come before a key (or equal it, if `or_at`)."""
        low = int(self.hashes.searchsorted(np.uint64(hash_), "left"))
        high = int(self.hashes.searchsorted(np.uint64(hash_), "right"))
        times = self.times[low:high]
        return low + int(times.searchsorted(np.int64(time), "right" if or_at else "left"))


def clustered(
    chunks: Iterable[pa.Table], schema: Schema, band_bytes: int, scratch: Path
) -> Iterator[pa.Table]:
    """The rows of all chunks in order, in pieces; takes about twice `band_bytes` of memory.

    `scratch` is a folder for bands; it is made and emptied as needed.
    """
    bands: list[Path] = []
    held: list[pa.Table] = []

    def spill() -> None:
        path = scratch / f"band-{len(bands):05}.arrow"
        _write_band(_sorted(held, schema, band_bytes // HEAD_SHARE), schema, path)
        bands.append(path)

    for chunk in chunks:
        if held and _size(held) + chunk.nbytes > band_bytes:
            spill()
        held.append(chunk)
    if not bands:
        yield from _sorted(held, schema, band_bytes // PIECE_SHARE)
        return
    spill()
    yield from _merge(bands, schema, band_bytes // PIECE_SHARE)
    for band in bands:
        band.unlink()


def _size(chunks: list[pa.Table]) -> int:
    return sum(int(chunk.nbytes) for chunk in chunks)


def keys_of(rows: pa.Table, schema: Schema) -> Keys:
    """The keys of rows of a table with sessions."""
    hashes = mix(rows[schema.session_id].to_numpy())
    if schema.timestamp is None:
        return Keys(hashes, np.zeros(rows.num_rows, np.int64))
    return Keys(hashes, rows[schema.timestamp].to_numpy())


def _sorted(held: list[pa.Table], schema: Schema, piece_bytes: int) -> Iterator[pa.Table]:
    """The rows of all chunks, in order and in pieces; the chunks are removed from `held`."""
    if not held:
        return
    rows = pa.concat_tables(held).combine_chunks()
    held.clear()
    order = keys_of(rows, schema).order()
    step = max(1, rows.num_rows * piece_bytes // max(1, rows.nbytes))
    for first in range(0, rows.num_rows, step):
        yield rows.take(pa.array(order[first : first + step]))


def _write_band(rows: Iterator[pa.Table], schema: Schema, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, schema.arrow(), options=options) as stream,
    ):
        for piece in rows:
            stream.write_table(piece)


@dataclass
class _Band:
    """A sorted band, whose head is in memory."""

    stream: pa.ipc.RecordBatchStreamReader
    schema: Schema
    head: pa.Table
    keys: Keys

    @classmethod
    def open(cls, path: Path, schema: Schema, files: ExitStack) -> _Band:
        file = files.enter_context(pa.OSFile(str(path)))
        band = cls(pa.ipc.open_stream(file), schema, schema.arrow().empty_table(), _NO_KEYS)
        band.cut(0)
        return band

    @property
    def last(self) -> tuple[int, int]:
        return self.keys.at(-1)

    def cut(self, rows: int) -> pa.Table:
        """Take the first rows of the head; if it is then empty, read the next one."""
        piece, self.head = self.head.slice(0, rows), self.head.slice(rows)
        self.keys = Keys(self.keys.hashes[rows:], self.keys.times[rows:])
        while not self.head.num_rows:
            try:
                batch = self.stream.read_next_batch()
            except StopIteration:
                break
            self.head = pa.Table.from_batches([batch])
            self.keys = keys_of(self.head, self.schema)
        return piece


_NO_KEYS = Keys(np.empty(0, np.uint64), np.empty(0, np.int64))


def _merge(paths: list[Path], schema: Schema, piece_bytes: int) -> Iterator[pa.Table]:
    """The rows of all bands in order; for equal keys, the rows of an earlier band come first."""
    with ExitStack() as files:
        bands = [_Band.open(path, schema, files) for path in paths]
        while bands := [band for band in bands if band.head.num_rows]:
            # Nothing that is still on disk comes before the least of the last keys. Rows of later
            # bands with that key must wait for the rest of the band that has it.
            lasts = [band.last for band in bands]
            least = min(lasts)
            leader = lasts.index(least)
            counts = [
                band.keys.before(*least, or_at=index <= leader) for index, band in enumerate(bands)
            ]
            pieces = [band.cut(count) for band, count in zip(bands, counts, strict=True) if count]
            yield from _sorted(pieces, schema, piece_bytes)
