"""Features in a table of their own, beside the dataset, which are joined by a key.

To try out a feature, compute it for some users or items; it need not be written into the whole
dataset. The rows of a stripe find their features by key: of the side table, only stripes whose
statistics say that they may have these keys are read, and the last used ones stay in memory. So a
side table that fits into memory is read once; one that does not is read along with the dataset, so
both must be sorted by the key.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recd_plugins.config import Config, Range
from recd_plugins.data.conform.rows import check_foreign_columns, conform, source_columns
from recd_plugins.data.expression import Known
from recd_plugins.data.files.footers import footers_of
from recd_plugins.data.files.found import found_files
from recd_plugins.data.foreign import DenseColumn, ForeignFeature, ForeignSchema
from recd_plugins.data.parquet.chunk_columns import column_of_each_chunk
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.footer import arrow_schema
from recd_plugins.data.parquet.opened_file import opened
from recd_plugins.data.schema import Schema
from recd_plugins.data.selection import known_of
from recd_plugins.data.stripes import Stripe, read_stripe
from recd_plugins.errors import DataError, RegistryError, nearest
from recd_plugins.storage.uri import Location, Uri

__all__ = ["PAIRS", "SideTable", "SideTableConfig"]

I64 = npt.NDArray[np.int64]
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SideTableConfig(Config):
    """A table of features by key, and which of them are joined."""

    table: Path | Uri | tuple[Path | Uri, ...]
    """The files, for both splits: a folder of .parquet files, a file, a glob, or several of these,
    on disk or on a store."""
    key: str
    """The column that joins rows, in the dataset's files and in these; it has whole numbers or
    texts, and none twice in these files. A row whose key is null, or is not in these files, gets
    nulls."""
    sparse: tuple[ForeignFeature, ...] = ()
    """The columns with ids. A row without a key has an empty list, or what `nulls` says."""
    dense: tuple[DenseColumn, ...] = ()
    """The columns with floats. `nulls: {value: 0}` says what a row without a key has."""
    memory_mib: Annotated[int, Range(ge=1, le=65_536)] = 512
    """The MiB of these files, uncompressed, that each process that reads may hold. If the table is
    larger, sort it and the dataset by the key, or raise this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.sparse or self.dense):
            raise RegistryError("names no feature. Name some under `sparse` or `dense`.", "sparse")
        for part in ("sparse", "dense"):
            for one in getattr(self, part):
                if one.nulls in ("error", "drop"):
                    raise RegistryError(
                        f"{one.name!r} has `nulls: {one.nulls}`, but rows whose key is not in the "
                        "side table get nulls. Give a value for them, as `nulls: {value: 0}`"
                        f"{', or `nulls: empty`' if part == 'sparse' else ''}.",
                        part,
                    )

    @property
    def schema(self) -> ForeignSchema:
        """The schema of its columns; it has no label, which is never asked for."""
        return ForeignSchema(
            session_id=None, timestamp=None, sparse=self.sparse, dense=tuple(self.dense)
        )

    @overload
    def beside(self, schema: Schema) -> Schema: ...

    @overload
    def beside(self, schema: ForeignSchema) -> ForeignSchema: ...

    def beside(self, schema: Schema | ForeignSchema) -> Schema | ForeignSchema:
        """A dataset's schema with these features, as they are once joined, after its own."""
        joined = self.schema.conformed
        if isinstance(schema, Schema):
            dense = (*schema.dense, *joined.dense)
            whole = replace(schema, dense=dense, vectors=(*schema.vectors, *joined.vectors))
            return whole.add(joined.sparse)
        floats = [DenseColumn(name=one.name, width=one.width) for one in self.dense]
        ids = [ForeignFeature(**{**asdict(one), "nulls": "error"}) for one in joined.sparse]
        return replace(schema, dense=(*schema.dense, *floats), sparse=(*schema.sparse, *ids))


class _SidePart(NamedTuple):
    """The stripes that are read together: one, or all of them."""

    stripes: tuple[Stripe, ...]
    low: Any
    """The smallest key, if it is known."""
    high: Any
    num_bytes: int

    def may_have(self, low: Any, high: Any) -> bool:
        if None in (low, high, self.low, self.high):
            return True
        return bool(self.low <= high and low <= self.high)


class _KeyedRows(NamedTuple):
    """The rows of a part, each with a key of its own."""

    keys: pa.Array
    """The keys; whole numbers are sorted."""
    features: pa.Table


class SideTable:
    """An opened side table: what its stripes hold is known from the footers."""

    def __init__(
        self, config: SideTableConfig, features: Collection[str], cache: Path | None = None
    ) -> None:
        """`features` are the wanted ones; `cache` is a folder that keeps footers."""
        schema = config.schema.having(features)
        self._config, self._cache = config, cache
        self.key = config.key
        self.features = tuple(
            name
            for name in (*schema.conformed.dense, *schema.conformed.sparse_names)
            if name in features
        )
        self._scored = {one.name: one.weights_name for one in schema.sparse if one.scored}
        self.columns = (*self.features, *self._scored.values())
        """The features, and the weights of those that are scored."""
        self._schema = schema
        self._columns = (self.key, *source_columns(schema, self.features))
        self._limit = config.memory_mib * MIB
        one = config.table
        self.paths: tuple[Location, ...] = one if isinstance(one, tuple) else (one,)
        """What the config names: folders, files, globs."""
        files = found_files(self.paths)
        self.path: Location = next(iter(files))
        self.facts: dict[Location, FileFacts] = {}
        parts: list[_SidePart] = []
        for file, facts, (footer, *_) in footers_of(files, cache):
            arrow = arrow_schema(footer, file, facts)
            check_foreign_columns(arrow, schema, str(file), self.features)
            if not self.facts:
                self.type = pa.null()
                self._kinds = {name: arrow.field(name).type for name in self._columns[1:]}
            if pa.types.is_null(self.type):
                self.type = _key_type(arrow, self.key, str(file))
            self._check_type(arrow, file)
            self.facts[file] = facts
            parts += _parts(file, footer, self._columns)
        if pa.types.is_null(self.type):  # no row has a key here
            self.type = pa.int64()
        whole = sum(one.num_bytes for one in parts)
        self._parts = parts
        if whole <= self._limit and parts:
            stripes = tuple(stripe for one in parts for stripe in one.stripes)
            self._parts = [_SidePart(stripes, None, None, whole)]
        self._held: dict[int, _KeyedRows] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """The state without the rows in memory: each process reads its own."""
        return {**self.__dict__, "_held": {}, "_lock": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def having(self, names: Collection[str]) -> SideTable:
        """The same side table with only these of its features."""
        kept = [name for name in self.features if name in names]
        return SideTable(self._config, kept, self._cache)

    @property
    def identity(self) -> str:
        """Differs if rows would get other features."""
        digests = [facts.digest for facts in self.facts.values()]
        made = self._schema.identity(self.vocabulary_digests())
        whole = repr((self.key, self.features, made, digests))
        return hashlib.sha256(whole.encode()).hexdigest()[:32]

    def vocabulary_digests(self) -> dict[Location, str]:
        """The files in which its ids are looked up, each with a digest of its present content."""
        return self._schema.vocabulary_digests()

    def check(self, arrow: pa.Schema, footer: pq.FileMetaData, file: Location) -> None:
        """Raises `DataError` if rows of a file of the dataset cannot be joined."""
        self._check_type(arrow, file)
        for name in self.columns:
            if name in arrow.names:
                raise DataError(
                    f"{file}: has column {name!r}, and so has {self.path}, which is joined to it. "
                    "Take it out of dataset.join, or rename one of the two."
                )
        for group in range(footer.num_row_groups):
            low, high = _range(known_of(footer, group, [self.key]).get(self.key))
            taken = sum(one.num_bytes for one in self._parts if one.may_have(low, high))
            if taken > self._limit:
                raise DataError(
                    f"{Stripe(file, group, 0)}: the rows of its keys {self.key!r} are spread all "
                    f"over {self.path}: {taken / MIB:,.0f} MiB of it would be held, and memory_mib "
                    f"of dataset.join is {self._limit // MIB:,}. Allow more, or write both tables "
                    f"sorted by {self.key!r}, with statistics (`ORDER BY {self.key}` in SQL, "
                    "`sort_by` of a pyarrow.Table)."
                )

    def _check_type(self, arrow: pa.Schema, file: Location) -> None:
        kind = _key_type(arrow, self.key, str(file))
        alike = kind == self.type or (pa.types.is_integer(kind) and pa.types.is_integer(self.type))
        if not alike and not pa.types.is_null(kind):
            raise DataError(
                f"{file}: column {self.key!r}, the key of dataset.join, is {kind}, but in "
                f"{self.path} it is {self.type}. Write both alike."
            )

    def joined(self, rows: pa.Table, *, paired: bool) -> pa.Table:
        """The rows with the features added at the end; ids and their weights as pairs, or in
        columns side by side."""
        keys = _plain(rows[self.key].combine_chunks(), self.type)
        low, high = pc.min_max(keys).as_py().values()
        found = np.zeros(len(keys), np.bool_)
        where, pieces = [], []
        for at, part in enumerate(self._parts):
            if low is None or not part.may_have(low, high):
                continue
            held = self._read(at)
            places = _places(keys, held.keys)
            hit = np.flatnonzero(places >= 0)
            if found[hit].any():
                raise self._twice(keys[int(hit[found[hit]][0])], part.stripes[0])
            found[hit] = True
            where.append(hit)
            pieces.append(held.features.take(pa.array(places[hit])))
        without = np.flatnonzero(~found)
        where.append(without)
        pieces.append(self._nothing().take(pa.array(np.zeros(len(without), np.int64))))
        back = np.empty(len(keys), np.int64)
        back[np.concatenate(where)] = np.arange(len(keys))
        features = pa.concat_tables(pieces).combine_chunks().take(pa.array(back))
        for name in self.features if paired else self.columns:
            column = features[name]
            if paired and name in self._scored:
                column = _pairs(column, features[self._scored[name]])
            rows = rows.append_column(name, column)
        return rows

    def num_rows(self) -> int:
        return sum(stripe.num_rows for part in self._parts for stripe in part.stripes)

    def problems(self) -> Iterator[str]:
        """The errors in its rows, part by part."""
        seen: list[pa.Array] = []
        for at, part in enumerate(self._parts):
            try:
                keys = self._read(at).keys
            except DataError as error:
                yield str(error)
                continue
            for before in seen:
                twice = np.flatnonzero(_places(keys, before) >= 0)
                if len(twice):
                    yield str(self._twice(keys[int(twice[0])], part.stripes[0]))
                    break
            seen.append(keys)

    def _read(self, at: int) -> _KeyedRows:
        """The rows of a part, which stay in memory until other parts need the room."""
        with self._lock:
            held = self._held.pop(at, None)
            if held is None:
                room = self._limit - self._parts[at].num_bytes
                while self._held and sum(self._parts[n].num_bytes for n in self._held) > room:
                    self._held.pop(next(iter(self._held)))
                held = self._rows(self._parts[at])
            self._held[at] = held
            return held

    def _rows(self, part: _SidePart) -> _KeyedRows:
        tables = []
        for stripe in part.stripes:
            with opened(stripe.file, self.facts[stripe.file]) as file:
                rows = read_stripe(file, stripe, self._columns)
            written = rows[self.key].combine_chunks()
            keys = _plain(written, self.type)
            if keys.null_count > written.null_count:
                beyond = written.filter(pc.and_(written.is_valid(), keys.is_null()))[0]
                raise DataError(
                    f"{stripe}: has key {self.key} {beyond.as_py()}, but in {self.path} keys are "
                    f"{self.type}, which does not hold it. Write both alike."
                )
            made = conform(rows, self._schema, str(stripe), columns=self.columns)
            made = made.select(list(self.columns)).append_column(KEY, keys)
            tables.append(made.filter(keys.is_valid()) if keys.null_count else made)
        rows = pa.concat_tables(tables).combine_chunks()
        keys = rows[KEY].combine_chunks()
        if pa.types.is_integer(self.type):
            numbers = keys.to_numpy()
            if (numbers[1:] < numbers[:-1]).any():
                rows = rows.take(pa.array(np.argsort(numbers, kind="stable")))
                keys = rows[KEY].combine_chunks()
        if pc.count_distinct(keys).as_py() < len(keys):
            counted = keys.value_counts()
            at = pc.index(pc.greater(counted.field("counts"), 1), True).as_py()
            raise self._twice(counted.field("values")[at], part.stripes[0])
        return _KeyedRows(keys, rows.drop_columns([KEY]).combine_chunks())

    def _nothing(self) -> pa.Table:
        """One row, of what stands for nulls."""
        nulls = pa.table({name: pa.nulls(1, kind) for name, kind in self._kinds.items()})
        return conform(nulls, self._schema, str(self.path), columns=self.columns).select(
            list(self.columns)
        )

    def _twice(self, key: pa.Scalar, near: Stripe) -> DataError:
        return DataError(
            f"{near}: has key {self.key} {key.as_py()!r}, and another row of the side table has it "
            "too. Write it with one row for each key."
        )


KEY = "\0key"
"""No column of a file is called so."""
TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


PAIRS = pa.list_(pa.struct([("id", pa.int64()), ("weight", pa.float32())]))


def _pairs(ids: pa.ChunkedArray, weights: pa.ChunkedArray) -> pa.Array:
    """Lists of ids and the lists of their weights, of equal lengths, as lists of pairs."""
    lists, scores = ids.combine_chunks(), weights.combine_chunks()
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(pc.list_value_length(lists).to_numpy(), out=offsets[1:])
    pairs = pa.StructArray.from_arrays(
        [lists.flatten(), scores.flatten()], fields=list(PAIRS.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=PAIRS)


def _parts(file: Location, footer: pq.FileMetaData, columns: Sequence[str]) -> Iterator[_SidePart]:
    names = column_of_each_chunk(footer.schema.to_arrow_schema())
    for group in range(footer.num_row_groups):
        described = footer.row_group(group)
        if not described.num_rows:
            continue
        num_bytes = sum(
            described.column(number).total_uncompressed_size
            for number, name in enumerate(names)
            if name in columns
        )
        known = known_of(footer, group, columns[:1]).get(columns[0])
        stripe = Stripe(file, group, described.num_rows)
        yield _SidePart((stripe,), *_range(known), num_bytes)


def _range(known: Known | None) -> tuple[Any, Any]:
    """The smallest and the largest key of a stripe if its statistics say them; else None for
    both."""
    return (None, None) if known is None else (known.low, known.high)


def _key_type(arrow: pa.Schema, key: str, where: str) -> pa.DataType:
    """The type as which keys are compared; null for a column of nulls only. Raises `DataError` for
    a column that cannot be a key."""
    if key not in arrow.names:
        raise DataError(
            f"{where}: lacks column {key!r}, the key of dataset.join; {nearest(key, arrow.names)}"
        )
    kind = arrow.field(key).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return kind
    if pa.types.is_integer(kind):
        return kind if pa.types.is_uint64(kind) else pa.int64()
    if any(is_text(kind) for is_text in TEXTS):
        return pa.large_string()
    raise DataError(
        f"{where}: column {key!r}, the key of dataset.join, is {kind}, but keys are whole numbers "
        "or texts. Write it as one of these."
    )


def _plain(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    """Keys as they are compared; null for a number that this type does not hold, which is no key of
    the side table."""
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    unsigned = pa.types.is_uint64(kind)
    if pa.types.is_integer(kind) and unsigned != pa.types.is_uint64(keys.type):
        fits = (
            pc.greater_equal(keys, 0) if unsigned else pc.less(keys, pa.scalar(2**63, pa.uint64()))
        )
        keys = pc.if_else(fits, keys, pa.scalar(None, keys.type))
    return keys.cast(kind)


def _places(keys: pa.Array, among: pa.Array) -> I64:
    """[N] int64: the place of each key in `among`, or -1."""
    if not pa.types.is_integer(among.type):
        places = pc.index_in(keys, value_set=among)
        found: I64 = places.fill_null(-1).to_numpy().astype(np.int64)
        return found
    if not len(among):
        return np.full(len(keys), -1)
    numbers, sorted_ = keys.fill_null(0).to_numpy(), among.to_numpy()
    at = np.minimum(np.searchsorted(sorted_, numbers), len(sorted_) - 1)
    hit = sorted_[at] == numbers
    if keys.null_count:
        hit &= keys.is_valid().to_numpy(zero_copy_only=False)
    return np.where(hit, at, -1)
