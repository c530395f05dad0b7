"""Rewrites a table in another layout: maps flattened, columns in another order, other stripes.

Any Parquet files will do. The rows stay as they are, and so does what the footers say of them; ids
of a table of ours take 4 bytes, as in one that is written today. The result appears file by file,
each whole: an interrupted rewrite goes on after the last of them. Memory holds a stripe of the
source and one of the result.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recd_plugins.config import Config, Range
from recd_plugins.data.files.found import found_files
from recd_plugins.data.files.paths import UNFINISHED
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.file_writer import FileWriter
from recd_plugins.data.parquet.footer import arrow_schema, footer_of
from recd_plugins.data.parquet.left_out import LeavingOut
from recd_plugins.data.parquet.opened_file import opened
from recd_plugins.data.progress import Progress, silent
from recd_plugins.data.schema import IDS, METADATA_KEY, NARROW_IDS, Schema
from recd_plugins.data.stripes import Stripe, read_stripe
from recd_plugins.errors import DataError, nearest
from recd_plugins.storage.lock_file import written_alone
from recd_plugins.storage.uri import Location, Uri
from recd_plugins.storage.whole_file import write_whole

__all__ = ["RewriteConfig", "columns_after", "flattened", "rewrite"]


@dataclass(frozen=True, kw_only=True)
class RewriteConfig(Config):
    """The new layout."""

    flatten: tuple[str, ...] = ()
    """Map columns to flatten: each of their keys becomes a column, and so a feature, named
    `{column}_{key}`."""
    first: tuple[str, ...] = ()
    """The columns that come first, in this order. Name the most popular ones, so that one coalesced
    read has them."""
    rows_per_stripe: Annotated[int, Range(ge=1)] = 131_072
    """The number of rows of a stripe. More make larger reads, and take more memory in readers."""
    stripes_per_file: Annotated[int, Range(ge=1)] = 8
    """The number of stripes of a file. An interrupted rewrite keeps the files that it has
    finished."""
    page_size: Annotated[int, Range(ge=1024)] = 1 << 20
    """The bytes of a page before compression."""
    compression_level: Annotated[int, Range(ge=1, le=22)] = 1
    """The level of zstd: a higher one writes smaller files, and takes longer."""
    leave_out_repeats: bool = False
    """Whether the files have a null for each list of ids that equals the list of the row before.
    Other readers of Parquet see the nulls."""


def rewrite(
    source: Location | Sequence[Location],
    target: Location,
    config: RewriteConfig,
    progress: Progress = silent,
) -> int:
    """Write the table into the folder `target`; returns its number of rows. Files that an
    interrupted run of the same rewrite left there stay."""
    facts = found_files(source)
    files = tuple(facts)
    there = target.exists()
    if there and not (isinstance(target, Uri) and (target / UNFINISHED).exists()):
        raise _there(target)
    footers = {file: footer_of(file, known.names) for file, known in facts.items()}
    arrow = _types(footers[files[0]], files[0], facts[files[0]])
    _check(arrow, facts, footers, config)
    # A store cannot rename: there the plan lies in the table's folder until it is whole, and marks
    # it as unfinished.
    part = target if isinstance(target, Uri) else target.with_name(target.name + ".part")
    with nullcontext() if isinstance(part, Uri) else written_alone(part, target):
        if not isinstance(target, Uri) and target.exists():
            raise _there(target)  # made by another rewrite that has just ended
        _write_files(facts, footers, part, arrow, config, progress)
        if isinstance(part, Path) and isinstance(target, Path):
            part.rename(target)
    return sum(footer.num_rows for footer in footers.values())


def _there(target: Location) -> DataError:
    return DataError(f"{target}: is there already. Name another folder, or remove it.")


def _write_files(
    facts: Mapping[Location, FileFacts],
    footers: Mapping[Location, pq.FileMetaData],
    part: Location,
    arrow: pa.Schema,
    config: RewriteConfig,
    progress: Progress,
) -> None:
    """Write all files except those that an interrupted run of the same rewrite has written."""
    total: int = sum(footer.num_rows for footer in footers.values())
    done, keys = _begun(part, facts, footers, config)
    if keys is None:
        keys = {name: _map_keys(facts, name, progress) for name in config.flatten}
        _note_keys(part, facts, footers, config, keys)
    rows_per_file = config.rows_per_stripe * config.stripes_per_file
    written = done * rows_per_file
    rows = _rows(facts, footers, arrow, written)
    if not (total or done):  # a file without rows still says which columns there are
        rows = iter([arrow.empty_table()])
    for number, chunks in enumerate(_cut(rows, rows_per_file), done):
        name = f"part-{number:05}.parquet"
        if isinstance(part, Uri):
            written += _write(part / name, chunks, arrow, keys, config)
        else:
            fresh = part / f".{name}"
            written += _write(fresh, chunks, arrow, keys, config)
            fresh.rename(part / name)
        progress("rewriting", min(written, total), total)
    _plan_file(part).unlink()


def _plan_file(part: Location) -> Location:
    return part / (UNFINISHED if isinstance(part, Uri) else "rewrite.json")


def _plan(
    files: Mapping[Location, FileFacts],
    footers: Mapping[Location, pq.FileMetaData],
    config: RewriteConfig,
) -> str:
    """Changes with what is written, and with what it is written from."""
    what = [
        (str(file), footers[file].num_rows, file.stat().st_mtime_ns, repr(facts.partitions))
        for file, facts in files.items()
    ]
    known = list(dict.fromkeys(facts.names for facts in files.values()))
    return hashlib.sha256(repr((what, config, known)).encode()).hexdigest()


def _begun(
    part: Location,
    files: Mapping[Location, FileFacts],
    footers: Mapping[Location, pq.FileMetaData],
    config: RewriteConfig,
) -> tuple[int, dict[str, list[str]] | None]:
    """The number of files that an interrupted run of the same rewrite has written, and the keys
    that it found; None if there was none."""
    try:
        begun = json.loads(_plan_file(part).read_text())
        if begun["plan"] == _plan(files, footers, config):
            keys = {str(name): list(found) for name, found in begun["keys"].items()}
            return _whole_files(part, config), keys
    except (OSError, ValueError, KeyError, AttributeError):
        pass
    # The plan goes first: after a kill in between, the files that are left would else be taken for
    # all of them.
    if isinstance(part, Uri):
        if files_there := [*part.glob("part-*.parquet")]:
            _plan_file(part).write_text("")  # it also marks the table as unfinished
        for file in files_there:
            file.unlink(missing_ok=True)
    else:
        _plan_file(part).unlink(missing_ok=True)
        shutil.rmtree(part, ignore_errors=True)
    return 0, None


def _whole_files(part: Location, config: RewriteConfig) -> int:
    """The number of whole files that are there. On a store, a file whose writing failed may have
    its name, but not its rows."""
    files: list[Location] = sorted([*part.glob("part-*.parquet")], key=str)
    if not isinstance(part, Uri):
        return len(files)
    rows = config.rows_per_stripe * config.stripes_per_file
    short = (at for at, file in enumerate(files) if footer_of(file).num_rows != rows)
    return next(short, len(files))


def _note_keys(
    part: Location,
    files: Mapping[Location, FileFacts],
    footers: Mapping[Location, pq.FileMetaData],
    config: RewriteConfig,
    keys: Mapping[str, Sequence[str]],
) -> None:
    try:
        part.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"plan": _plan(files, footers, config), "keys": dict(keys)})
        write_whole(_plan_file(part), text)
    except OSError as error:
        raise DataError(
            f"{part}: cannot be written ({error.strerror}). Name another TARGET, or check its "
            "permissions and the free space on its disk."
        ) from error


def _check(
    arrow: pa.Schema,
    files: Mapping[Location, FileFacts],
    footers: Mapping[Location, pq.FileMetaData],
    config: RewriteConfig,
) -> None:
    for file, facts in files.items():
        if _types(footers[file], file, facts) != arrow:
            raise DataError(
                f"{file}: has other columns than {next(iter(files))}. Rewrite them as separate "
                "tables."
            )
    _check_maps(arrow, config)
    if config.leave_out_repeats and METADATA_KEY not in (arrow.metadata or {}):
        raise DataError(
            f"{next(iter(files))}: is not a table of `recd`, so other programs may read it, and "
            "would see nulls in place of lists that are left out. Import it first (`recd data "
            "import`), or rewrite it with all of its lists."
        )


def _check_maps(arrow: pa.Schema, config: RewriteConfig) -> None:
    for name in config.flatten:
        if name not in arrow.names:
            raise DataError(f"no column {name!r} to flatten; {nearest(name, arrow.names)}")
        kind = arrow.field(name).type
        if not pa.types.is_map(kind) or not any(
            fits(kind.key_type)
            for fits in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
        ):
            raise DataError(
                f"column {name!r} is {kind}, but only a map from integers or texts can be "
                "flattened. Name another column, or none."
            )


def columns_after(
    source: Location | Sequence[Location], config: RewriteConfig, progress: Progress
) -> tuple[str, ...]:
    """The columns that a rewrite writes."""
    facts = found_files(source)
    first, known = next(iter(facts.items()))
    arrow = arrow_schema(footer_of(first, known.names), first, known)
    _check_maps(arrow, config)
    made: list[str] = []
    for name in arrow.names:
        if name in config.flatten:
            made += [f"{name}_{key}" for key in _map_keys(facts, name, progress)]
        else:
            made.append(name)
    return tuple(made)


def _map_keys(files: Mapping[Location, FileFacts], column: str, progress: Progress) -> list[str]:
    """Every key of a map column, in ascending order of their texts: one pass over that column."""
    found: set[str] = set()
    for done, (file, facts) in enumerate(files.items()):
        with opened(file, facts) as parquet:
            for group in range(parquet.num_row_groups):
                stripe = Stripe(file, group, parquet.metadata.row_group(group).num_rows)
                for chunk in read_stripe(parquet, stripe, [column])[column].chunks:
                    found |= set(pc.unique(chunk.keys).cast(pa.string()).to_pylist())
        progress(f"keys of {column}", done + 1, len(files))
    return sorted(found, key=lambda key: (len(key), key))


def flattened(column: pa.MapArray, keys: Sequence[str]) -> list[pa.Array]:
    """A map column as one column per key, with the key's item in each row, if it has one.

    A row without the key has an empty list if items are lists, else a null.
    """
    offsets = column.offsets.to_numpy()
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    items = column.items.slice(first, last - first)
    encoded = column.keys.slice(first, last - first).cast(pa.string()).dictionary_encode()
    codes = encoded.indices.to_numpy()
    rows = np.repeat(np.arange(len(column)), np.diff(offsets))
    order = np.argsort(codes, kind="stable")
    ends = np.bincount(codes, minlength=len(encoded.dictionary)).cumsum()
    code_of = {key: code for code, key in enumerate(encoded.dictionary.to_pylist())}
    large = pa.types.is_large_list(items.type)
    lists = large or pa.types.is_list(items.type)
    made_lists = pa.LargeListArray if large else pa.ListArray
    made = []
    for key in keys:
        code = code_of.get(key)
        places = order[:0] if code is None else order[ends[code - 1] if code else 0 : ends[code]]
        taken = items.take(pa.array(places))
        if lists:
            lengths = np.zeros(len(column) + 1, np.int64)
            np.add.at(
                lengths, rows[places] + 1, pc.list_value_length(taken).fill_null(0).to_numpy()
            )
            bounds = pa.array(lengths.cumsum(), pa.int64() if large else pa.int32())
            made.append(made_lists.from_arrays(bounds, taken.flatten(), type=items.type))
        else:
            at = np.full(len(column), -1, np.int64)
            at[rows[places]] = np.arange(len(places))
            made.append(taken.take(pa.array(at, mask=at < 0)))
    return made


def _rows(
    files: Mapping[Location, FileFacts],
    footers: Mapping[Location, pq.FileMetaData],
    arrow: pa.Schema,
    skipped: int,
) -> Iterator[pa.Table]:
    """The rows from `skipped` on, stripe by stripe: earlier stripes are not read."""
    for file, facts in files.items():
        footer = footers[file]
        if skipped >= footer.num_rows:
            skipped -= footer.num_rows
            continue
        with opened(file, facts) as parquet:
            for group in range(footer.num_row_groups):
                count = footer.row_group(group).num_rows
                if skipped >= count:
                    skipped -= count
                    continue
                stripe = Stripe(file, group, count)
                rows = read_stripe(parquet, stripe, arrow.names).slice(skipped)
                yield _narrow(rows, arrow, stripe)
                skipped = 0


def _types(footer: pq.FileMetaData, file: Location, facts: FileFacts) -> pa.Schema:
    """The types of a file's columns, as they are written."""
    arrow = arrow_schema(footer, file, facts)
    text = (arrow.metadata or {}).get(METADATA_KEY)
    if text is not None:
        own = Schema.from_json(text, str(file)).in_files()
        for at, field in enumerate(arrow):
            if field.type == IDS and field.name in own.names:
                arrow = arrow.set(at, field.with_type(own.field(field.name).type))
    return arrow


def _narrow(rows: pa.Table, arrow: pa.Schema, stripe: Stripe) -> pa.Table:
    """The rows with ids of 4 bytes where the types say so."""
    for at, field in enumerate(rows.schema):
        kind = arrow.field(field.name).type
        if kind == NARROW_IDS and kind != field.type:
            try:
                made = rows.column(at).cast(kind)
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"{stripe}: column {field.name!r} holds ids that its schema has no rows for "
                    f"({error}). Write the table again."
                ) from error
            rows = rows.set_column(at, field.with_type(kind), made)
    return rows


def _cut(chunks: Iterator[pa.Table], size: int) -> Iterator[Iterator[pa.Table]]:
    """The chunks in bands of `size` rows; each band must be used up before the next."""
    rest: list[pa.Table] = []

    def band() -> Iterator[pa.Table]:
        left = size
        while left:
            chunk = rest.pop() if rest else next(chunks, None)
            if chunk is None:
                return
            if chunk.num_rows > left:
                rest.append(chunk.slice(left))
            yield chunk.slice(0, left)
            left -= min(left, chunk.num_rows)

    while True:
        if not rest and (chunk := next(chunks, None)) is not None:
            rest.append(chunk)
        if not rest:
            return
        yield band()


def _write(
    file: Location,
    chunks: Iterator[pa.Table],
    arrow: pa.Schema,
    keys: Mapping[str, Sequence[str]],
    config: RewriteConfig,
) -> int:
    """Write one file of the result; returns its number of rows."""
    writer: FileWriter | None = None
    rows = 0
    try:
        for stripe in _cut(chunks, config.rows_per_stripe):
            made = _laid_out(pa.concat_tables(list(stripe)).combine_chunks(), keys, config)
            if writer is None:
                leaving_out = LeavingOut(_leavable(arrow) if config.leave_out_repeats else ())
                made_schema = leaving_out.schema(made.schema.with_metadata(arrow.metadata))
                writer = FileWriter(
                    file,
                    made_schema,
                    compression="zstd",
                    compression_level=config.compression_level,
                    use_dictionary=[
                        field.name for field in made_schema if pa.types.is_string(field.type)
                    ],
                    data_page_size=config.page_size,
                    write_statistics=True,
                    write_page_index=True,
                    write_page_checksum=True,
                )
            made = leaving_out.stripe(made.cast(made_schema))
            writer.write_table(made, row_group_size=max(1, made.num_rows))
            rows += made.num_rows
    finally:
        if writer is not None:
            writer.add_key_value_metadata(leaving_out.noted())
            writer.close()
    return rows


def _leavable(arrow: pa.Schema) -> tuple[str, ...]:
    """The features whose lists may be left out, by the schema that a table of ours has."""
    text = (arrow.metadata or {}).get(METADATA_KEY)
    return () if text is None else Schema.from_json(text, "the table").unscored_names


def _laid_out(rows: pa.Table, keys: Mapping[str, Sequence[str]], config: RewriteConfig) -> pa.Table:
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    fields: dict[str, pa.Field] = {}
    for name in rows.column_names:
        if name not in keys:
            columns[name] = rows[name]
            fields[name] = rows.schema.field(name)  # the type says whether it may hold nulls
            continue
        (chunk,) = rows[name].chunks or [pa.array([], rows[name].type)]
        parts = zip(keys[name], flattened(chunk, keys[name]), strict=True)
        for key, column in parts:
            made = f"{name}_{key}"
            if made in columns or made in rows.column_names:
                raise DataError(
                    f"column {name!r} has a key {key!r}, but there is a {made!r} too. Rename that "
                    "column, or do not flatten this one."
                )
            columns[made] = column
            fields[made] = pa.field(made, column.type)
    for name in config.first:
        if name not in columns:
            raise DataError(f"no column {name!r} to come first; {nearest(name, columns)}")
    order = dict.fromkeys([*config.first, *columns])
    return pa.table(
        [columns[name] for name in order], schema=pa.schema([fields[name] for name in order])
    )
