"""The footers of many files: read several at a time, and kept in a cache file between runs.

The cache is an Arrow stream of footers, byte for byte, each with its file's name, size and time;
the footer of a file that has changed since is read again. A damaged cache counts as none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc

from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.footer import Footer, read_footer
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location, Uri
from recd_plugins.storage.whole_file import whole_file

__all__ = ["AT_ONCE", "footers_of"]

AT_ONCE = {False: 4, True: 32}
"""Files that are opened at a time, on disk and on a store."""
BLOCK = 512
"""Footers in memory at a time."""
WORTH = 64
"""With at least this many files, their footers are kept."""
KEPT = pa.schema(
    [("file", pa.string()), ("size", pa.int64()), ("mtime_ns", pa.int64()), ("footer", pa.binary())]
)
Key = tuple[str, int, int]


def footers_of(
    files: Mapping[Location, FileFacts], cache: Path | None = None
) -> Iterator[tuple[Location, FileFacts, Footer]]:
    """Each file with its footer, and its facts completed by those of the footer, in order.

    `cache` is a folder in which the footers of a table of many files are kept.
    """
    names = list(files)
    kept_in = None
    if cache is not None and len(names) >= WORTH:
        digest = hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()[:16]
        kept_in = cache / f"footers-{digest}.arrow"
    known = {} if kept_in is None else _known(kept_in)
    fresh: dict[Key, bytes] = {}
    stores = any(isinstance(name, Uri) for name in names)
    with ThreadPoolExecutor(min(AT_ONCE[stores], len(names) or 1)) as pool:
        for first in range(0, len(names), BLOCK):
            block = names[first : first + BLOCK]
            found = pool.map(lambda name: _footer(name, files[name], known), block)
            for name, (facts, footer) in zip(block, found, strict=True):
                if kept_in is not None:
                    fresh[_key(name, facts)] = footer.raw
                yield name, facts, footer
    if kept_in is not None and fresh.keys() != known.keys():
        _keep(kept_in, fresh)


def _footer(
    file: Location, facts: FileFacts, known: Mapping[Key, bytes]
) -> tuple[FileFacts, Footer]:
    if facts.size is None:
        try:
            stat = file.stat()
        except OSError as error:
            raise DataError(
                f"{file}: cannot be read ({error.strerror}). Check its name and its permissions, "
                "or take it out of the table."
            ) from error
        facts = replace(facts, size=stat.st_size, mtime_ns=stat.st_mtime_ns)
    footer = None
    if raw := known.get(_key(file, facts)):
        with suppress(pa.ArrowException, OSError):
            footer = Footer.of(raw).under(facts.names, file)
    footer = footer or read_footer(file, facts.names)
    return replace(facts, digest=footer.digest), footer


def _key(file: Location, facts: FileFacts) -> Key:
    return str(file), facts.size or 0, facts.mtime_ns or 0


def _known(kept: Path) -> dict[Key, bytes]:
    try:
        with pa.OSFile(str(kept)) as file, pa.ipc.open_stream(file) as stream:
            rows = stream.read_all()
            rows.validate(full=True)
        if rows.schema != KEPT:
            return {}
        keys = zip(*(rows[name].to_pylist() for name in ("file", "size", "mtime_ns")), strict=True)
        return dict(zip(keys, rows["footer"].to_pylist(), strict=True))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return {}


def _keep(kept: Path, footers: Mapping[Key, bytes]) -> None:
    """Footers that cannot be kept, as on a full disk, are read again."""
    rows = pa.table(
        {
            "file": [key[0] for key in footers],
            "size": [key[1] for key in footers],
            "mtime_ns": [key[2] for key in footers],
            "footer": list(footers.values()),
        },
        KEPT,
    )
    with (
        suppress(OSError),
        whole_file(kept) as part,
        pa.OSFile(str(part), "w") as file,
        pa.ipc.new_stream(file, KEPT) as stream,
    ):
        stream.write_table(rows)
