"""Hive's partitions: columns that the names of folders give, as `key=value`, to the files in
them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from urllib.parse import unquote

import pyarrow as pa

from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["partitions_of", "typed_partitions"]

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def partitions_of(folders: Iterable[str]) -> dict[str, str]:
    """What the names of folders say of the files in them by `key=value`."""
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    return {unquote(key): unquote(value) for key, value in pairs}


def typed_partitions(files: Mapping[Location, FileFacts]) -> dict[Location, FileFacts]:
    """The values in names of folders, in one type per column: integers, dates, or else texts."""
    keys = dict.fromkeys(key for facts in files.values() for key in facts.folders)
    if not keys:
        return dict(files)
    columns: dict[str, pa.Array] = {}
    for key in keys:
        for file, facts in files.items():
            if key not in facts.folders:
                raise DataError(
                    f"{file}: is in no folder {key}=..., although others of its table are. All "
                    "files of a table must have the same partition keys: move it, or name it as a "
                    "table of its own. If it is no part of a table, name the others, as by a "
                    "glob: 'FOLDER/**/*.parquet'."
                )
        texts = [facts.folders[key] for facts in files.values()]
        columns[key] = _typed(pa.array([None if one == HIVE_NULL else one for one in texts]))
    return {
        file: replace(facts, partitions={key: columns[key][at] for key in keys})
        for at, (file, facts) in enumerate(files.items())
    }


def _typed(texts: pa.Array) -> pa.Array:
    given = [text for text in texts.to_pylist() if text is not None]
    if not given:
        return texts.cast(pa.string())
    if all(WHOLE.fullmatch(text) for text in given):
        return texts.cast(pa.int64())
    if all(DATE.fullmatch(text) for text in given):
        try:
            return texts.cast(pa.date32())
        except pa.ArrowException:
            return texts
    return texts
