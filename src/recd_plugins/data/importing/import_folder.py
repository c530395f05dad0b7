"""The folder of an import under way. It has segments, each whole or not there, which appear as one
table at the end.

It is `<destination>.part`; an import that was killed goes on with what lies there. For a table on a
store it is on this machine, `<its name>.part` where the import runs; at the end its files are
copied, and meanwhile the table is marked as unfinished.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from recd_plugins.data.dataset import Split
from recd_plugins.data.files.paths import SCHEMA_FILE, UNFINISHED, VOCABULARIES
from recd_plugins.data.importing.reading import Position
from recd_plugins.data.progress import Progress
from recd_plugins.data.schema import Schema
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.errors import DataError
from recd_plugins.storage.lock_file import written_alone
from recd_plugins.storage.uri import Location, Uri
from recd_plugins.storage.whole_file import of_path, write_whole

__all__ = ["JOURNAL", "IdCounts", "ImportFolder", "Segment", "write_whole_json"]

JOURNAL = "done.json"
JOB = "import.json"
Place = TypeVar("Place", Path, Uri)
IdCounts = Mapping[Split, Mapping[str, tuple[int, int]]]
"""For features of each split: their values, and how many of these the vocabulary does not know."""
COPIED = 16 << 20
"""Bytes that are copied to a store at a time."""


class ImportFolder:
    """What is done of an import into a table, or into a table of each split."""

    def __init__(self, destination: Location, splits: Sequence[Split]) -> None:
        part = f"{destination.name}.part"
        self.path = Path(part) if isinstance(destination, Uri) else destination.with_name(part)
        self._to = destination
        self._splits = splits

    def check_free(self) -> None:
        """Raises `DataError` if there is something in the table's place."""
        if isinstance(self._to, Uri):
            there = self._to.exists() and not any(self._to.rglob(UNFINISHED))
        else:
            there = self._to.exists() and (not self._to.is_dir() or any(self._to.iterdir()))
        if there:
            raise DataError(f"{self._to}: is there already. Name another folder, or remove it.")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside it, no other import writes the table; raises `DataError` if one already does, or
        just has."""
        with of_path(self.path), written_alone(self.path, self._to):
            self.check_free()
            yield

    def begin(self, key: str) -> dict[str, list[str]]:
        """Keep what this import, which the key identifies, has done, and remove what another import
        left. Returns the columns that it had to widen, each with the errors that made it do so."""
        file = self.path / JOB
        if file.exists():
            job = json.loads(file.read_text())
            if job["key"] == key:
                return dict(job.get("widened", {}))
        self.begin_anew(key, {})
        return {}

    def begin_anew(self, key: str, widened: Mapping[str, Sequence[str]]) -> None:
        """Remove what is done, since other columns are widened than before."""
        self._forget()
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        write_whole_json(self.path / JOB, {"key": key, "widened": widened})

    def remove_unbegun(self) -> None:
        """Remove what an error leaves, unless something is done that the same import would go on
        from."""
        if not self.done() and not any(self.path.glob(f"{VOCABULARIES}/*")):
            self._forget()
            shutil.rmtree(self.path, ignore_errors=True)

    def left(self) -> str:
        """The sentence about what an error leaves here."""
        return (
            f"{self.path} keeps what is done so far: the same import goes on from it, and one of "
            "other files or another schema begins anew. Remove it if you do not import again."
        )

    def done(self) -> list[dict[str, Any]]:
        """The journals of the segments that are whole."""
        found: list[dict[str, Any]] = []
        while (file := self._segment(len(found)) / JOURNAL).exists():
            found.append(json.loads(file.read_text()))
        return found

    def segment(self, number: int, schema: Schema) -> Segment:
        """A new segment."""
        return Segment(self._segment(number), self._splits, schema)

    def publish(self, schema: str, progress: Progress) -> None:
        """Make all segments appear as one folder, with the text of the schema, in one step."""
        whole = self.path / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        segments = range(len(self.done()))
        for split in self._splits:
            folder = self._table(whole, split)
            folder.mkdir(parents=True)
            files = [
                file
                for number in segments
                for file in sorted((self._segment(number) / split).glob("*.parquet"))
            ]
            for number, file in enumerate(files):
                _link(file, folder / f"part-{number:05}.parquet")
        made = self.path / VOCABULARIES
        if made.is_dir():
            for file in sorted(made.glob("*.parquet")):
                (whole / VOCABULARIES).mkdir(exist_ok=True)
                _link(file, whole / VOCABULARIES / file.name)
        (whole / SCHEMA_FILE).write_text(schema, encoding="utf-8")
        if isinstance(self._to, Uri):
            self._copy(whole, self._to, progress)
        else:
            if self._to.exists():
                self._to.rmdir()  # empty, as `check_free` saw
            whole.rename(self._to)
        self._forget()
        shutil.rmtree(self.path)

    def _forget(self) -> None:
        """Make sure that no import goes on with what is there: from here on, a kill may leave only
        a part, which would be taken for the whole."""
        (self.path / JOB).unlink(missing_ok=True)

    def _copy(self, whole: Path, to: Uri, progress: Progress) -> None:
        """Copy to a store: tables are marked as unfinished until everything is there."""
        marks = [self._table(to, split) / UNFINISHED for split in self._splits]
        for mark in marks:
            mark.write_text("")
        files = sorted(file for file in whole.rglob("*") if file.is_file())
        for number, file in enumerate(files, 1):
            target = to / file.relative_to(whole).as_posix()
            with file.open("rb") as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, COPIED)
            progress(f"copying to {to}", number, len(files))
        for mark in marks:
            mark.unlink()

    def _table(self, whole: Place, split: Split) -> Place:
        """The folder of a split's table; that of a table without splits is the whole."""
        return whole / split if len(self._splits) > 1 else whole

    def _segment(self, number: int) -> Path:
        return self.path / f"segment-{number:05}"


class Segment:
    """A part of the files' rows, written as a table of each split; there as a whole, or not at
    all."""

    def __init__(self, folder: Path, splits: Sequence[Split], schema: Schema) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._folder = folder
        self._writers = {split: TableWriter(folder / split, schema) for split in splits}
        self._dropped: Counter[str] = Counter()
        self._label, self._labels = schema.label, dict[Split, list[float]]()
        self._values: dict[Split, Counter[str]] = {split: Counter() for split in splits}
        self._unknown: dict[Split, Counter[str]] = {split: Counter() for split in splits}
        self.num_rows = 0

    def write(
        self, rows: Mapping[Split, pa.Table], dropped: Counter[str], counts: IdCounts
    ) -> None:
        for split, part in rows.items():
            if part.num_rows:
                self._writers[split].write(part)
                self.num_rows += part.num_rows
                self._labels[split] = _bounds(part[self._label], self._labels.get(split, []))
        self._dropped.update(dropped)
        for split, found in counts.items():
            for name, (values, unknown) in found.items():
                self._values[split][name] += values
                self._unknown[split][name] += unknown

    def close(self, after: Position, *, is_last: bool) -> None:
        counts = {}
        for split, writer in self._writers.items():
            writer.close()
            counts[split] = writer.num_rows
            if not writer.num_rows:
                shutil.rmtree(self._folder / split)
        journal = {
            "after": dataclasses.asdict(after),
            "last": is_last,
            "rows": counts,
            "dropped": self._dropped,
            "labels": self._labels,
            "values": self._values,
            "unknown": self._unknown,
        }
        write_whole_json(self._folder / JOURNAL, journal)

    def abort(self) -> None:
        for writer in self._writers.values():
            writer.abort()


def _bounds(column: pa.ChunkedArray, before: Sequence[float]) -> list[float]:
    """The least and the largest number of a column and those before; none where there is none."""
    values = column.to_numpy()
    there = np.concatenate([values[~np.isnan(values)], before])
    return [float(there.min()), float(there.max())] if there.size else []


def write_whole_json(file: Path, values: Mapping[str, Any]) -> None:
    """Write a file that is there as a whole, or not at all."""
    write_whole(file, json.dumps(values))


def _link(file: Path, name: Path) -> None:
    """Make the same file appear under another name; as a copy if the file system has no links."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copyfile(file, name)
