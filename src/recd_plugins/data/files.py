"""The Parquet files of a table, by folders, names and globs; an error names what else a file is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.config.what_is import no_file
from recd_plugins.errors import DataError

__all__ = ["arrow_schema", "footer_of", "opened", "table_files"]

GLOB = frozenset("*?[")
MAGIC = b"PAR1"
KINDS = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh", "bzip2"),
    (b"ARROW1", "an Arrow file"),
    (b"FEA1", "a Feather file"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"PARE", "a Parquet file with an encrypted footer"),
    (b"{", "JSON"),
    (b"[", "JSON"),
    (b"<", "HTML or XML"),
    (b"version https://git-lfs", "a pointer of Git LFS, whose file was not fetched"),
)
"""What a file begins with that is no Parquet file, and what it is."""
LOOK = 4096
"""Bytes by which a file of text is known."""


def table_files(paths: Path | Sequence[Path]) -> tuple[Path, ...]:
    """The files of a table in order: of a folder its *.parquet, of a glob what fits, each once.

    `DataError` for a path without any.
    """
    each = [paths] if isinstance(paths, Path) else list(paths)
    if not each:
        raise DataError("a table of no paths. Name a folder, a file or a glob.")
    found = [file for path in each for file in _files(path)]
    return tuple(dict.fromkeys(found))


def footer_of(file: Path) -> pq.FileMetaData:
    """What the footer says; `DataError` for a file that is not a whole Parquet file."""
    with opened(file) as parquet:
        return parquet.metadata


def opened(file: Path) -> pq.ParquetFile:
    """The file, whose pages' checksums are verified; `DataError` for what is no whole Parquet."""
    if what := no_file(file):
        raise DataError(f"{file}: is {what}, not a file. Take it out of the table.")
    try:
        return pq.ParquetFile(file, page_checksum_verification=True)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}: column {error.object!r} has a name that is not UTF-8 ({error.reason}). "
            "Rename it where the table is made."
        ) from error
    except (pa.ArrowException, OSError) as error:
        what, cure = _what_is(file)
        raise DataError(f"{file}: {what} ({error}). {cure}") from error


def arrow_schema(footer: pq.FileMetaData, file: Path) -> pa.Schema:
    """The types of a file's columns; `DataError` where Arrow has none like them."""
    try:
        return footer.schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise DataError(
            f"{file}: its columns have types that Arrow does not read ({error}). Write the table "
            "with others."
        ) from error


def _files(path: Path) -> list[Path]:
    if GLOB & set(str(path)) and not path.exists():
        return _matches(path)
    try:
        if not path.exists():
            raise DataError(f"{path}: there is no such table. Check the path.")
        if not path.is_dir():
            return [path]
        files = sorted(path.glob("*.parquet"))
        if files:
            return files
        below = next(path.rglob("*.parquet"), None)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). See to its rights, or name another path."
        ) from error
    if below is not None:
        raise DataError(
            f"{path}: holds no .parquet file itself, but {below} lies below. To read all that do, "
            f"name the table {path}/**/*.parquet."
        )
    raise DataError(
        f"{path}: holds no .parquet file, so it is not a table. CSV, TSV and JSONL become one by "
        "`recd data import`."
    )


def _matches(pattern: Path) -> list[Path]:
    parts = pattern.parts
    fixed = next(index for index, part in enumerate(parts) if GLOB & set(part))
    base = Path(*parts[:fixed])
    found = sorted(base.glob(str(Path(*parts[fixed:])))) if base.is_dir() else []
    files = [file for one in found for file in (_files(one) if one.is_dir() else [one])]
    if not files:
        raise DataError(f"{pattern}: no file fits this glob. Check the path.")
    return files


def _what_is(file: Path) -> tuple[str, str]:
    """What a file that does not read as Parquet seems to be, and what to do."""
    again = "write it again, or take it out of the table."
    try:
        with file.open("rb") as binary:
            head = binary.read(LOOK)
    except OSError:
        return "cannot be read", "Check its rights and its disk."
    if not head:
        return "not a whole Parquet file, but empty", f"It was never finished: {again}"
    if MAGIC.startswith(head[:4]):
        return "not a whole Parquet file", f"It was cut short or damaged: {again}"
    kind = next((kind for magic, kind in KINDS if head.startswith(magic)), None)
    if kind is None and _is_text(head):
        kind = "text, as CSV or TSV is"
    return (
        f"not a Parquet file, but {kind or 'something else'}",
        "CSV, TSV and JSONL become a table by `recd data import`; else write it as Parquet, or "
        "take it out of the table.",
    )


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        head[: LOOK - 4].decode()
    except UnicodeDecodeError:
        return False
    return True
