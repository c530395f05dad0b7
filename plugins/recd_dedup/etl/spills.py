"""The bucket pass: a table's rows, hashed by session into buckets, in spill files.

A spill file is a stretch of the table with one record batch per bucket, written whole or not
at all. So a bucket is batch k of every spill, its rows in the table's order; a killed pass goes
on after the last spill; and no more than one file is open at a time.
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
from recd_dedup.hashing import bucket_of, mix
from recd_plugins.api import DataError
from recd_plugins.api.data import Progress, Schema, Table

__all__ = ["Spills"]

SUMS = b"recd_buckets"


class Spills:
    """The spill files of a folder; each bucket's checksum is known from the source's rows."""

    def __init__(self, folder: Path, schema: Schema, n_buckets: int) -> None:
        self._folder = folder
        self._schema = schema
        self._n_buckets = n_buckets
        folder.mkdir(parents=True, exist_ok=True)
        self._files: list[Path] = []
        self.sums = [Checksum()] * n_buckets
        """Of each bucket, as its rows were read from the source."""
        for path in takewhile(Path.exists, map(self._path, count())):
            self._add(path)

    @property
    def num_rows(self) -> int:
        return sum(bucket.rows for bucket in self.sums)

    def fill(self, table: Table, spill_bytes: int, progress: Progress, what: str) -> None:
        """Spill the rows of the table that are not yet here; holds about twice `spill_bytes`."""
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
        """Write all chunks, which it takes out of `held`, as the next spill file."""
        rows = pa.concat_tables(held).combine_chunks()
        held.clear()
        assert self._schema.session_id is not None  # checked before any row is read
        sessions = rows[self._schema.session_id].to_numpy()
        buckets = bucket_of(mix(sessions), self._n_buckets)
        order = buckets.argsort(kind="stable")
        bounds = buckets[order].searchsorted(np.arange(self._n_buckets + 1))
        hashes = row_hashes(rows)[order]
        sums = [Checksum.of(hashes[a:b]) for a, b in pairwise(bounds)]
        said = json.dumps([[one.rows, one.total] for one in sums])
        schema = self._schema.arrow()
        schema = schema.with_metadata({**schema.metadata, SUMS: said.encode()})
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
    """Each piece as one record batch, be it empty."""
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
        f"{path}: this spill of the bucket pass was damaged on disk ({error}). Run the step "
        "again: it starts anew. If it happens again, check the disk."
    )
