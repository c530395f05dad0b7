"""The log of columns that jobs read of a table, as lines of JSON that readers add: popularity is
counted by it.

Each line has a digest of itself. Lines that are gone altogether are not noticed: jobs add to a log
at once, and none of them knows what the others add.
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
    """Add a line: a job begins to read these columns of a table. Jobs may add at once."""
    entry = {
        "time": round(time.time() if now is None else now, 3),
        "table": str(table),
        "columns": sorted(columns),
    }
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:  # a line is one write, at the end of what there is
            file.write(with_digest(entry))
    except OSError as error:
        raise DataError(f"{log}: the read log cannot be written ({error.strerror}).") from error


def with_digest(entry: Mapping[str, Any]) -> str:
    """A line of a log, as it is written."""
    return json.dumps({**entry, "digest": _digest(entry)}) + "\n"


def _digest(entry: Mapping[str, Any]) -> str:
    return sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]


def popularity(log: Path, *, days: float = 7, now: float | None = None) -> Counter[str]:
    """The number of jobs of the latest days that read each column. A last line without its end,
    which a job may be writing now, does not count, and is warned of."""
    since = (time.time() if now is None else now) - days * DAY
    counts = Counter[str]()
    try:
        *lines, last = log.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{log}: the read log cannot be read ({error}).") from error
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if entry.pop("digest") != _digest(entry):
                raise ValueError("altered")
            columns = entry["columns"]
            if not (isinstance(columns, list) and all(isinstance(one, str) for one in columns)):
                raise TypeError("columns are no list of names")  # a text is one of letters
            if float(entry["time"]) >= since:
                counts.update(columns)
        except (
            *(ValueError, KeyError, TypeError, AttributeError),
            *(OverflowError, RecursionError),
        ) as error:
            raise DataError(
                f"{log}:{number}: is no line of a read log, or was altered. Remove the line."
            ) from error
    if last:
        warnings.warn(
            f"{log}:{len(lines) + 1}: has no end, and does not count: a job writes it now, or was "
            "ended while it did.",
            NoticeWarning,
            stacklevel=2,
        )
    return counts
