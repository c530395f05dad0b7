"""What names in a table's folder mean: globs, files that writers keep for themselves, and what lies
beside the files with rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from recd_plugins.storage.uri import GLOB, Location

__all__ = [
    "SCHEMA_FILE",
    "UNFINISHED",
    "VOCABULARIES",
    "fixed_parts",
    "is_glob",
    "is_hidden",
    "place_of",
]

UNFINISHED = "_unfinished"
"""This file marks a folder on a store as unfinished; the writer removes it last."""
SCHEMA_FILE = "schema.yaml"
"""The file beside a table's files with the schema that the table was imported by."""
VOCABULARIES = "vocabularies"
"""The folder beside a table's files with the vocabularies of its features."""


def is_glob(path: Location) -> bool:
    """Whether a path is written as a pattern of names."""
    return bool(GLOB & {*"/".join(path.parts)})


def fixed_parts(parts: Sequence[str]) -> int:
    """How many parts of a glob come before the first that is a pattern."""
    return next(at for at, part in enumerate(parts) if GLOB & set(part))


def is_hidden(parts: Iterable[str]) -> bool:
    """Whether a path below a folder is one that writers keep for themselves, as `_temporary/...`
    and `.part.crc`; `_day=1` is a partition."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)


def place_of(file: Location) -> str:
    """The place of a file, whatever links lead to it."""
    return os.path.realpath(file) if isinstance(file, Path) else str(file)
