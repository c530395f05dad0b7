"""IKJTs and partial IKJTs as Arrow and as bytes: nothing is pickled, and no sample is expanded.

Three forms:

- columns: a key as dictionary<list<integer>>. Its dictionary is the key's unique rows, its indices
  the inverse lookup of its group.
- a record batch of one row, for an IKJT that travels: a list column for each of its tensors, the
  values of all keys where they lie, and lengths and inverse lookups in as few bytes as their
  numbers need. Samples of a session lie side by side, so a lookup is sent as its bands of equal
  samples if that is shorter.
- a record batch of a partial IKJT: a column per group, whose indices are the inverse lookup and
  whose dictionary is a struct with a list view, which is [offset, length], per key over the key's
  shared values, each beside its weight where it has one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.errors import DataError, so_many
from recd_plugins.sparse.arrow import jagged_from_arrow, jagged_to_arrow
from recd_plugins.sparse.groups import Groups, agreed_groups, check_groups
from recd_plugins.sparse.jagged import MAX_INT32, Jagged, WeightedJagged
from recd_plugins.sparse.rows.shared import SharedRows

__all__ = [
    "WiredIkjt",
    "WiredPartial",
    "from_bytes",
    "from_columns",
    "ikjt_from_batch",
    "ikjt_to_batch",
    "lookup_as_bands",
    "lookup_of_bands",
    "partial_from_batch",
    "partial_to_batch",
    "to_bytes",
    "to_columns",
]

LARGEST_LOOKUP = 1 << 30
"""The most bytes of a lookup that is made from its bands: these may be few whatever its size."""
MOST_PADDING = 64
"""The most rows of padding per row that is sent, where they take more than `LARGEST_LOOKUP`."""
NOT_AS_MANY = -2
"""What `_write_lookup` returns for bands that do not cover all samples."""


def to_columns(
    groups: Groups, rows: Mapping[str, WeightedJagged], lookups: Sequence[Tensor]
) -> dict[str, pa.DictionaryArray]:
    """Each key as a column; all dictionaries lie in one array, without a copy."""
    every = WeightedJagged.joined([rows[key] for group in groups for key in group])
    if every.weights is not None:
        raise DataError(
            "to_arrow: its ids have weights, which a column of ids cannot hold. Use "
            "to_record_batch."
        )
    lists, first, columns = jagged_to_arrow(Jagged(every.values, every.lengths)), 0, {}
    for group, lookup in zip(groups, lookups, strict=True):
        for key in group:
            count = rows[key].lengths.numel()
            unique = lists.slice(first, count)
            columns[key] = pa.DictionaryArray.from_arrays(_indices(lookup, count), unique)
            first += count
    return columns


def from_columns(
    columns: Mapping[str, pa.DictionaryArray], groups: Sequence[Sequence[str]] | None
) -> tuple[Groups, dict[str, WeightedJagged], list[Tensor]]:
    """The groups of the columns, each key's unique rows and each group's lookup [B], not yet
    checked.

    Values are views of one tensor if the dictionaries lie in one array.
    """
    rows: dict[str, WeightedJagged] = {}
    lookups: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for key, column in columns.items():
        if not pa.types.is_dictionary(column.type):
            raise DataError(f"{key!r}: is {column.type}, but must be a dictionary of lists.")
        if isinstance(column, pa.ChunkedArray):
            raise DataError(f"{key!r}: is in chunks. Pass one array: its `combine_chunks()`.")
        lookups[key] = _lookup_of_column(column, repr(key))
        rows[key] = _shared(column.dictionary, repr(key), seen)
    checked, agreed = agreed_groups(lookups, groups)
    return checked, rows, agreed


def _indices(lookup: Tensor, count: int) -> pa.Array:
    """The lookup, with each number in as few bytes as `count` unique samples need."""
    return pa.array(lookup.numpy().astype(np.min_scalar_type(-max(count, 1))))


def _lookup_of_column(column: pa.DictionaryArray, name: str) -> Tensor:
    if column.null_count:
        raise DataError(
            f"{name}: {column.null_count} of its rows are null. Write a missing list as an empty "
            "one where the column is made."
        )
    return torch.from_numpy(column.indices.to_numpy(zero_copy_only=False).astype(np.int64))


def _shared(dictionary: pa.Array, name: str, seen: dict[int, Tensor]) -> WeightedJagged:
    """The dictionary's rows, as a view of the one tensor for all dictionaries in the same array."""
    rows = WeightedJagged(*jagged_from_arrow(dictionary, name))
    ids = dictionary.values  # what no list has may be null
    in_place = dictionary.type.value_type in (pa.int32(), pa.int64()) and not ids.null_count
    if rows.values.numel() and in_place:
        whole = seen.setdefault(ids.buffers()[1].address, torch.from_dlpack(ids))
        first = (rows.values.data_ptr() - whole.data_ptr()) // whole.element_size()
        if 0 <= first <= whole.numel() - rows.values.numel():
            rows = dataclasses.replace(rows, values=whole[first : first + rows.values.numel()])
    return rows


DAMAGE = (pa.ArrowException, ValueError, TypeError)
"""What reading a damaged record batch raises."""
IKJT_KEY = b"recd_plugins.ikjt"
COLUMNS = ("values", "lengths", "unique_counts", "codes", "runs")

Numbers = NDArray[Any]


class WiredIkjt(NamedTuple):
    """The content of an IKJT as it came over the wire, not yet checked."""

    groups: Groups
    rows: WeightedJagged
    """The unique rows of all keys, in the order of the groups, padded to the largest group's."""
    inverse_lookup: Tensor
    """[G, B] int64."""
    unique_counts: tuple[int, ...]
    """[G]."""


def ikjt_to_batch(
    groups: Groups, rows: WeightedJagged, inverse_lookup: Tensor, unique_counts: tuple[int, ...]
) -> pa.RecordBatch:
    """What `WiredIkjt` has, as one row on the CPU."""
    codes, bands = map(_narrow, lookup_as_bands(inverse_lookup.numpy()))
    real = _real(groups, unique_counts)
    columns = {
        "values": rows.values.numpy(),
        "lengths": _narrow(rows.lengths.numpy().reshape(real.shape)[real]),
        "unique_counts": np.array(unique_counts, np.int64),
        "codes": codes,
        "runs": bands,
    }
    if rows.weights is not None:
        columns["weights"] = rows.weights.numpy()
    text = json.dumps({"groups": groups, "batch_size": inverse_lookup.shape[1]})
    arrays = [_one_list(numbers) for numbers in columns.values()]
    fields = [pa.field(name, one.type) for name, one in zip(columns, arrays, strict=True)]
    schema = pa.schema(fields, metadata={IKJT_KEY: text.encode()})
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def ikjt_from_batch(batch: pa.RecordBatch) -> WiredIkjt:
    """The parts that `ikjt_to_batch` was given, with values on the same memory."""
    text = (batch.schema.metadata or {}).get(IKJT_KEY)
    if text is None:
        raise DataError(
            f"a record batch has no {IKJT_KEY.decode()!r} in its metadata, so it is no IKJT. "
            "Make it by to_record_batch."
        )
    try:
        batch.validate(full=True)
        head = json.loads(text)
        groups = check_groups(head["groups"], list(chain(*head["groups"])))
        numbers = {name: _numbers(batch, name) for name in batch.schema.names}
        return _ikjt_of(groups, numbers, int(head["batch_size"]))
    except (*DAMAGE, KeyError, OverflowError, RecursionError) as error:
        raise DataError(f"a record batch is a damaged IKJT ({error}). Send it again.") from error


def _ikjt_of(groups: Groups, numbers: Mapping[str, Numbers], batch_size: int) -> WiredIkjt:
    """Checks that sizes fit each other before memory is allocated for them."""
    values, lengths, counts, codes, bands = (numbers[name] for name in COLUMNS)
    unique_counts = tuple(counts.tolist())
    weights = numbers.get("weights")
    rows = WeightedJagged(
        torch.from_numpy(values),
        _padded(lengths, groups, unique_counts, many=len(values) > MAX_INT32),
        None if weights is None else torch.from_numpy(weights),
    )
    lookup = lookup_of_bands(codes, bands, counts.astype(np.int64), batch_size)
    return WiredIkjt(groups, rows, torch.from_numpy(lookup), unique_counts)


def _one_list(numbers: Numbers) -> pa.LargeListArray:
    """All numbers as the only row of a column, on the same memory."""
    return pa.LargeListArray.from_arrays(np.array([0, len(numbers)]), pa.array(numbers))


def _numbers(batch: pa.RecordBatch, name: str) -> Numbers:
    column = batch.column(name)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise ValueError(f"{name} are {column.type}, not a list")
    numbers = column.flatten()
    if len(column) != 1 or column.null_count or numbers.null_count:
        raise ValueError(f"{name} has nulls, or {len(column)} rows in place of one")
    if name in ("values", "weights"):
        _check_kind(numbers, name)
    elif not pa.types.is_integer(numbers.type):
        raise ValueError(f"{name} are {numbers.type}, not integers")
    # Through torch: a numpy array on the same memory would be read-only.
    found: Numbers = torch.from_dlpack(numbers).numpy()
    return found


def _check_kind(numbers: pa.Array, name: str) -> None:
    """Raises `ValueError` for ids that are no signed integers, or weights that are no floats."""
    fits = pa.types.is_floating if name == "weights" else pa.types.is_signed_integer
    if not fits(numbers.type):
        wanted = "floats" if name == "weights" else "signed integers"
        raise ValueError(f"{name} are {numbers.type}, not {wanted}")


def _padded(lengths: Numbers, groups: Groups, unique_counts: tuple[int, ...], many: bool) -> Tensor:
    if min(unique_counts) < 0:
        raise ValueError(f"its unique counts are {unique_counts}")
    if len(unique_counts) != len(groups):
        raise ValueError(f"{len(unique_counts)} unique counts of {so_many(len(groups), 'group')}")
    rows = sum(len(group) * n for group, n in zip(groups, unique_counts, strict=True))
    if rows != len(lengths):
        raise ValueError(f"it has {len(lengths)} lengths of {rows} unique samples")
    size = max(unique_counts) * sum(map(len, groups))
    if 8 * size > LARGEST_LOOKUP and size > MOST_PADDING * rows:
        raise ValueError(f"{rows} unique samples, padded to the largest group, would be {size}")
    if rows and not many and lengths.max() > MAX_INT32:
        raise ValueError(f"it has a list of {lengths.max()} ids, more than it has in all")
    real = _real(groups, unique_counts)
    padded = np.zeros(real.shape, np.int64 if many else np.int32)
    padded[real] = lengths
    return torch.from_numpy(padded.reshape(-1))


def _real(groups: Groups, unique_counts: tuple[int, ...]) -> NDArray[np.bool_]:
    """`real_rows` as [keys, max(unique_counts)]."""
    by_key = np.repeat(unique_counts, [len(group) for group in groups])
    found: NDArray[np.bool_] = np.arange(max(unique_counts)) < by_key[:, None]
    return found


def lookup_as_bands(lookup: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    """(codes, bands), group after group: code i stands for `bands[i]` samples; without bands, each
    code stands for one. It is the shorter of both forms, if each number has as few bytes as the
    largest of its kind needs."""
    codes, bands = np.empty((2, lookup.size), np.int64)
    count, *largest = _write_bands(lookup, codes, bands)
    of_code, of_band = (np.min_scalar_type(number).itemsize for number in largest)
    if count * (of_code + of_band) < lookup.size * of_code:
        return codes[:count], bands[:count]
    return lookup.reshape(-1), bands[:0]


def lookup_of_bands(
    codes: Numbers, bands: Numbers, unique_counts: NDArray[np.int64], batch_size: int
) -> NDArray[np.int64]:
    """The lookup that `lookup_as_bands` was given; raises `ValueError` if it is not one, or points
    outside the unique samples of its groups."""
    shape = (len(unique_counts), batch_size)
    if codes.ndim != 1 or bands.ndim != 1 or len(bands) not in (0, len(codes)):
        raise ValueError(f"a lookup has {codes.shape} codes and {bands.shape} bands")
    # Checked before memory is allocated for it.
    if 8 * shape[0] * shape[1] > LARGEST_LOOKUP:
        raise ValueError(f"a lookup of {shape} samples takes more than {LARGEST_LOOKUP} bytes")
    lookup = np.empty(shape, np.int64)
    codes, bands = (numbers.astype(np.int64, copy=False) for numbers in (codes, bands))
    wrong = _write_lookup(codes, bands, unique_counts, lookup)
    if wrong >= 0:
        raise ValueError(
            f"the inverse lookup of group {wrong} reaches outside of its {unique_counts[wrong]} "
            "unique samples, or beyond its samples"
        )
    if wrong == NOT_AS_MANY:
        samples = sum(bands.tolist()) if len(bands) else len(codes)
        raise ValueError(f"its bands have {samples} samples, not {shape} of them")
    return lookup


@kernel
def _write_bands(
    lookup: NDArray[np.int64], codes: NDArray[np.int64], bands: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Write the bands. Returns their number, the largest code, and the longest band's length."""
    count = largest = longest = 0
    for group in range(len(lookup)):
        for sample, code in enumerate(lookup[group]):
            if sample == 0 or code != codes[count - 1]:
                codes[count], bands[count] = code, 0
                count += 1
                largest = max(largest, code)
            bands[count - 1] += 1
            longest = max(longest, bands[count - 1])
    return count, largest, longest


@kernel
def _write_lookup(
    codes: NDArray[np.int64],
    bands: NDArray[np.int64],
    unique_counts: NDArray[np.int64],
    lookup: NDArray[np.int64],
) -> int:
    """Write the inverse lookup. Returns the first group that is wrong; -1 if none is, or
    `NOT_AS_MANY`."""
    groups, samples = lookup.shape
    at = group = 0
    for number, code in enumerate(codes):
        band = bands[number] if len(bands) else 1
        if group == groups or not 1 <= band <= samples:
            return NOT_AS_MANY
        if at + band > samples or not 0 <= code < unique_counts[group]:
            return group
        lookup[group, at : at + band] = code
        at += band
        if at == samples:
            at, group = 0, group + 1
    return -1 if group * samples == lookup.size else NOT_AS_MANY


def _narrow(numbers: Numbers) -> Numbers:
    """The same numbers, none negative, in as few bytes each as the largest needs."""
    return numbers.astype(np.min_scalar_type(numbers.max(initial=0)))


PARTIAL_METADATA = {b"recd_plugins.partial_ikjt": b"1"}


class WiredPartial(NamedTuple):
    """The content of a record batch, not yet checked."""

    groups: Groups
    rows: dict[str, SharedRows]
    """The unique rows of each key."""
    inverse_lookup: Tensor
    """[G, B]."""
    lengths: torch.dtype
    """The type of the lengths of KJTs."""


def partial_to_batch(
    groups: Groups, rows: Mapping[str, SharedRows], inverse_lookup: Tensor, lengths: torch.dtype
) -> pa.RecordBatch:
    """A partial IKJT as one record batch: shared values are not copied; lengths of 64 bits make
    large list views."""
    columns = []
    for group, lookup in zip(groups, inverse_lookup, strict=True):
        unique = pa.StructArray.from_arrays(
            [_views(rows[key], lengths == torch.int64) for key in group], list(group)
        )
        indices = lookup.numpy().astype(np.min_scalar_type(-max(len(unique), 1)))
        columns.append(pa.DictionaryArray.from_arrays(pa.array(indices), unique))
    fields = [pa.field(str(index), column.type) for index, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=PARTIAL_METADATA))


def partial_from_batch(batch: pa.RecordBatch) -> WiredPartial:
    """The parts that `partial_to_batch` was given, on the same memory."""
    if not PARTIAL_METADATA.items() <= (batch.schema.metadata or {}).items():
        raise DataError(
            f"a record batch lacks {PARTIAL_METADATA} in its metadata, so it is no partial IKJT. "
            "Make it by a partial IKJT's to_bytes."
        )
    groups: list[tuple[str, ...]] = []
    rows: dict[str, SharedRows] = {}
    lookups, large = [], False
    try:
        batch.validate(full=True)
        for number, column in enumerate(batch.columns):
            if not (pa.types.is_dictionary(column.type) and not column.indices.null_count):
                raise ValueError(f"column {number} is no dictionary, or has nulls")
            unique = column.dictionary
            if not (pa.types.is_struct(unique.type) and unique.type.num_fields):
                raise ValueError(f"column {number} has {unique.type}, not the lists of a group")
            groups.append(tuple(field.name for field in unique.type))
            views: Sequence[pa.Array] = unique.flatten()
            rows |= zip(groups[-1], map(_rows_of_views, views), strict=True)
            large |= any(pa.types.is_large_list_view(view.type) for view in views)
            lookups.append(column.indices.to_numpy(zero_copy_only=False).astype(np.int64))
        lookup = torch.from_numpy(np.stack(lookups))
        if len({one.weights is None for one in rows.values()}) > 1:
            raise ValueError("some of its keys have weights, and others have none")
    except DAMAGE as error:
        raise DataError(
            f"a record batch is a damaged partial IKJT ({error}). Send it again."
        ) from error
    return WiredPartial(tuple(groups), rows, lookup, torch.int64 if large else torch.int32)


def _views(rows: SharedRows, large: bool) -> pa.Array:
    values = pa.array(rows.values.numpy())
    if rows.weights is not None:
        weights = pa.array(rows.weights.numpy())
        values = pa.StructArray.from_arrays([values, weights], ["id", "weight"])
    kind, dtype = (pa.LargeListViewArray, np.int64) if large else (pa.ListViewArray, np.int32)
    offsets, sizes = (pa.array(column.astype(dtype)) for column in rows.spans.numpy().T)
    return kind.from_arrays(offsets, sizes, values)


def _rows_of_views(views: pa.Array) -> SharedRows:
    if not (pa.types.is_list_view(views.type) or pa.types.is_large_list_view(views.type)):
        raise ValueError(f"{views.type} in place of list views")
    values, weights = views.values, None
    if views.null_count or values.null_count:
        raise ValueError("nulls among its lists or ids")
    if pa.types.is_struct(values.type):
        values, found = values.flatten()
        if values.null_count or found.null_count:
            raise ValueError("nulls among its ids or weights")
        _check_kind(found, "weights")
        weights = torch.from_dlpack(found)
    _check_kind(values, "values")
    spans = np.stack([views.offsets.to_numpy(), views.sizes.to_numpy()], axis=1)
    return SharedRows(torch.from_dlpack(values), weights, torch.from_numpy(spans.astype(np.int64)))


def to_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """An Arrow IPC stream of one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def from_bytes(data: bytes | pa.Buffer) -> pa.RecordBatch:
    """The record batch that `to_bytes` was given, on the same memory."""
    try:
        with pa.ipc.open_stream(data) as stream:
            return stream.read_next_batch()
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise DataError(f"these bytes are no Arrow stream ({error}). Send them again.") from error
