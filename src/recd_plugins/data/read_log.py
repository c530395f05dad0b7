"""Which columns of a table jobs read, as lines of JSON that readers add: what popularity is."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["note_reading", "popularity"]

DAY = 86_400


def note_reading(
    log: Path, table: Location, columns: Iterable[str], *, now: float | None = None
) -> None:
    """Add a line: a job begins to read these columns of a table. Jobs may add at once."""
    line = {
        "time": round(time.time() if now is None else now, 3),
        "table": str(table),
        "columns": sorted(columns),
    }
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:  # a line is one write, at the end of what there is
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise DataError(f"{log}: the read log cannot be written ({error.strerror}).") from error


def popularity(log: Path, *, days: float = 7, now: float | None = None) -> Counter[str]:
    """How many jobs of the latest days read each column; a line that is not whole is left out."""
    since = (time.time() if now is None else now) - days * DAY
    counts = Counter[str]()
    try:
        lines = log.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{log}: the read log cannot be read ({error}).") from error
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            columns = entry["columns"]
            if not (isinstance(columns, list) and all(isinstance(one, str) for one in columns)):
                raise TypeError("columns are no list of names")  # a text is one of letters
            if float(entry["time"]) >= since:
                counts.update(columns)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            if number < len(lines) - 1:  # the last one may be under way
                raise DataError(f"{log}:{number + 1}: is no line of a read log.") from error
    return counts
