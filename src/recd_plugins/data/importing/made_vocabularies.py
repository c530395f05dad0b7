"""The vocabularies of an import: those that it makes for features that come without one, and copies
of the others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pyarrow as pa

from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.vocabulary import (
    Counted,
    VocabularyCounts,
    counted,
)
from recd_plugins.data.files.paths import VOCABULARIES
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.importing.import_folder import (
    JOURNAL,
    write_whole_json,
)
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location

__all__ = ["MadeVocabularies"]


@dataclass(frozen=True, kw_only=True)
class MadeVocabularies:
    """Vocabularies of the train rows' values, in a folder: one per table."""

    asked: ForeignSchema
    """The schema that was asked for."""
    folder: Path
    least_count: int
    """How often a value must occur to get an id of its own."""
    others: int
    """How many ids all other values share."""

    @cached_property
    def features(self) -> list[ForeignFeature]:
        """The features whose vocabularies are made."""
        return [one for one in self.asked.sparse if one.ids == "vocabulary" and not one.vocabulary]

    def check_files(self) -> None:
        """Raises an error unless the vocabularies of two tables are two files on any file
        system."""
        seen: dict[str, str] = {}
        for table in (one.table_name for one in self.features):
            file = _file_of(table)
            other = seen.setdefault(normalize("NFC", file).casefold(), table)
            if other != table:
                raise DataError(
                    f"the vocabularies of tables {other!r} and {table!r} would be the files "
                    f"{VOCABULARIES}/{_file_of(other)} and {file}, which many file systems take "
                    f"for the same file. Rename a table: `table: {table}_2` in the schema's entry "
                    f"of each feature of {table!r}."
                )

    def begun(self) -> dict[str, VocabularyCounts]:
        """Counts of nothing yet, by table."""
        return {one.table_name: VocabularyCounts(one.name) for one in self.features}

    def counted(self, rows: pa.Table, where: str) -> dict[str, list[Counted]]:
        """The values of rows, by table; a table's features may have several types."""
        tables = dict.fromkeys(one.table_name for one in self.features)
        return {
            table: [
                counted(rows[one.name].chunks, Spot(where, one.name), one.missing)
                for one in self.features
                if one.table_name == table and rows[one.name].num_chunks
            ]
            for table in tables
        }

    @property
    def are_there(self) -> bool:
        """Whether they are saved, whole."""
        return self._journal.exists()

    def save(self, counts: Mapping[str, VocabularyCounts]) -> None:
        """Save them, from all values of the train rows."""
        sizes, notes = {}, []
        for table, one in counts.items():
            most = max(each.num_ids for each in self.features if each.table_name == table)
            sizes[table] = one.save(
                self.folder / _file_of(table),
                most=most,
                least_count=self.least_count,
                others=self.others,
            )
            left = one.num_values + self.others - sizes[table]
            if left:
                notes.append(
                    f"{table}: {left:,} of {one.num_values:,} values have no id of their own "
                    f"(num_ids {most:,}, least count {self.least_count:,})"
                )
        write_whole_json(self._journal, {"sizes": sizes, "notes": notes})

    @property
    def notes(self) -> list[str]:
        """Notes on what the saved ones left out."""
        notes: list[str] = self._saved["notes"]
        return notes

    @property
    def schema(self) -> ForeignSchema:
        """The schema with the saved ones."""
        if not self.features:
            return self.asked
        sizes = self._saved["sizes"]
        return dataclasses.replace(
            self.asked,
            sparse=tuple(
                dataclasses.replace(
                    one,
                    vocabulary=self.folder / _file_of(one.table_name),
                    num_ids=sizes[one.table_name],
                )
                if one in self.features
                else one
                for one in self.asked.sparse
            ),
        )

    def beside(self, schema: ForeignSchema) -> ForeignSchema:
        """The schema with copies, in the folder, of the vocabularies that it names elsewhere: the
        table can then be read by its own when the table that they were made for is gone."""
        names = {_file_of(one.table_name) for one in self.features}
        copies: dict[Location | None, Path] = {}
        for one in schema.sparse:
            file, name = one.vocabulary, _file_of(one.table_name)
            if file is None or file.parent == self.folder or file in copies:
                continue
            if name not in names:  # else features of the table have several vocabularies
                self.folder.mkdir(exist_ok=True)
                copies[file] = self.folder / name
                copies[file].write_bytes(file.read_bytes())
                names.add(name)
        sparse = (
            dataclasses.replace(one, vocabulary=copies.get(one.vocabulary, one.vocabulary))
            for one in schema.sparse
        )
        return dataclasses.replace(schema, sparse=tuple(sparse))

    @property
    def _journal(self) -> Path:
        return self.folder / JOURNAL

    @property
    def _saved(self) -> Mapping[str, Any]:
        saved: Mapping[str, Any] = json.loads(self._journal.read_text())
        return saved


def _file_of(table: str) -> str:
    """The file of a table's vocabulary: a name may have a slash."""
    return f"{table.replace('%', '%25').replace('/', '%2F')}.parquet"
