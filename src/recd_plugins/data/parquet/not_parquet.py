"""Files that are not Parquet, or not whole: an error says what such a file is, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from recd_plugins.errors import DataError
from recd_plugins.storage.no_file import no_file
from recd_plugins.storage.uri import Location

__all__ = ["MAGIC", "NO_KEY", "UNKNOWN_TYPES", "WITH_OTHERS", "read_as_parquet"]

MAGIC, ENCRYPTED = b"PAR1", b"PARE"
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
    (b"{", "JSON"),
    (b"[", "JSON"),
    (b"<", "HTML or XML"),
    (b"version https://git-lfs", "a pointer of Git LFS, whose file was not fetched"),
)
"""First bytes of files that are not Parquet, and what such a file is."""
LOOK = 4096
"""How many bytes are looked at to recognise a text file."""
UNKNOWN_TYPES = "some of its columns have a type that Arrow does not read"
WITH_OTHERS = "Write the table with others."
NO_KEY = "which is not read, because no key is known here. Write it without encryption."


@contextmanager
def read_as_parquet(file: Location) -> Iterator[None]:
    """Inside it, what goes wrong because a file is not a whole Parquet file becomes a `DataError`
    that says what it is."""
    if isinstance(file, Path) and (what := no_file(file)):
        raise DataError(f"{file}: is {what}, not a file. Take it out of the table.")
    try:
        yield
    except DataError:
        raise
    except (UnicodeDecodeError, pa.ArrowException, OSError, ValueError) as error:
        raise _not_whole(file, error) from error


def _not_whole(file: Location, error: Exception) -> DataError:
    if isinstance(error, pa.ArrowNotImplementedError):
        return DataError(f"{file}: {UNKNOWN_TYPES} ({error}). {WITH_OTHERS}")
    if isinstance(error, UnicodeDecodeError):
        return DataError(
            f"{file}: column {error.object!r} has a name that is not UTF-8 ({error.reason}). "
            "Rename it where the table is made."
        )
    what, cure = _what_is(file)
    if not cure:
        return DataError(f"{file}: {what}")
    return DataError(f"{file}: {what} ({error}). {cure}")


def _what_is(file: Location) -> tuple[str, str]:
    """What a file that cannot be read as Parquet seems to be, and what to do; the second is empty
    if the first says it."""
    again = "write it again, or take it out of the table."
    try:
        with file.open("rb") as binary:
            head = binary.read(LOOK)
    except OSError:
        return "cannot be read", "Check its permissions and its disk."
    if not head:
        return "not a whole Parquet file, but empty", f"It was never finished: {again}"
    if head.startswith(ENCRYPTED):
        return f"is encrypted, {NO_KEY}", ""
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
