"""The files of its tables that a run pins, so that no run goes on with others.

A file is known by its footer, which says where each page lies and what is in it: a copy elsewhere
is the same file, one written anew is another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recd_plugins.config.whole_file import write_whole
from recd_plugins.data.dataset import SPLITS, Tables
from recd_plugins.data.files import FileFacts
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location, Uri

__all__ = ["PINS", "check_pins", "write_pins"]

PINS = "pins.json"
"""The file of a run's folder."""


def write_pins(run: Path, tables: Tables) -> None:
    """Keep in the run's folder which files it reads, and what they were."""
    pinned = {split: _pinned(tables[split]) for split in SPLITS}
    write_whole(run / PINS, json.dumps(pinned, indent=1) + "\n")


def check_pins(run: Path, tables: Tables) -> None:
    """`DataError`, which names the file, where tables are not those that the run began with."""
    try:
        pinned = json.loads((run / PINS).read_text())
        before = {split: dict(pinned[split]["files"]) for split in SPLITS}
    except FileNotFoundError:
        return  # a run of before there were any
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{run / PINS}: says what files the run reads, but cannot be read ({error}). Start a "
            "new run, or take the file away to go on unchecked."
        ) from error
    for split in SPLITS:
        _check(tables[split], before[split])


def _pinned(table: Table) -> dict[str, Any]:
    stripes = [(_name(table, one.file), one.group, one.num_rows) for one in table.stripes]
    return {
        "path": str(table.path),
        **({} if table.snapshot is None else {"snapshot": table.snapshot}),
        "stripes": hashlib.sha256(repr(stripes).encode()).hexdigest()[:32],
        "files": {
            name: {"size": facts.size, "mtime_ns": facts.mtime_ns, "footer": facts.digest}
            for name, (_, facts) in _files(table).items()
        },
    }


def _files(table: Table) -> dict[str, tuple[Location, FileFacts]]:
    """The table's files, and those of its side tables, by name."""
    found = {_name(table, file): (file, facts) for file, facts in table.facts.items()}
    for number, side in enumerate(table.joins):
        for file, facts in side.facts.items():
            found[f"join[{number}]/{file.name}"] = file, facts
    return found


def _check(table: Table, before: Mapping[str, Mapping[str, Any]]) -> None:
    now = _files(table)
    cure = "Resume with the table as it was, or start a new run."
    for name, pinned in before.items():
        if name not in now:
            raise DataError(f"{table.path}: the run read {name}, which is there no more. {cure}")
        file, facts = now[name]
        if (facts.size, facts.digest) != (pinned.get("size"), pinned.get("footer")):
            raise DataError(f"{file}: is not what it was when the run began. {cure}")
    for name, (file, _) in now.items():
        if name not in before:
            raise DataError(f"{file}: was not there when the run began. {cure}")


def _name(table: Table, file: Location) -> str:
    """A file's path within its table: a table may be moved."""
    top = table.path
    if isinstance(file, Uri) and isinstance(top, Uri) and str(file).startswith(f"{top}/"):
        return file.below(top)
    if (
        isinstance(file, Path)
        and isinstance(top, Path)
        and file.is_relative_to(top)
        and file != top
    ):
        return str(file.relative_to(top))
    return file.name
