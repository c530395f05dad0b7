"""The spill files of the bucket pass, which hashes a table's rows by session into buckets.

A spill file holds a stretch of the table, with one record batch per bucket, and is written whole or
not at all. So bucket k is batch k of every spill, with its rows in the table's order. A killed pass
goes on after the last spill, and only one file is open at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count, pairwise, takewhile
from pathlib import Path

import numpy as np
import pyarrow as pa

from recd_dedup.etl.checksum import Checksum, row_hashes
from recd_dedup.etl.scan import scan
from recd_dedup.etl.sort import keys_of
from recd_dedup.hashing import bucket_of
from recd_plugins.api import DataError
from recd_plugins.api.data import Progress, Schema, Table

__all__ = ["Spills"]

SUMS = b"recd_buckets"
"""The key, in a spill's metadata, of the checksums of its buckets."""


class Spills:
    """The spill files of a folder: those of a killed pass are there from the start."""

    def __init__(self, folder: Path, schema: Schema, n_buckets: int) -> None:
        self._folder = folder
        self._schema = schema
        self._n_buckets = n_buckets
        folder.mkdir(parents=True, exist_ok=True)
        self._files: list[Path] = []
        self.sums = [Checksum()] * n_buckets
        """The checksum of each bucket's rows as they were read from the source."""
        for path in takewhile(Path.exists, map(self._path, count())):
            self._add(path)
        self._last: tuple[int, int] | None = None
        """The keys of the last row that was spilled."""
        self._in_order = not self._files

    @property
    def num_rows(self) -> int:
        return sum(bucket.rows for bucket in self.sums)

    @property
    def were_in_order(self) -> bool:
        """Whether all rows came in the order of a clustered table, as far as this process saw."""
        return self._in_order and self._last is not None

    def fill(self, table: Table, spill_bytes: int, progress: Progress, what: str) -> None:
        """Spill the rows of the table that are not in spills yet; takes about twice `spill_bytes`
        of memory."""
        progress(what, self.num_rows, table.num_rows)
        held: list[pa.Table] = []
        size = 0
        for chunk in scan(table, spill_bytes // 4, skip=self.num_rows):
            held.append(chunk)
            size += chunk.nbytes
            if size >= spill_bytes:
                self._spill(held)
                size = 0
                progress(what, self.num_rows, table.num_rows)
        if held:
            self._spill(held)
            progress(what, self.num_rows, table.num_rows)

    def bucket(self, index: int) -> Iterator[pa.Table]:
        """The bucket's rows, in the table's order."""
        for path in self._files:
            try:
                with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as spill:
                    rows = pa.Table.from_batches([spill.get_batch(index)], self._schema.arrow())
            except (pa.ArrowException, OSError) as error:
                raise _damaged(path, error) from error
            yield rows

    def _spill(self, held: list[pa.Table]) -> None:
        """Write all chunks as the next spill file, and remove them from `held`."""
        rows = pa.concat_tables(held).combine_chunks()
        held.clear()
        keys = keys_of(rows, self._schema)
        if rows.num_rows:
            follows = self._last is None or self._last <= keys.at(0)
            self._in_order = self._in_order and follows and keys.are_in_order
            self._last = keys.at(-1)
        buckets = bucket_of(keys.hashes, self._n_buckets)
        order = buckets.argsort(kind="stable")
        bounds = buckets[order].searchsorted(np.arange(self._n_buckets + 1))
        hashes = row_hashes(rows)[order]
        sums = [Checksum.of(hashes[a:b]) for a, b in pairwise(bounds)]
        text = json.dumps([[one.rows, one.total] for one in sums])
        schema = self._schema.arrow()
        schema = schema.with_metadata({**schema.metadata, SUMS: text.encode()})
        pieces = (rows.take(pa.array(order[a:b])) for a, b in pairwise(bounds))
        path = self._path(len(self._files))
        part = path.with_suffix(".part")
        try:
            _write_batches(part, schema, pieces)
        except OSError:
            part.unlink(missing_ok=True)  # a full disk gets its space back
            raise
        part.rename(path)
        self._add(path)

    def _add(self, path: Path) -> None:
        try:
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as spill:
                sums = [Checksum(*one) for one in json.loads(spill.schema.metadata[SUMS])]
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, error) from error
        self.sums = [one + more for one, more in zip(self.sums, sums, strict=True)]
        self._files.append(path)

    def _path(self, number: int) -> Path:
        return self._folder / f"spill-{number:05}.arrow"


def _write_batches(path: Path, schema: pa.Schema, pieces: Iterable[pa.Table]) -> None:
    """Write each piece as one record batch, even an empty one."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema, options=options) as spill,
    ):
        for piece in pieces:
            arrays = [column.combine_chunks() for column in piece.columns]
            spill.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path}: this spill of the bucket pass was damaged on disk ({error}). Run the step again: "
        "it starts from the beginning. If it happens again, check the disk."
    )
