"""Criteo's raw rows: a label, 13 integers, 26 categories of 8 hex digits, separated by tabs.

Any field except the label may be empty. Files are read in blocks of whole lines, so memory does not
grow with their size; a compressed file (.gz, .bz2, .zst, ...) is read as it is.
"""

from __future__ import annotations

import re
from binascii import Error as HexError
from binascii import unhexlify
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from recd_dlrm.datasets.flat_columns import I64
from recd_plugins.api import DataError

__all__ = ["CATEGORIES", "INTEGERS", "MISSING", "CriteoRows", "count_rows", "read_rows"]

INTEGERS = 13
CATEGORIES = 26
COLUMNS = 1 + INTEGERS + CATEGORIES
MISSING = -1
"""An empty category; all others are in [0, 2^32)."""

BLOCK_BYTES = 4 << 20
"""About 17,000 rows."""
SHOWN = 3
"""The most malformed rows that one message names."""


@dataclass(frozen=True)
class CriteoRows:
    """B rows, in order."""

    labels: NDArray[np.float32]
    """[B], 0 or 1."""
    integers: tuple[I64, ...]
    """13 arrays [B]; an empty field is 0."""
    categories: tuple[I64, ...]
    """26 arrays [B]; an empty field is `MISSING`."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> CriteoRows:
        return CriteoRows(
            self.labels[part],
            tuple(column[part] for column in self.integers),
            tuple(column[part] for column in self.categories),
        )


def count_rows(path: Path) -> Iterator[int]:
    """The number of rows so far, block by block; the last number is that of the whole file."""
    rows = 0
    for block in _blocks(path):
        rows += _lines_of(block)
        yield rows
    if not rows:
        raise DataError(f"{path}: the file is empty. Download it again.")


def read_rows(path: Path, start: int, stop: int) -> Iterator[CriteoRows]:
    """Rows `start` to `stop` of a file. Raises `DataError`, with file and line, for malformed
    rows."""
    first = 0
    for block in _blocks(path):
        end = first + _lines_of(block)
        if start < end and first < stop:
            rows = _parse(block, path, first + 1)
            yield rows[max(start - first, 0) : stop - first]
        first = end
        if first >= stop:
            break


def _blocks(path: Path) -> Iterator[bytes]:
    """Whole lines, all of them once; only the very last may lack its line end."""
    rest = b""
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            while data := stream.read(BLOCK_BYTES):
                cut = data.rfind(b"\n") + 1
                if cut:
                    yield rest + data[:cut]
                    rest = data[cut:]
                else:
                    rest += data
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read to its end ({error}). Check that it is a whole file, and is "
            "compressed as its name says, or download it again."
        ) from error
    if rest:
        yield rest


def _lines_of(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _parse(block: bytes, path: Path, first_line: int) -> CriteoRows:
    names = [str(column) for column in range(COLUMNS)]
    kinds = [pa.int64()] * (1 + INTEGERS) + [pa.binary()] * CATEGORIES
    try:
        if any(mark in block for mark in (b" ", b"x", b"X")):
            raise DataError("Arrow would take 0x1F, or a number between spaces, for an integer.")
        table = pa.csv.read_csv(
            pa.BufferReader(block),
            pa.csv.ReadOptions(column_names=names, block_size=len(block) + 1),
            pa.csv.ParseOptions(
                delimiter="\t", quote_char=False, escape_char=False, ignore_empty_lines=False
            ),
            pa.csv.ConvertOptions(
                column_types=dict(zip(names, kinds, strict=True)), null_values=[""]
            ),
        )
        columns = [column.combine_chunks() for column in table.columns]
        labels = _integers(columns[0], empty=MISSING)
        if table.num_rows != _lines_of(block) or np.any(labels >> 1):
            raise DataError("a row is cut in two, or a label is neither 0 nor 1.")
        return CriteoRows(
            labels.astype(np.float32),
            tuple(_integers(column, empty=0) for column in columns[1 : 1 + INTEGERS]),
            tuple(_categories(column) for column in columns[1 + INTEGERS :]),
        )
    except (pa.ArrowInvalid, HexError, DataError) as error:
        raise DataError(_malformed(block, path, first_line, error)) from None


def _integers(column: pa.Array, empty: int) -> I64:
    values: I64 = column.fill_null(empty).to_numpy()
    return values


def _categories(column: pa.Array) -> I64:
    _, offsets, digits = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(column) + 1]
    lengths = np.diff(ends)
    present = lengths > 0
    if np.any(lengths[present] != 8):
        raise DataError("a category is not of 8 digits.")
    values = np.full(len(column), MISSING, np.int64)
    if ends[-1]:
        values[present] = np.frombuffer(unhexlify(digits[: ends[-1]]), ">u4")
    return values


def _malformed(block: bytes, path: Path, first_line: int, error: Exception) -> str:
    """The malformed rows of a block, found line by line."""
    lines = block.removesuffix(b"\n").split(b"\n")
    faults = [
        f"{path}:{number}: {fault}"
        for number, line in enumerate(lines, first_line)
        if (fault := _fault(line.removesuffix(b"\r")))
    ]
    if not faults:
        return f"{path}: the rows from line {first_line} on cannot be read ({error})."
    if first_line == 1 and len(faults) == len(lines) > 1:
        return (
            f"{faults[0]}\nNo other row fits either. Give Criteo's raw file; if it is compressed, "
            "its name must say so (.gz)."
        )
    more = f"\n(and {len(faults) - SHOWN} rows soon after)" if len(faults) > SHOWN else ""
    return "\n".join(faults[:SHOWN]) + more + "\nCorrect these rows, or take them out."


def _fault(line: bytes) -> str | None:
    fields = line.split(b"\t")
    if len(fields) != COLUMNS:
        unlabelled = " (as Kaggle's test.txt, which has no label)" * (len(fields) == COLUMNS - 1)
        return (
            f"{len(fields)} fields{unlabelled}, but a row has {COLUMNS}, separated by tabs: a "
            f"label, {INTEGERS} integers, {CATEGORIES} categories."
        )
    if fields[0] not in (b"0", b"1"):
        return f"label {_shown(fields[0])} is neither 0 nor 1."
    for number, field in enumerate(fields[1 : 1 + INTEGERS], 1):
        if not re.fullmatch(rb"(-?[0-9]{1,18})?", field):
            return f"integer {number} is {_shown(field)}, not a whole number or empty."
    for number, field in enumerate(fields[1 + INTEGERS :], 1):
        if not re.fullmatch(rb"([0-9a-fA-F]{8})?", field):
            return f"category {number} is {_shown(field)}, not 8 hex digits or empty."
    return None


def _shown(field: bytes) -> str:
    return repr(field.decode(errors="replace"))
