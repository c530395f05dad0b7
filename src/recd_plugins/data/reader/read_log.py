"""The log of which columns of a table jobs read, as lines of JSON that readers append: popularity
is counted from it.

Each line has a digest of itself. Lines that are missing altogether are not noticed: jobs append to
a log concurrently, and none knows what the others append.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.storage.uri import Location

__all__ = ["note_reading", "popularity", "with_digest"]

DAY = 86_400


def note_reading(
    log: Path, table: Location, columns: Iterable[str], *, now: float | None = None
) -> None:
    """Append a line: a job begins to read these columns of a table. Several jobs may append at
    once."""
    entry = {
        "time": round(time.time() if now is None else now, 3),
        "table": str(table),
        "columns": sorted(columns),
    }
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:  # a line is one write, at the end of the file
            file.write(with_digest(entry))
    except OSError as error:
        raise DataError(
            f"{log}: the read log cannot be written ({error.strerror}). Name a file that "
            "jobs may write as `reader.read_log`, or take the option out."
        ) from error


def with_digest(entry: Mapping[str, Any]) -> str:
    """A line of a log, as it is written."""
    return json.dumps({**entry, "digest": _digest(entry)}) + "\n"


def _digest(entry: Mapping[str, Any]) -> str:
    return sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]


def popularity(log: Path, *, days: float = 7, now: float | None = None) -> Counter[str]:
    """The number of jobs of the latest days that read each column. An incomplete last line, which a
    job may be writing now, does not count and causes a warning."""
    since = (time.time() if now is None else now) - days * DAY
    counts = Counter[str]()
    try:
        *lines, last = log.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{log}: the read log cannot be read ({error}). Name the file that readers "
            "kept under `reader.read_log`."
        ) from error
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if entry.pop("digest") != _digest(entry):
                raise ValueError("altered")
            columns = entry["columns"]
            if not (isinstance(columns, list) and all(isinstance(one, str) for one in columns)):
                raise TypeError("columns are no list of names")  # a text would be one of letters
            if float(entry["time"]) >= since:
                counts.update(columns)
        except (
            *(ValueError, KeyError, TypeError, AttributeError),
            *(OverflowError, RecursionError),
        ) as error:
            raise DataError(
                f"{log}:{number}: is not a line of a read log, or was changed. Remove the line."
            ) from error
    if last:
        warnings.warn(
            f"{log}:{len(lines) + 1}: is incomplete and does not count: a job is writing it now, "
            "or was ended while writing it.",
            NoticeWarning,
            stacklevel=2,
        )
    return counts
