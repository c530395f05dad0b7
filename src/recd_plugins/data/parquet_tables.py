"""The `parquet` dataset: tables that somebody else wrote."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import pyarrow as pa

from recd_plugins.config import Config, Range
from recd_plugins.data.conform.keys import are_times
from recd_plugins.data.conform.rows import conform
from recd_plugins.data.dataset import SPLITS, Dataset, Split, Tables
from recd_plugins.data.expression import expression
from recd_plugins.data.files.found import found_files
from recd_plugins.data.files.missing_table import named_by
from recd_plugins.data.files.paths import place_of
from recd_plugins.data.files.snapshots import TableFormat, snapshot_files
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.footer import arrow_schema, footer_of, read_footer
from recd_plugins.data.progress import Progress, silent
from recd_plugins.data.schema import Schema
from recd_plugins.data.selection import Selection
from recd_plugins.data.side_table import SideTable, SideTableConfig
from recd_plugins.data.table import Table, footer_schema
from recd_plugins.errors import RecdError, RegistryError, so_many
from recd_plugins.notices import (
    GivesNotices,
    MadeApart,
    MadeOtherwise,
    NotHeldOut,
    Notice,
    NoticeWarning,
    Repeated,
    Unused,
)
from recd_plugins.patterns import check_patterns, matching
from recd_plugins.storage.uri import Location, Uri

if TYPE_CHECKING:
    from recd_plugins.data.importing.made_otherwise import Difference

__all__ = ["ParquetConfig", "ParquetTables", "build_parquet", "files_of_split", "made_apart"]

S = TypeVar("S", Schema, ForeignSchema)


@dataclass(frozen=True, kw_only=True)
class ParquetConfig(Config):
    """Where the tables lie and, unless their footers say it, what their columns mean."""

    train: Path | Uri | tuple[Path | Uri, ...]
    """The train split: a folder of .parquet files, a file, a glob, or several of these, on disk or
    on a store (s3://bucket/folder). Each key of folders named `key=value` is a column."""
    test: Path | Uri | tuple[Path | Uri, ...]
    """The test split, given in the same way."""
    format: TableFormat = "parquet"
    """The format of the tables. For `delta` and `iceberg` their libraries say which files a table
    has; the path is the table's folder, or for Iceberg the metadata file that the catalog names."""
    snapshot: Annotated[int | None, Range(ge=0)] = None
    """The version (Delta Lake) or snapshot (Iceberg) to train on; by default the latest. A run's
    pins.json says which one that was."""
    snapshot_test: Annotated[int | None, Range(ge=0)] = None
    """The version or snapshot of the test split's table; by default the latest."""
    schema: ForeignSchema | None = None
    """What the columns mean, or the file that says so, as `recd data schema` writes it; its path
    starts at registry.yaml. By default the footer of the first file says it."""
    where: str | None = None
    """An expression over the files' columns that chooses rows: `country == "DE" and time >=
    2024-05-01`. Stripes that have no such rows by their statistics are not read; by default all
    rows are taken."""
    where_test: str | None = None
    """The same for the test split; by default the same as `where`."""
    sessions_share: Annotated[float, Range(gt=0, le=1)] = 1.0
    """The share of the sessions to train on, chosen by a hash of the session: the sessions of 0.05
    are among those of 0.1, in every run. The test split keeps all sessions, so that runs can be
    compared."""

    features: str | tuple[str, ...] = "*"
    """Names or globs of the sparse features and dense columns that are read; by default all."""
    without: str | tuple[str, ...] = ()
    """Names or globs of columns that are left out of these."""
    absent: str | tuple[str, ...] = ()
    """Names or globs of sparse features and dense columns that some files may lack, because they
    were added later or removed: there lists are empty and numbers are 0, or what `nulls` of the
    schema says. Any other missing column is an error, unless the table's log says what its values
    are."""

    join: tuple[SideTableConfig, ...] = ()
    """Features in other tables, which are joined by a key while rows are read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("where", "where_test"):
            if (text := getattr(self, option)) is not None:
                expression(text, option)

    def idle_options(self) -> Mapping[str, str]:
        if self.format != "parquet":
            return {}
        why = "files of `format: parquet` have no snapshots, and are taken as they are now"
        return dict.fromkeys(self.set_among("snapshot", "snapshot_test"), why)


class ParquetTables(Dataset, GivesNotices):
    """Read where they are: `prepare` copies nothing, unless the schema drops rows."""

    def __init__(self, config: ParquetConfig, cache: Path | None = None) -> None:
        """`cache` is a folder in which facts about the files are kept."""
        self._config = config
        self._cache = cache
        self._given = (
            None if config.schema is None else _taken(_beside(config.schema, config), config)
        )
        self.in_place = self._given is None or not self._given.drops

    @property
    def schema(self) -> Schema:
        return self._open("train").schema if self._given is None else self._given.conformed

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        if self.in_place:
            yield from self._open(split).each_read()
        else:
            yield from self._left(split)

    def num_rows(self, split: Split) -> int | None:
        return self._open(split).num_rows if self.in_place else None

    def fingerprint(self) -> str:
        stats: list[object] = []
        for split in SPLITS:
            files = self._found(split)[0]
            stats += [
                repr(one) for one in dict.fromkeys(one.names for one in files.values()) if one
            ]
            for file, facts in files.items():
                stats.append(
                    _stat(file) if facts.size is None else (str(file), facts.size, facts.mtime_ns)
                )
        features = [] if self._config.schema is None else [*self._config.schema.sparse]
        for number, side in enumerate(self._config.join):
            features += side.sparse
            with named_by(f"dataset.join[{number}].table"):
                stats += [_stat(file) for file in found_files(side.table)]
        vocabularies = (one.vocabulary for one in features)
        stats += [_stat(file) for file in vocabularies if file is not None and file.exists()]
        return hashlib.sha256(repr(stats).encode()).hexdigest()

    def prepare(self, folder: Path, progress: Progress = silent) -> Tables:
        if not self.in_place:
            return self.write(folder, progress)
        return Tables(train=self._open("train"), test=self._open("test"))

    def notices(self) -> list[Notice]:
        return [
            *self._trained_on(),
            *self._copied(),
            *self._made_otherwise(),
            *self._idle_unit(),
        ]

    def _idle_unit(self) -> list[Notice]:
        """A notice of a unit of times whose column has a type that says it."""
        schema = self._config.schema
        if schema is None or schema.timestamp is None or not schema.set_among("timestamp_unit"):
            return []
        files = [*self._found("train")[0].items()]
        kind = pa.null()
        for file, facts in files[:1] + files[1:][-1:]:  # a file that is in between is like them
            columns = arrow_schema(footer_of(file, facts.names), file, facts)
            kind = columns.field(schema.timestamp).type
            if not are_times(kind):
                return []
        return [
            Unused(
                what="dataset: schema.timestamp_unit",
                why="it is the unit of numbers, or the form of texts, and column "
                f"{schema.timestamp!r} is {kind}",
                cure="Take timestamp_unit out.",
            )
        ]

    def _trained_on(self) -> list[Notice]:
        """A notice if the test split has files of the train split and no `where` separates their
        rows; but not if one table is named for both splits, which must be intended."""
        config = self._config
        parted = config.where_test is not None and config.where_test != config.where
        if parted or config.train == config.test:
            return []
        trained, tested = ({*map(place_of, self._found(split)[0])} for split in SPLITS)
        if not (both := len(trained & tested)):
            return []
        return [
            NotHeldOut(
                what="dataset.test",
                why=f"of its {so_many(len(tested), 'file')} dataset.train has {both:,} too, so "
                "its metrics say little about new rows",
                cure="Name files of its own, or let `where` and `where_test` divide the rows.",
            )
        ]

    def _copied(self) -> list[Notice]:
        """A notice if files of the train split are copies of others, as where somebody has kept
        what a partition was beside it. A copy has the name and the size of its file."""
        alike: dict[tuple[str, int | None], list[tuple[Location, FileFacts]]] = {}
        for file, facts in self._found("train")[0].items():
            size = _stat(file)[1] if facts.size is None else facts.size
            alike.setdefault((file.name, size), []).append((file, facts))
        copies = []
        for files in alike.values():
            first: dict[str, Location] = {}
            for file, facts in files if len(files) > 1 else ():
                with suppress(RecdError):  # what is no table is told where it is opened
                    footer = read_footer(file, facts.names)
                    before = first.setdefault(footer.digest, file)
                    if footer.metadata.num_rows and place_of(before) != place_of(file):
                        copies.append((before, file))
        if not copies:
            return []
        (before, file), *_ = copies
        return [
            Repeated(
                what="dataset.train",
                why=f"{file} is a copy of {before}"
                + (f", and {len(copies) - 1:,} more are copies" if len(copies) > 1 else "")
                + ", so that an epoch trains on their rows twice",
                cure="Move copies out of the table, or name the files without them.",
            )
        ]

    def _made_otherwise(self) -> list[Notice]:
        """Notices if imports have made the ids or the numbers of the two splits otherwise, or those
        of two tables that are trained on."""
        if self._config.schema is not None:  # by which all are read
            return []
        notices: list[Notice] = []
        for split, found in made_apart(self._config):
            if split == "train":
                why = f"one id or number means two things: {found.why}"
                notices.append(MadeApart(what="dataset.train", why=why, cure=found.cure))
            else:
                why = f"its metrics say nothing: {found.why}"
                notices.append(MadeOtherwise(what="dataset.test", why=why, cure=found.cure))
        return notices

    def _left(self, split: Split) -> Iterator[pa.Table]:
        """The rows that the schema does not drop; a warning says how many are dropped."""
        schema, dropped, rows = self._given, Counter[str](), 0
        assert schema is not None  # it drops rows
        table = self._open(split, schema.keeping_all)
        for file, stripe in table.each_opened():
            chunk = table.stored(file, stripe, schema.columns)
            left = conform(chunk, schema, str(stripe), dropped=dropped)
            rows += chunk.num_rows - left.num_rows
            yield left
        if rows:
            each = ", ".join(f"{count:,} in {name!r}" for name, count in dropped.items() if count)
            warnings.warn(
                f"{table.path}: {rows:,} of {so_many(table.num_rows, 'row')} are left out of split "
                f"{split!r}, as `nulls: drop` of dataset.schema has it: nulls are {each}.",
                NoticeWarning,
                stacklevel=2,
            )

    def _open(self, split: Split, schema: ForeignSchema | None = None) -> Table:
        config = self._config
        given: Schema | ForeignSchema | None = schema or self._given
        absent = _patterns(config.absent)
        if given is None and (_narrowed(config) or absent or config.join):
            own = footer_schema(tuple(self._found("train")[0]), absent)
            given = _taken(_beside(own, config), config)
        files, paths, snapshot = self._found(split)
        joins = self._side_tables(given)
        table = Table.of(paths, files, given, absent=absent, cache=self._cache, joins=joins)
        table = replace(table, snapshot=snapshot)
        where, option = config.where, "where"
        if split == "test" and config.where_test is not None:
            where, option = config.where_test, "where_test"
        share = config.sessions_share if split == "train" else 1.0
        if where is None and share == 1:
            return table
        selection = Selection(
            where=where,
            where_option=f"dataset.{option}",
            sessions_share=share,
            schema=table.schema,
            source=self._given if isinstance(self._given, ForeignSchema) else table.source,
        )
        return table.select(selection, self._cache)

    def _side_tables(self, given: Schema | ForeignSchema | None) -> list[SideTable]:
        """The side tables from which a feature is taken."""
        if given is None or not self._config.join:
            return []
        whole = given if isinstance(given, Schema) else given.conformed
        names = {*whole.dense, *whole.sparse_names}
        sides = []
        for number, one in enumerate(self._config.join):
            with named_by(f"dataset.join[{number}].table"):
                sides.append(SideTable(one, names, self._cache))
        return [side for side in sides if side.features]

    def _found(
        self, split: Split
    ) -> tuple[dict[Location, FileFacts], tuple[Location, ...], str | None]:
        return files_of_split(self._config, split)


def files_of_split(
    config: ParquetConfig, split: Split
) -> tuple[dict[Location, FileFacts], tuple[Location, ...], str | None]:
    """The files of a split, the paths that the config names, and the name of the snapshot."""
    given = config.train if split == "train" else config.test
    paths = given if isinstance(given, tuple) else (given,)
    if config.format == "parquet":
        with named_by(f"dataset.{split}"):
            return found_files(paths), paths, None
    if len(paths) > 1:
        raise RegistryError(
            f"names {len(paths)} tables, but of format {config.format} only one is read. Name one.",
            f"dataset.{split}",
        )
    asked = config.snapshot if split == "train" else config.snapshot_test
    files, snapshot = snapshot_files(paths[0], config.format, asked)
    return files, paths, snapshot


def made_apart(config: ParquetConfig) -> Iterator[tuple[Split, Difference]]:
    """Each split of which a table was imported otherwise than the first that is trained on, with
    what differs."""
    from recd_plugins.data.importing.made_otherwise import made_otherwise, places_of

    first: list[Location] = []
    for split in SPLITS:
        files, paths, _ = files_of_split(config, split)
        places = places_of(paths, files)
        first = first or places
        if found := made_otherwise(first, places, "train" if split == "test" else "the first"):
            yield split, found


def _beside(schema: S, config: ParquetConfig) -> S:
    """The schema with the features of side tables."""
    for side in config.join:
        schema = side.beside(schema)
    return schema


def _patterns(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given


def _narrowed(config: ParquetConfig) -> bool:
    return _patterns(config.features) != ("*",) or bool(config.without)


def _taken(schema: S, config: ParquetConfig) -> S:
    """The schema with the features and dense columns that the config asks for."""
    if not _narrowed(config):
        return schema
    whole: Schema = schema if isinstance(schema, Schema) else schema.conformed
    names = (*whole.dense, *whole.sparse_names)
    wanted, left_out = _patterns(config.features), _patterns(config.without)
    for option, patterns in (("features", wanted), ("without", left_out)):
        check_patterns(patterns, names, kind="feature or dense column", where=f"dataset.{option}")
    gone = matching(left_out, names)
    kept = [name for name in matching(wanted, names) if name not in gone]
    if not kept:
        raise RegistryError(
            f"leave none of the {len(names)} features and dense columns. Leave some.",
            "dataset.features and dataset.without",
        )
    return schema.having(kept)


def _stat(file: Location) -> tuple[str, int | None, int | None]:
    stat = file.stat()
    return str(file), stat.st_size, stat.st_mtime_ns


def build_parquet(config: ParquetConfig, context: Any) -> ParquetTables:
    """The record's build; `context` is a `slots.Context`."""
    return ParquetTables(config, context.folder / "known")
