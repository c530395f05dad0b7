"""The files from which a dataset is made: whether they are there and unchanged, and reading them as
text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from recd_plugins.api import DataError, nearest
from recd_plugins.api.data import Split

__all__ = ["TOKENS", "check_sources", "empty_split", "fingerprint", "read_tsv", "text_lines"]

TOKENS = pa.dictionary(pa.int32(), pa.string())
"""Names of any kind: read as indices 0, 1, ... in the order of their first appearance."""

BLOCK_BYTES = 8 << 20


def check_sources(option: str, *paths: Path, folders: bool = False) -> None:
    """Check that every path can be read: a file, or with `folders` a file or a folder.

    Raises `DataError`, which names the path and the option that gave it.
    """
    for path in paths:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DataError(f"{path}: is a pipe or a device, not a file. Correct `{option}`.")
        try:
            if not (folders and path.is_dir()):
                path.open("rb").close()
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}). Correct `{option}` in "
                f"registry.yaml; a relative path counts from {Path.cwd()}."
            ) from error


def fingerprint(paths: Iterable[Path]) -> str:
    """A text that changes when a file is replaced, written to or touched. It is made of sizes and
    times; the files are not read."""
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.is_file()
    ]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return sha256(json.dumps(stats).encode()).hexdigest() if stats else ""


def empty_split(split: Split, *paths: Path) -> DataError:
    """The error for sources that leave a split without rows."""
    return DataError(
        f"{', '.join(map(str, paths))}: no row is left for the {split} split. "
        "Give more rows, or change `dataset.test_fraction`."
    )


def text_lines(path: Path) -> Iterator[str]:
    """The lines without their ends. Raises `DataError` if a file is not text."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for line in file:
            line = line.rstrip("\n")
            if not line.replace("\t", " ").isprintable():
                raise DataError(f"{path}: is no text, or is compressed. Give it unpacked.")
            yield line


def read_tsv(path: Path, what: str, columns: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    """The named columns of a tab-separated file with a header, completely, in these types.

    Text is kept for one block at a time. Raises `DataError`, with file and line, for a missing
    column, a row that is cut short, or a value that does not convert or is not finite. `what` says
    which file was expected.
    """
    header = next(text_lines(path), "").split("\t")
    for name in columns:
        if name not in header:
            raise DataError(f"{path}:1: lacks column {name!r} of {what}; {nearest(name, header)}")
    batches: list[pa.RecordBatch] = []
    rows = 0
    try:
        for batch in _blocks(path, columns):
            _check_finite(batch, path, rows + 2)
            batches.append(batch)
            rows += batch.num_rows
    except pa.ArrowInvalid as error:
        raise _arrow_error(path, header, str(error)) from error
    if not rows:
        raise DataError(f"{path}: holds a header but no rows. Give {what} with data in it.")
    table = pa.Table.from_batches(batches)
    return {name: table[name].combine_chunks() for name in columns}


def _blocks(path: Path, columns: Mapping[str, pa.DataType]) -> csv.CSVStreamingReader:
    return csv.open_csv(
        path,
        # One thread, no quotes, no skipped lines, so that a row's number is that of its line.
        read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict(columns),
            include_columns=list(columns),
            null_values=[],
            strings_can_be_null=False,
        ),
    )


def _check_finite(batch: pa.RecordBatch, path: Path, first_line: int) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_floating(column.type):
            wrong = pc.index(pc.is_finite(column), False).as_py()
            if wrong >= 0:
                reason = f"{column[wrong].as_py()} is not finite"
                raise _value_error(path, first_line + wrong, name, reason)


def _arrow_error(path: Path, header: list[str], message: str) -> DataError:
    """Arrow's message, preceded by the file, the line and the column's name."""
    found = re.search(r"(?:CSV column #(\d+): )?Row #(\d+): (.*)", message, re.DOTALL)
    if found is None:
        return DataError(
            f"{path}: cannot be read as tab-separated text ({message}). Correct it, or download "
            "it again."
        )
    column, line, reason = found.groups()
    return _value_error(path, int(line), header[int(column)] if column else None, reason)


def _value_error(path: Path, line: int, column: str | None, reason: str) -> DataError:
    where = f"{path}:{line}: " + (f"column {column!r}: " if column else "")
    return DataError(f"{where}{reason}. Correct this row, or take it out.")
