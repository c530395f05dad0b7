"""Vocabularies: the values that have ids of their own, most frequent first, as a Parquet file.

The file has two columns, `value` (as text) and `count`; the value in row r has the id `others` + r.
Ids [0, others) are for all other values, by their hash; `others` is in the file's metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.compat.kernels import kernel
from recd_plugins.data.conform.key_counts import KeyCounts
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import (
    NO_IDS,
    are_texts,
    hashes,
    identifies,
    integers,
    is_list,
    plain,
    with_nulls,
)
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Location, Uri, input_file
from recd_plugins.storage.whole_file import whole_file

__all__ = [
    "MANY_UNKNOWN",
    "Counted",
    "VocabularyCounts",
    "VocabularyIds",
    "check_vocabularies",
    "counted",
    "load_vocabulary",
    "vocabulary_digest",
]

METADATA_KEY = b"recd_vocabulary"
MOST_DISTINCT = 16_000_000
"""How many different values are counted at most; for more, hash them."""
PENDING = 1 << 18
MANY_UNKNOWN = 0.1
"""From this share of values outside it on, a vocabulary is taken to be old or of other data."""
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Counted = tuple[U64, I64, pa.Array]
"""Different values: their hashes, how often each occurs, their texts."""


class VocabularyIds:
    """A map from values to ids, by hash: a text and the integer that it spells have one id."""

    def __init__(self, values: pa.Array, *, others: int, where: str) -> None:
        """`values` [K], the most frequent first, each once."""
        self.num_ids = others + len(values)
        self.others = others
        keys = hashes(values, Spot(where, "value"))
        size = 1 << max(3, int(2 * len(keys)).bit_length())
        self._keys = np.zeros(size, np.uint64)
        self._ids = np.full(size, -1, np.int64)
        if not _fill(keys, others, self._keys, self._ids):
            raise DataError(f"{where}: holds a value twice. Each value must be in one row only.")

    def encode(self, keys: U64) -> I64:
        """The ids [N] of values with these hashes [N]."""
        found = np.empty(len(keys), np.int64)
        _find(keys, np.uint64(self.others), self._keys, self._ids, found)
        return found


class VocabularyCounts:
    """How often each value of a stream occurs."""

    def __init__(self, name: str) -> None:
        self._name = name
        none = pa.array([], pa.large_string())
        self._found = KeyCounts(np.empty(0, np.uint64), none, pending=PENDING)

    @staticmethod
    def of(values: pa.Array, spot: Spot) -> Counted:
        """The hashes, counts and texts of the different values, of which none is null.

        Any thread may call this.
        """
        if pa.types.is_null(values.type):
            values = values.cast(pa.string())
        coded = plain(values).dictionary_encode()
        counts = np.bincount(coded.indices.to_numpy(), minlength=len(coded.dictionary))
        different = coded.dictionary
        spot = spot._replace(numbered=False)
        keys = hashes(different, spot)
        if are_texts(different.type):
            texts = _spelled(different, spot)
        else:
            texts = pa.array(integers(different, spot)).cast(pa.large_string())
        return keys, counts.astype(np.int64), texts

    def add(self, part: Counted) -> None:
        """Add the counts that `of` found."""
        self._found.add(*part)
        self._check(self._found.merged)

    def _check(self, values: int) -> None:
        if values > MOST_DISTINCT:
            raise DataError(
                f"feature {self._name!r} has more than {MOST_DISTINCT:,} different values, and "
                "counting them takes too much memory. Write `ids: hash` in its entry of the schema."
            )

    def save(self, path: Location, *, most: int, least_count: int = 1, others: int = 1) -> int:
        """Write a vocabulary of at most `most` ids, including `others`; returns its number of ids.

        Values that occur less often than `least_count` get no id of their own. Ties go by hash.
        """
        found = self._found
        self._check(len(found.keys))
        kept = found.most_frequent(least_count=least_count, most=max(0, most - others))
        table = pa.table(
            {"value": found.values.take(pa.array(kept)), "count": found.counts[kept]}
        ).replace_schema_metadata({METADATA_KEY: json.dumps({"others": others}).encode()})
        if isinstance(path, Uri):
            with pa.BufferOutputStream() as sink:
                pq.write_table(table, sink, compression="zstd")
                path.write_bytes(sink.getvalue())
        else:
            with whole_file(path) as part:
                pq.write_table(table, part, compression="zstd")
        return others + len(kept)

    @property
    def num_values(self) -> int:
        values = len(self._found.keys)
        self._check(values)
        return values


def _spelled(values: pa.Array, spot: Spot) -> pa.Array:
    """Texts, or bytes decoded as UTF-8."""
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    try:
        return values.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise spot.error(
            "holds bytes that are no UTF-8, which a vocabulary cannot hold",
            "Write `ids: hash` in its entry of the schema.",
        ) from None


def load_vocabulary(path: Location) -> VocabularyIds:
    """The vocabulary in a file, which is read again only if the file changes."""
    return _loaded(path, *_as_it_is(path))


def vocabulary_digest(path: Location) -> str:
    """A digest of the file's contents, and so of the ids that values get; not of its path."""
    return _digest(path, *_as_it_is(path))


def check_vocabularies(digests: Mapping[Location, str]) -> None:
    """Raise `DataError` if a file has changed since a table was opened: its ids are others now."""
    for path, digest in digests.items():
        if vocabulary_digest(path) != digest:
            raise DataError(
                f"{path}: this vocabulary has changed since the table was opened. Do not write to "
                "it while it is read; start again with it as it is, or restore the old one."
            )


def _as_it_is(path: Location) -> tuple[int, int]:
    """A file's time of change and size."""
    try:
        stat = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    return stat.st_mtime_ns, stat.st_size


def _unreadable(path: Location, error: OSError) -> DataError:
    return DataError(
        f"{path}: this vocabulary cannot be read ({error.strerror}). `recd data vocabulary` "
        "writes one, and `recd data import` for a feature of `ids: vocabulary` without a file."
    )


@lru_cache(maxsize=64)
def _digest(path: Location, mtime: int, size: int) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    except OSError as error:
        raise _unreadable(path, error) from None


@lru_cache(maxsize=64)
def _loaded(path: Location, mtime: int, size: int) -> VocabularyIds:
    try:
        with input_file(path) as file:
            table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: is not a whole Parquet file, so not a vocabulary ({error})."
        ) from error
    if "value" not in table.column_names:
        raise DataError(
            f"{path}: has no column 'value', but {', '.join(table.column_names)}: no vocabulary. "
            "It lists the values, the most frequent first."
        )
    values = table["value"].combine_chunks()
    if values.null_count:
        raise DataError(f"{path}: column 'value' holds nulls. Take them out.")
    options: dict[str, Any] = json.loads(
        (table.schema.metadata or {}).get(METADATA_KEY, b'{"others": 1}')
    )
    return VocabularyIds(values, others=int(options["others"]), where=str(path))


def present(array: pa.Array) -> pa.Array:
    """The values of a column, or of its lists, or the ids of their pairs, without nulls."""
    array = plain(array)
    if pa.types.is_map(array.type):
        there = array.drop_null()
        first, last = there.offsets[0].as_py(), there.offsets[-1].as_py()
        array = plain(there.keys.slice(first, last - first))
    while is_list(array.type):
        array = plain(array.flatten())
    if pa.types.is_struct(array.type) and array.type.num_fields == 2:
        array = plain(array.flatten()[0])
    if pa.types.is_floating(array.type):
        array = array.filter(pa.array(~np.isnan(array.to_numpy(zero_copy_only=False))))
    return array.drop_null()


def counted(columns: Sequence[pa.Array], spot: Spot, missing: Sequence[int | str] = ()) -> Counted:
    """`VocabularyCounts.of` all values of some arrays, except those that stand for a null.

    Raises `DataError` if the values' type cannot be ids.
    """
    values = pa.concat_arrays([present(one) for one in columns])
    if not identifies(values.type):
        raise spot.error(f"holds {values.type}, {NO_IDS}", "Make such a column of it.")
    return VocabularyCounts.of(with_nulls(values, missing).drop_null(), spot)


@kernel
def _fill(keys: U64, first: int, slots: U64, ids: I64) -> bool:
    """Enter each key with its id. Returns whether all keys differ. The number of `slots` is a power
    of two, and keys take at most half of them."""
    mask = np.uint64(len(slots) - 1)
    for i in range(len(keys)):
        at = keys[i] & mask
        while ids[at] >= 0:
            if slots[at] == keys[i]:
                return False
            at = (at + np.uint64(1)) & mask
        slots[at] = keys[i]
        ids[at] = first + i
    return True


@kernel
def _find(keys: U64, others: np.uint64, slots: U64, ids: I64, found: I64) -> None:
    mask = np.uint64(len(slots) - 1)
    for i in range(len(keys)):
        at = keys[i] & mask
        while ids[at] >= 0 and slots[at] != keys[i]:
            at = (at + np.uint64(1)) & mask
        found[i] = ids[at] if ids[at] >= 0 else np.int64(keys[i] % others)
