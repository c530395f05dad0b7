"""Import of foreign files as a table: in segments, which a resumed import does not write again."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recd_plugins.data.conform.rows import column_problems
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.vocabulary import (
    Counted,
    VocabularyCounts,
    vocabulary_digest,
)
from recd_plugins.data.dataset import SPLITS, Split
from recd_plugins.data.files.paths import VOCABULARIES
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.column_types import MEND, ColumnTypes, Misfit, key_problem, wider
from recd_plugins.data.importing.foreign_file import ForeignFile
from recd_plugins.data.importing.import_folder import (
    IdCounts,
    ImportFolder,
    Segment,
    write_whole_json,
)
from recd_plugins.data.importing.import_notes import (
    notes_of_changes,
    notes_of_dots,
    notes_of_no_ids,
    notes_of_one_label,
    notes_of_same_names,
    notes_of_share,
)
from recd_plugins.data.importing.made_vocabularies import MadeVocabularies
from recd_plugins.data.importing.negatives import (
    Catalogue,
    CatalogueBuilder,
    Negatives,
    check_clicks,
    check_sole_label,
    item_columns,
    with_negatives,
)
from recd_plugins.data.importing.proposing.column_names import names_label
from recd_plugins.data.importing.reading import Block, Position, check_there, mapped, types_of
from recd_plugins.data.importing.row_split import RowSplit
from recd_plugins.data.importing.schema_file import as_yaml
from recd_plugins.data.importing.splits import Quantile, SplitBy
from recd_plugins.data.importing.table_files import absent_errors
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.data.importing.unknown_values import id_counts, notes_of_unknown
from recd_plugins.data.progress import Progress, silent
from recd_plugins.data.schema import Schema
from recd_plugins.errors import DataError, nearest
from recd_plugins.storage.uri import Location, Uri

__all__ = ["Imported", "TableImport"]

R = TypeVar("R")

SEGMENT_ROWS = 1 << 21
"""The number of rows after which a segment is finished and kept."""
VERSION = 8
"""The version of how tables are made: an import that another version began starts anew."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The tables that an import made."""

    tables: Mapping[str, Location]
    """The table, or its splits."""
    rows: Mapping[str, int]
    """The number of rows of each."""
    dropped: Mapping[str, int]
    """The number of rows that were left out, by the column whose null was the reason."""
    resumed: int
    """The number of segments that were already there."""
    notes: tuple[str, ...]


class TableImport:
    """One import: of these files, by this schema, with these options."""

    def __init__(
        self,
        files: Sequence[ForeignFile],
        destination: Location,
        schema: ForeignSchema,
        read_as: ColumnTypes,
        *,
        split: SplitBy | None = None,
        negatives: Negatives | None = None,
        least_count: int = 1,
        others: int = 1,
        absent: Sequence[str] = (),
        form: TextForm | None = None,
        progress: Progress = silent,
        workers: int | None = None,
    ) -> None:
        """`least_count` and `others` are for the vocabularies that the import makes: how often a
        value must occur to get its own id, and how many ids all other values share. Columns in
        `absent` are nulls in files that lack them. The schema that is kept with the table includes
        the `form` by which text was read."""
        self._files = files
        self._to = destination
        self._asked = schema
        self._schema = schema
        self._least_count = least_count
        self._others = others
        self._absent = tuple(absent)
        self._form = form or TextForm()
        self._read_as = read_as.naming(schema.hashed, files[0], schema.timestamp)
        self._split = split
        self._folder = ImportFolder(destination, self._splits)
        self._vocabularies = MadeVocabularies(
            asked=schema,
            folder=self._folder.path / VOCABULARIES,
            least_count=least_count,
            others=others,
        )
        self._negatives = negatives
        self._progress = progress
        self._workers = workers
        self._notes: list[str] = []
        self._widened: dict[str, str] = {}
        self._cut: int | None = None
        self._catalogue: Catalogue | None = None

    def run(self) -> Imported:
        """Make the table. If a column holds values that do not fit the type that it was taken for,
        the import starts again and reads it as a wider type from the first row on."""
        self._check()
        with self._folder.alone():
            try:
                return self._run_alone()
            except OSError:
                self._folder.remove_unbegun()
                raise

    def _run_alone(self) -> Imported:
        key = self._fingerprint()
        errors = self._folder.begin(key)
        for column, messages in errors.items():
            for message in messages:
                self._widen(Misfit(message, column))
        while True:
            try:
                imported = self._run()
                break
            except DataError as error:
                if not (isinstance(error, Misfit) and self._widen(error)):
                    self._folder.remove_unbegun()
                    if not self._folder.path.exists():
                        raise
                    raise DataError(f"{error} {self._folder.left()}") from error
                errors.setdefault(error.column, []).append(str(error))
                self._folder.begin_anew(key, errors)
        return dataclasses.replace(imported, notes=(*self._widened.values(), *imported.notes))

    def _widen(self, error: Misfit) -> bool:
        """Read a column as a wider type from now on, and note it; False if there is none."""
        column, kind = error.column, wider(self._read_as, error, self._asked.hashed, self._files[0])
        if kind is None:
            return False
        self._read_as = self._read_as.having(column, kind)
        what = "text" if self._files[0].format == "text" else "integers without a sign"
        if pa.types.is_floating(kind.value_type if pa.types.is_list(kind) else kind):
            what = "numbers with fractions"
        self._widened[column] = f"{column}: read as {what}, for {error}".removesuffix(f". {MEND}")
        return True

    def _check(self) -> None:
        self._folder.check_free()
        if self._split is not None and self._split.column is None and not self._schema.timestamp:
            raise DataError(
                "--split-by time: the schema has no timestamp. Name its column there, or split by "
                "hash:COLUMN."
            )
        if self._split is not None and (by := self._split.column) is not None:
            names = {*self._schema.columns, *(name for one in self._files for name in one.columns)}
            if by not in names and self._files[0].format != "jsonl":  # JSON keys may come later
                raise DataError(
                    f"--split-by hash:{by}: no file has a column {by!r}; {nearest(by, names)}"
                )
        if self._negatives is not None:
            check_sole_label(self._made)
            item_columns(self._made, self._negatives)
        for name in self._columns if self._files[0].format == "jsonl" else ():
            problem = key_problem(name, self._read_as)
            if problem and name not in self._schema.columns:  # only --split-by needs it
                raise DataError(
                    f"--split-by hash:{name}: no line has a key {name!r}; "
                    f"{nearest(name, self._read_as.types)}"
                )
            if problem:
                raise Spot(_together(self._files), name).error(*problem)
        self._check_labels()
        self._check_types()
        self._vocabularies.check_files()
        for error in absent_errors(self._absent, self._files, self._schema, self._read_as.types):
            raise error
        for file in self._files:  # before values are counted for hours
            check_there(file, self._columns, self._absent)

    def _check_labels(self) -> None:
        if self._files[0].format == "jsonl" or self._makes_label:
            return
        names = {*self._absent, *(name for one in self._files for name in one.columns)}
        for label in self._schema.label_columns:
            if label.name not in names:
                known = {*self._schema.columns}
                likely = sorted(one for one in names - known if names_label(one))
                cure = f"Name the label there. {nearest(label.name, names)}"
                if likely:
                    cure = (
                        f"By its name {' or '.join(map(repr, likely[:3]))} may be it: name it "
                        "there, as `label: NAME`. If it holds texts, such as yes and no, write 1 "
                        "and 0 for them in the files first."
                    )
                raise DataError(
                    f"{_together(self._files)}: no column is called {label.name!r}, the label of "
                    f"the schema. {cure} Or, if each row is a click, give `--negatives 4`."
                )

    def _check_types(self) -> None:
        """Raises `DataError` for a column of the first file whose type does not fit its part of the
        schema, before values are counted for hours. Text and lines of JSON have no types."""
        file = self._files[0]
        if file.format != "parquet":
            return
        arrow = pa.schema(list(types_of(file, self._columns).items()))
        for name, what, cure in column_problems(arrow, self._schema):
            if name in arrow.names:
                raise Spot(str(file.path), name).error(what, cure)

    @property
    def _made(self) -> Schema:
        return self._schema.conformed

    @property
    def _columns(self) -> tuple[str, ...]:
        """The columns to read: the schema's, without a label that negatives supply, and the column
        to split by."""
        wanted = dict.fromkeys(self._schema.columns)
        if self._makes_label:
            del wanted[self._schema.label]
        if self._split is not None and self._split.column is not None:
            wanted[self._split.column] = None
        return tuple(wanted)

    @property
    def _makes_label(self) -> bool:
        """Whether negatives supply the label: each row is a click, and no column has the label."""
        return self._negatives is not None and not any(
            self._schema.label in file.columns for file in self._files
        )

    @property
    def _row_split(self) -> RowSplit:
        return RowSplit(split=self._split, schema=self._schema, cut=self._cut)

    @property
    def _splits(self) -> tuple[Split, ...]:
        return ("train",) if self._split is None else SPLITS

    def _run(self) -> Imported:
        self._schema, self._notes = self._asked, []
        if self._split is not None and self._split.column is None:
            self._cut = self._time_cut()
        self._schema = self._with_vocabularies()
        if self._negatives is not None:
            self._catalogue = self._items()
        done = self._folder.done()
        resumed = len(done)
        position = Position(**done[-1]["after"]) if done else Position()
        if not done or not done[-1]["last"]:
            self._write_segments(position, len(done))
            done = self._folder.done()
        rows: dict[str, int] = {
            split: sum(one["rows"][split] for one in done) for split in self._splits
        }
        dropped: Counter[str] = Counter()
        for one in done:
            dropped.update(one["dropped"])
        for split in self._splits:
            if not rows[split]:
                raise self._no_rows(split, dropped)
        if self._split is not None:
            self._notes += notes_of_share(self._split, self._asked, rows)
        self._notes += notes_of_one_label(self._asked, done, self._splits)
        self._notes += notes_of_unknown(self._asked, self._schema, done, self._splits)
        self._notes += notes_of_no_ids(self._schema)
        self._notes += notes_of_dots(self._schema)
        self._notes += notes_of_same_names(self._asked, self._files)
        self._notes += notes_of_changes(self._files)
        self._schema = self._vocabularies.beside(self._schema)
        self._folder.publish(self._schema_text(), self._progress)
        folders: dict[str, Location] = {split: self._to / split for split in rows}
        tables = folders if self._split else {"": self._to}
        return Imported(
            tables=tables,
            rows=rows,
            dropped=dropped,
            resumed=resumed,
            notes=tuple(self._notes),
        )

    def _no_rows(self, split: Split, dropped: Counter[str]) -> DataError:
        names = ", ".join(name for name, count in dropped.items() if count)
        if split == "train" and names:
            return DataError(
                f"no row is left: all were dropped for nulls in {names}. Set another `nulls` in "
                "the schema, or correct the column."
            )
        without = f" that has no null in {names}, for which rows are dropped" if names else ""
        return DataError(
            f"no row{without} is in the {split} split. Give another `--test-share`, or split by "
            "another column."
        )

    def _fingerprint(self) -> str:
        files = [(str(_named(file.path)), file.size, file.mtime_ns) for file in self._files]
        options = [
            dataclasses.asdict(one) if one else None for one in (self._split, self._negatives)
        ]
        types = {name: str(kind) for name, kind in self._read_as.types.items()}
        made = [VERSION, SEGMENT_ROWS, files, repr(self._asked), options, types]
        made += [dict(self._read_as.nulls), dict(self._read_as.parted)]
        made += [self._least_count, self._others]
        made += [self._absent] if self._absent else []
        made += [sorted(self._read_as.decimal_commas), *sorted({str(one) for one in self._files})]
        made += [sorted(self._read_as.thousands)]
        made += [[(one.escapes, one.quotes, one.encoding) for one in self._files]]
        made += [self._files[0].names]
        known = dict.fromkeys(one.table_names for one in self._files)
        made += [repr(list(known))] if any(known) else []
        made += map(vocabulary_digest, self._asked.vocabularies)
        return sha256(json.dumps(made).encode()).hexdigest()

    # Passes before the rows are written

    def _time_cut(self) -> int:
        file = self._folder.path / "cut.json"
        assert self._split is not None
        assert self._schema.timestamp is not None
        if not file.exists():
            quantile, row_split = Quantile(), self._row_split
            name = self._schema.timestamp
            read = self._read_with(row_split.columns)

            def times(block: Block) -> npt.NDArray[np.int64]:
                return row_split.times(block.rows(read, self._read_as), block)

            for _, found in self._mapped(times, read, Position(), "reading times"):
                quantile.add(found)
            write_whole_json(file, {"cut": quantile.cut(self._split.share, name)})
        return int(json.loads(file.read_text())["cut"])

    def _with_vocabularies(self) -> ForeignSchema:
        """The schema, in which each feature that needs a vocabulary has one, made of train rows."""
        made = self._vocabularies
        if made.features:
            if not made.are_there:
                made.save(self._counted_values())
            self._notes = made.notes
        return made.schema

    def _counted_values(self) -> dict[str, VocabularyCounts]:
        """By table, the counts of values in the train rows of features without a vocabulary."""
        vocabularies, row_split = self._vocabularies, self._row_split
        counts = vocabularies.begun()
        wanted = [one.name for one in vocabularies.features]
        read = self._read_with([*wanted, *row_split.columns])

        def count(block: Block) -> dict[str, list[Counted]]:
            rows = row_split.trained(block.rows(read, self._read_as), block)
            return vocabularies.counted(rows, str(block.file.path))

        for _, found in self._mapped(count, read, Position(), "counting values"):
            for table, parts in found.items():
                for part in parts:
                    counts[table].add(part)
        return counts

    def _read_with(self, names: Sequence[str]) -> tuple[str, ...]:
        """These columns, each once, without a label that negatives supply."""
        return tuple(dict.fromkeys(name for name in names if name in self._columns))

    def _items(self) -> Catalogue:
        assert self._negatives is not None
        file = self._folder.path / "items.arrow"
        if not file.exists():
            builder = CatalogueBuilder(item_columns(self._made, self._negatives))
            clicks = self._mapped(self._clicks, self._columns, Position(), "reading items")
            for block, found in clicks:
                builder.add(found["train"], block.where)
            whole = builder.done()
            saved = whole.rows.append_column("\0id", pa.array(whole.ids))
            saved = saved.append_column("\0count", pa.array(whole.counts))
            aside = file.with_suffix(".new")
            with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, saved.schema) as writer:
                writer.write_table(saved)
            aside.rename(file)
        with pa.OSFile(str(file)) as source:
            rows = pa.ipc.open_file(source).read_all()
        return Catalogue(
            ids=rows["\0id"].to_numpy(),
            counts=rows["\0count"].to_numpy(),
            rows=rows.drop_columns(["\0id", "\0count"]).combine_chunks(),
        )

    # The rows

    def _write_segments(self, start: Position, number: int) -> None:
        last = Position()
        segment: Segment | None = None
        try:
            mapped = self._mapped(self._rows, self._columns, start, f"writing {self._to.name}")
            for block, (rows, dropped, counts) in mapped:
                if segment is None:
                    segment = self._folder.segment(number, self._made)
                segment.write(rows, dropped, counts)
                if block.after is not None:
                    last = block.after
                    if segment.num_rows >= SEGMENT_ROWS:
                        segment.close(last, is_last=False)
                        segment, number = None, number + 1
            segment = segment or self._folder.segment(number, self._made)
            segment.close(last, is_last=True)
        except BaseException:
            if segment is not None:
                segment.abort()
            raise

    def _clicks(self, block: Block) -> dict[Split, pa.Table]:
        parts, _ = self._parted(block)
        for rows in parts.values():
            check_clicks(rows, self._made.label, block.where)
        return parts

    def _rows(self, block: Block) -> tuple[dict[Split, pa.Table], Counter[str], IdCounts]:
        """The rows of a block to write to each split, the dropped rows, and the counts of ids."""
        parts, dropped = self._parted(block)
        counts = id_counts(self._schema, parts)
        if self._negatives is None or self._catalogue is None:
            return parts, dropped, counts
        columns = item_columns(self._made, self._negatives)
        file = next(number for number, one in enumerate(self._files) if one is block.file)
        return (
            {
                split: with_negatives(
                    rows,
                    self._catalogue,
                    self._negatives,
                    columns=columns,
                    label=self._made.label,
                    key=(file << 48) + 2 * block.first + (split == "test"),
                    where=block.where,
                )
                for split, rows in parts.items()
            },
            dropped,
            counts,
        )

    def _parted(self, block: Block) -> tuple[dict[Split, pa.Table], Counter[str]]:
        raw = block.rows(self._columns, self._read_as)
        if self._makes_label:
            ones = pa.chunked_array([pa.array(np.ones(raw.num_rows, np.float32))])
            raw = raw.append_column(self._schema.label, ones)
        return self._row_split.parts(raw, block)

    def _mapped(
        self, make: Callable[[Block], R], columns: Sequence[str], start: Position, what: str
    ) -> Iterator[tuple[Block, R]]:
        return mapped(
            make,
            self._files,
            columns,
            start=start,
            workers=self._workers,
            progress=self._progress,
            what=what,
            absent=self._absent,
        )

    # The end

    def _schema_text(self) -> str:
        """The text of the schema by which files became rows: for further imports and serving."""
        own = self._folder.path / VOCABULARIES
        sparse = tuple(
            dataclasses.replace(
                one,
                vocabulary=Path(VOCABULARIES) / one.vocabulary.name
                if one.vocabulary.parent == own
                else _named(one.vocabulary),
            )
            if one.vocabulary is not None
            else one
            for one in self._schema.sparse
        )
        return (
            "# What the columns of the imported files are, and how their ids become rows: what\n"
            "# more files are imported by (--schema), and what is served.\n"
            + as_yaml(
                dataclasses.replace(self._schema, sparse=sparse),
                self._read_as.form(self._form, self._files[0], self._schema.columns),
            )
        )


def _together(files: Sequence[ForeignFile]) -> str:
    more = len(files) - 1
    return f"{files[0].path}" + (f" and {more} more" if more else "")


def _named(location: Location) -> Location:
    """The location as a name that is valid from any folder."""
    return location if isinstance(location, Uri) else location.absolute()
