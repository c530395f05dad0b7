"""The files of a clustered table: each is written, read back and verified, then all are published.

A part holds whole sessions, so no session is split across files. Finished parts stay if the run
dies, and the next run goes on after them. A budget limits how much is held in memory.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from recd_dedup.etl.checksum import Checksum, checksum, row_hashes
from recd_dedup.etl.scan import checked_rows, scan
from recd_dedup.etl.sort import clustered
from recd_plugins.api import DataError
from recd_plugins.api.data import Schema, Table, TableWriter, write_whole

__all__ = [
    "PART_STRIPES",
    "STRIPE_ROWS",
    "Bucket",
    "Budget",
    "FilePart",
    "Parts",
    "Workspace",
    "fingerprint",
]

STRIPE_ROWS = 16_384
PART_STRIPES = 16
"""The number of stripes of a part (a file), or a few more: a part ends where a bucket ends."""


class Parts:
    """Makes the parts of one table in a workspace."""

    def __init__(
        self,
        workspace: Workspace,
        schema: Schema,
        *,
        band_bytes: int,
        rows_per_stripe: int,
        compression_level: int,
        leave_out_repeats: bool = False,
    ) -> None:
        self._workspace = workspace
        self._schema = schema
        self._band_bytes = band_bytes
        self._rows_per_stripe = rows_per_stripe
        self._compression_level = compression_level
        self._leave_out = schema.unscored_names if leave_out_repeats else ()
        self._done = workspace.path / "parts"
        self._done.mkdir(exist_ok=True)

    def write(self, part: FilePart) -> Checksum:
        """Write a part, unless it is done already; returns the checksum of its rows."""
        done = self._done / f"{part.name}.parquet"
        if done.exists():
            return part.before or self._read_back(done)
        fresh = self._workspace.path / "fresh"
        seen = [Checksum()]
        with TableWriter(
            fresh,
            self._schema,
            rows_per_stripe=self._rows_per_stripe,
            stripes_per_file=sys.maxsize,
            compression_level=self._compression_level,
            leave_out=self._leave_out,
        ) as writer:
            for bucket in part.buckets:
                rows = self._seen(bucket, part, seen)
                for piece in rows if part.in_order else self._sorted(rows):
                    writer.write(piece)
        (file,) = fresh.iterdir()
        before, after = part.before or seen[0], self._read_back(file)
        if before != after:
            raise DataError(
                f"{self._workspace.folder}: {part.name} should hold the source's {before}, but "
                f"holds {after}. Nothing was published. Run the step again: it starts from the "
                "beginning. If it happens again, check disk and memory."
            )
        file.rename(done)
        return after

    def publish(self) -> Table:
        """Publish all parts as the table."""
        shutil.rmtree(self._workspace.folder, ignore_errors=True)
        self._done.rename(self._workspace.folder)
        return Table.open(self._workspace.folder)

    def _seen(self, bucket: Bucket, part: FilePart, seen: list[Checksum]) -> Iterator[pa.Table]:
        """The bucket's chunks; unless the part's checksum is known, adds theirs to `seen`."""
        for chunk in bucket:
            rows = checked_rows(chunk, self._schema, part.name)
            if part.before is None:
                seen[0] += Checksum.of(row_hashes(rows))
            yield rows

    def _sorted(self, rows: Bucket) -> Iterator[pa.Table]:
        return clustered(rows, self._schema, self._band_bytes, self._workspace.path / "bands")

    def _read_back(self, file: Path) -> Checksum:
        return checksum(scan(Table.open(file, self._schema), self._band_bytes // 8))


Bucket = Iterable[pa.Table]
"""Rows, in chunks; a bucket has all rows of its sessions."""


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """A file to be written."""

    name: str
    buckets: Sequence[Bucket]
    """Each is sorted by itself; the file holds one after another."""
    in_order: bool = False
    """Whether the buckets' rows are already in order."""
    before: Checksum | None = None
    """The checksum of the part's rows in the source; by default, it is taken as the buckets are
    read."""


class Workspace:
    """A folder beside the table that is being made; it stays if a run dies.

    Its contents are used again if `resume` is set and `plan` is the same as in the run before;
    otherwise they are removed.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], *, resume: bool = True) -> None:
        self.folder = folder
        self.path = folder.with_name(folder.name + ".clustering")
        self._plan = self.path / "plan.json"
        text = json.dumps(plan, sort_keys=True)
        if not (resume and self._plan.exists() and self._plan.read_text() == text):
            self.remove()
            write_whole(self._plan, text)

    def remove(self) -> None:
        with suppress(OSError):  # first: without a plan, no run resumes from a half-removed folder
            self._plan.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Keep finished parts after an error, unless the data themselves are wrong."""
        if kind is None or issubclass(kind, DataError):
            self.remove()


def fingerprint(table: Table) -> list[Any]:
    """Values that identify a table with its present files."""
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in table.files]
    return [str(table.path), table.schema.to_json(), files]


@dataclass(frozen=True)
class Budget:
    """The memory of a step, and how it is divided.

    In the worst case, when one session is the whole table, a spill is held in four copies: as read
    (in buffers with room to spare), in one piece, as its only bucket, and compressed.
    """

    bytes: int

    @classmethod
    def of(cls, memory_gb: float) -> Budget:
        return cls(int(memory_gb * 1e9))

    @property
    def band(self) -> int:
        """The bytes of a spill, or of a band, which is what is sorted at once.

        At most 8 GiB, so that a column has fewer than 2^31 ids, as 32-bit offsets require.
        """
        return min(max(self.bytes // 6, 1), 8 << 30)

    @property
    def bucket(self) -> int:
        """The mean bytes of a bucket: half a band, because sessions differ in size."""
        return max(self.band // 2, 1)

    def stripe_rows(self, bytes_per_row: float) -> int:
        return max(1, min(STRIPE_ROWS, int(self.band / max(bytes_per_row, 1))))
