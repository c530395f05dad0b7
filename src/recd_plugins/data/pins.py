"""A run pins the files of its tables, and those that its transforms read, so that it never goes on
with others; and how the ids of its tables were made, so that no other run begins with its rows on
other ids.

A file of a table is identified by its footer, which says where each page lies and what is in it; a
vocabulary, or a file that a transform reads, by its whole content. A copy elsewhere is the same
file; a rewritten one is another.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recd_plugins.data.dataset import SPLITS, Tables
from recd_plugins.data.importing.made_otherwise import how_made
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError
from recd_plugins.storage.file_digest import sha256_of
from recd_plugins.storage.uri import GLOB, Location
from recd_plugins.storage.whole_file import whole_file, write_whole

__all__ = ["check_pins", "check_same_meaning", "copy_pins", "write_pins"]

PINS = "pins.json"
"""The file in a run's folder."""
STEPS = "preprocess"
"""The key in it that holds the files that transforms read."""
MADE = "made"
"""The key in it that holds how the columns of the table that is trained on were made."""


def write_pins(run: Path, tables: Tables, steps: Mapping[str, Path] = MappingProxyType({})) -> None:
    """Note in the run's folder which files it reads, and what they are; `steps` are its transforms'
    files, by the option that names each."""
    pinned: dict[str, Any] = {split: _pinned(tables[split]) for split in SPLITS}
    digests = {option: sha256_of(file) for option, file in steps.items()}
    pins = {**pinned, STEPS: digests, MADE: how_made(tables.train)}
    write_whole(run / PINS, json.dumps(pins, indent=1) + "\n")


def copy_pins(run: Path, to: Path) -> None:
    """Make a run that continues another one pin the same files; none if that one began before pins
    existed."""
    with contextlib.suppress(FileNotFoundError):
        kept = (run / PINS).read_bytes()  # damaged or not: `check_pins` reports that
        with whole_file(to / PINS) as part:
            part.write_bytes(kept)


def check_same_meaning(run: Path, tables: Tables) -> list[str]:
    """Raises `DataError` if an id, or a number, meant something else in the table that another run
    trained on. Returns the columns of which that is known of one of the two tables alone."""
    try:
        before = {**json.loads((run / PINS).read_text())[MADE]}
    except (OSError, ValueError, KeyError, TypeError):
        before = {}
    now, table = how_made(tables.train), tables.train
    for name in before.keys() & now.keys():
        if before[name] != now[name]:
            raise DataError(
                f"{table.path}: {name!r} was made otherwise ({_in_words(now[name])}) than in the "
                f"table that {run} trained on ({_in_words(before[name])}): its ids or numbers mean "
                "something else. Import it by the schema.yaml beside that table, by `recd data "
                "import FILE TABLE --schema`, or leave out train.begin_from."
            )
    return [name for name in table.schema.columns if (name in before) != (name in now)]


def _in_words(made: Sequence[object]) -> str:
    return " ".join(str(one)[:12] for one in made)


def check_pins(run: Path, tables: Tables, steps: Mapping[str, Path] = MappingProxyType({})) -> bool:
    """Raises `DataError`, which names the file, if the tables, or the files that transforms read,
    are not those that the run began with. Other options are not compared here.

    Whether the pins show that the tables' stripes come in the same order too, wherever the files
    lie by now; False if there are no pins."""
    try:
        pinned = json.loads((run / PINS).read_text())
        before = {split: dict(pinned[split]["files"]) for split in SPLITS}
        digests = dict(pinned.get(STEPS, {}))
    except FileNotFoundError:
        return False  # removed, to go on unchecked
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{run / PINS}: lists the files that the run reads, but cannot be read ({error}). "
            "Start a new run, or remove the file to go on unchecked."
        ) from error
    for split in SPLITS:
        _check(tables[split], before[split])
    for option, file in steps.items():
        if option in digests and sha256_of(file) != digests[option]:
            raise DataError(
                f"{file}: is not what it was when the run began ({option}). Resume with the file "
                "as it was, or start a new run."
            )
    return all(
        pinned[split].get("stripes") == _digest_of_stripes(tables[split]) for split in SPLITS
    )


def _pinned(table: Table) -> dict[str, Any]:
    return {
        "path": str(table.path),
        **({} if table.snapshot is None else {"snapshot": table.snapshot}),
        "stripes": _digest_of_stripes(table),
        "files": {
            name: {"size": facts.size, "mtime_ns": facts.mtime_ns, "footer": facts.digest}
            for name, (_, facts) in _files(table).items()
        },
    }


def _digest_of_stripes(table: Table) -> str:
    """A digest of the stripes and of their order, without the place of the table."""
    names = _names({*table.facts, *table.files}, table.paths)
    stripes = [(names[one.file], one.group, one.num_rows) for one in table.stripes]
    return hashlib.sha256(repr(stripes).encode()).hexdigest()[:32]


def _files(table: Table) -> dict[str, tuple[Location, FileFacts]]:
    """The table's files, those of its side tables, and the vocabularies of both, by name."""
    names = _names({*table.facts, *table.files}, table.paths)
    found = {names[file]: (file, facts) for file, facts in table.facts.items()}
    for number, side in enumerate(table.joins):
        names = _names(side.facts, side.paths)
        for file, facts in side.facts.items():
            found[f"join[{number}]/{names[file]}"] = file, facts
    names = _names(table.vocabularies, [*table.vocabularies]) if table.vocabularies else {}
    for file, digest in table.vocabularies.items():
        found[f"vocabularies/{names[file]}"] = file, FileFacts(digest=digest)
    return found


def _check(table: Table, before: Mapping[str, Mapping[str, Any]]) -> None:
    now = _files(table)
    cure = "Resume with the table as it was, or start a new run."
    for name, pinned in before.items():
        if name not in now:
            raise DataError(f"{table.path}: the run read {name}, which is no longer there. {cure}")
        file, facts = now[name]
        if (facts.size, facts.digest) != (pinned.get("size"), pinned.get("footer")):
            raise DataError(f"{file}: is not what it was when the run began. {cure}")
    for name, (file, _) in now.items():
        if name not in before:
            raise DataError(f"{file}: was not there when the run began. {cure}")


def _names(files: Collection[Location], tops: Sequence[Location]) -> dict[Location, str]:
    """Each file's path within its table, so that the table may be moved: relative to the table's
    folder, or to the folder that globs begin with, whichever files are there; else relative to the
    folder that all files lie in. Files in different partitions may share a name."""
    kind, each = type(tops[0]), [top.parts for top in tops]
    for heads in (each, [_before_glob(one) for one in each]):
        head = _common(heads)
        if all(type(file) is kind and _is_below(file, head) for file in files):
            break
    else:
        head = _common([file.parent.parts for file in files])
    return {file: "/".join(file.parts[len(head) :]) for file in files}


def _common(folders: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    levels = zip(*folders, strict=False)
    return tuple(one[0] for one in takewhile(lambda one: len({*one}) == 1, levels))


def _before_glob(parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(takewhile(lambda part: not GLOB & {*part}, parts))


def _is_below(file: Location, folder: tuple[str, ...]) -> bool:
    return len(file.parts) > len(folder) and file.parts[: len(folder)] == folder
