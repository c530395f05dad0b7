"""Tab-separated files with a header, read in blocks into compact columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from recd_plugins.errors import DataError, nearest

__all__ = ["TOKENS", "read_tsv", "stamp"]

TOKENS = pa.dictionary(pa.int32(), pa.string())
"""Names of any kind: read as indices 0, 1, ... in the order of their first appearance."""

BLOCK_BYTES = 8 << 20


def stamp(path: Path, what: str) -> str:
    """Changes with the file: its size and the time of its last change."""
    _check_there(path, what)
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def read_tsv(path: Path, what: str, columns: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    """The named columns, whole, in these types; text is held for one block at a time.

    A missing file or column, a row cut short, a value that does not convert or is not finite
    raise `DataError` with file and line; `what` says which file was expected.
    """
    _check_there(path, what)
    with path.open(encoding="utf-8", errors="replace") as file:
        header = file.readline().rstrip("\r\n").split("\t")
    for name in columns:
        if name not in header:
            raise DataError(
                f"{path}, line 1: lacks column {name!r} of {what}; {nearest(name, header)}"
            )
    batches: list[pa.RecordBatch] = []
    rows = 0
    try:
        for batch in _blocks(path, columns):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if pa.types.is_floating(column.type):
                    wrong = pc.index(pc.is_finite(column), False).as_py()
                    if wrong >= 0:
                        value = column[wrong].as_py()
                        raise _value_error(path, rows + wrong + 2, name, f"{value} is not finite")
            batches.append(batch)
            rows += batch.num_rows
    except pa.ArrowInvalid as error:
        raise _arrow_error(path, header, str(error)) from error
    if not rows:
        raise DataError(f"{path}: holds a header but no rows. Give {what} with data in it.")
    table = pa.Table.from_batches(batches)
    return {name: table[name].combine_chunks() for name in columns}


def _check_there(path: Path, what: str) -> None:
    if not path.is_file():
        raise DataError(
            f"{path}: there is no such file. Give the path of {what} as `dataset.path` "
            "in registry.yaml."
        )


def _blocks(path: Path, columns: Mapping[str, pa.DataType]) -> csv.CSVStreamingReader:
    return csv.open_csv(
        path,
        # One thread, no quotes, no skipped lines: so that a row's number is its line's.
        read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict(columns),
            include_columns=list(columns),
            null_values=[],
            strings_can_be_null=False,
        ),
    )


def _arrow_error(path: Path, header: list[str], message: str) -> DataError:
    """Arrow's message with the file, the line and the column's name in front."""
    found = re.search(r"(?:CSV column #(\d+): )?Row #(\d+): (.*)", message, re.DOTALL)
    if found is None:
        return DataError(f"{path}: cannot be read as tab-separated text: {message}")
    column, line, reason = found.groups()
    return _value_error(path, int(line), header[int(column)] if column else None, reason)


def _value_error(path: Path, line: int, column: str | None, reason: str) -> DataError:
    where = f"{path}, line {line}" + (f", column {column!r}" if column else "")
    return DataError(f"{where}: {reason}. Mend or remove the line.")
