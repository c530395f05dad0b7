"""Values of any type that identify something, as 64 bits: integers, texts, bools, dictionaries.

Ids and sessions are read here. Integers are signed or unsigned ones of any width, bools, decimals,
and floats without a fraction (pandas writes integers beside nulls as floats). Texts are UTF-8, and
bytes count as the text that they spell.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.spot import Spot, shown

__all__ = [
    "MOST_EXACT",
    "NO_IDS",
    "are_integers",
    "are_texts",
    "has_missing",
    "hashes",
    "identifies",
    "instants",
    "integers",
    "is_list",
    "is_time",
    "missing",
    "one_zero",
    "plain",
    "plain_type",
    "text_error",
    "with_nulls",
    "without_views",
]

INTEGERS = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_floating,
    pa.types.is_decimal,
)
TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
TIMES = (pa.types.is_timestamp, pa.types.is_date)
COMPARED_AS = (
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_boolean, pa.int8()),
    (pa.types.is_float16, pa.float32()),
)
"""Types that Arrow cannot compare, and the types to which they are cast for comparison."""
NO_IDS = "but ids are integers or texts, one a row or a list of them"
MOST_EXACT = 2.0**53
"""Beyond this, a float64 cannot hold every integer."""


def plain(array: pa.Array) -> pa.Array:
    """The same values without a dictionary, an extension or a view around them."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(array))
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return array.cast(pa.decimal128(kind.precision, kind.scale))  # Arrow does little with these
    return array


def without_views(columns: pa.Table) -> pa.Table:
    """The same columns, with views of texts and of lists made plain texts and lists.

    Arrow can neither filter nor take views of texts, and finds no common type for views of lists
    and plain lists.
    """
    for at, (name, column) in enumerate(zip(columns.column_names, columns.columns, strict=True)):
        if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
            columns = columns.set_column(at, name, _as_lists(column))
    schema = pa.schema([pa.field(one.name, _viewless(one.type)) for one in columns.schema])
    return columns if schema.types == columns.schema.types else columns.cast(schema)


def _as_lists(views: pa.ChunkedArray) -> pa.ChunkedArray:
    """Views of lists as lists that lie end to end; Arrow's own cast omits the last offset."""
    large = pa.types.is_large_list_view(views.type)
    field = views.type.value_field
    kind, lists = (
        (pa.large_list(field), pa.LargeListArray) if large else (pa.list_(field), pa.ListArray)
    )
    made = []
    for chunk in views.chunks:
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(chunk), 0))
        offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
        values = chunk.flatten()
        made.append(lists.from_arrays(offsets, values, type=kind, mask=chunk.is_null()))
    return pa.chunked_array(made, kind)


def _viewless(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_map(kind):
        return pa.map_(_viewless(kind.key_type), _viewless(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([one.with_type(_viewless(one.type)) for one in kind])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_field.with_type(_viewless(kind.value_type))
        if types.is_fixed_size_list(kind):
            return pa.list_(inner, kind.list_size)
        return pa.large_list(inner) if types.is_large_list(kind) else pa.list_(inner)
    return kind


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that `plain` gives an array, if views and small decimals are left aside."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    return kind


def are_integers(kind: pa.DataType) -> bool:
    """Whether values of a type are, or may be, integers."""
    return any(test(plain_type(kind)) for test in INTEGERS)


def are_texts(kind: pa.DataType) -> bool:
    """Whether values of a type are texts or bytes."""
    return any(test(plain_type(kind)) for test in TEXTS)


def is_time(kind: pa.DataType) -> bool:
    """Whether values of a type are dates or times since 1970."""
    return any(test(plain_type(kind)) for test in TIMES)


def instants(times: pa.Array) -> pa.Array:
    """Dates and times of any unit and zone as µs since 1970."""
    return plain(times).cast(pa.timestamp("us"), safe=False).cast(pa.int64())


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    return any(test(kind) for test in LISTS)


def identifies(kind: pa.DataType) -> bool:
    """Whether values of a type can be ids or sessions; a column of only nulls can."""
    return are_integers(kind) or are_texts(kind) or pa.types.is_null(plain_type(kind))


def missing(array: pa.Array) -> npt.NDArray[np.bool_]:
    """[N] which values are null or NaN."""
    array = plain(array)
    nulls = array.is_null(nan_is_null=pa.types.is_floating(array.type))
    mask: npt.NDArray[np.bool_] = nulls.to_numpy(zero_copy_only=False)
    return mask


def one_zero(numbers: pa.Array | pa.ChunkedArray) -> Any:
    """The same numbers with 0 for -0.0: they are equal, but Arrow's `is_in` does not match them."""
    if not pa.types.is_floating(numbers.type):
        return numbers
    return pc.add(numbers, pa.scalar(0.0, numbers.type))


def with_nulls(array: pa.Array, marks: Sequence[int | str]) -> pa.Array:
    """The same values, but null where they equal a mark: an integer, or a text that spells it."""
    array = plain(array)
    wider = next((kind for test, kind in COMPARED_AS if test(array.type)), None)
    array = array if wider is None else array.cast(wider)
    values = (_as_value(mark, array.type) for mark in marks)
    found = [value for value in values if value is not None]
    if not found:
        return array
    marked = pc.is_in(one_zero(array), value_set=pa.concat_arrays(found))
    return pc.if_else(marked, pa.scalar(None, array.type), array)


def _as_value(mark: int | str, kind: pa.DataType) -> pa.Array | None:
    """[1] the mark as a value of a type; None if the type has no such value."""
    if pa.types.is_null(kind):
        return None
    try:
        return pa.array([str(mark) if are_texts(kind) else Decimal(int(mark))]).cast(kind)
    except (pa.ArrowInvalid, ValueError, OverflowError):
        return None


def has_missing(array: pa.Array) -> bool:
    """Whether some values are null or NaN; only floats are searched for NaN."""
    if isinstance(array, pa.DictionaryArray):
        return bool(array.null_count or array.dictionary.null_count) or (
            pa.types.is_floating(array.type.value_type) and bool(missing(array).any())
        )
    return bool(array.null_count) or (
        pa.types.is_floating(plain_type(array.type)) and bool(missing(array).any())
    )


def integers(array: pa.Array, spot: Spot) -> npt.NDArray[Any]:
    """Integers [N], without nulls, as int64, or as uint64 if they may be too large for int64."""
    array = plain(array)
    kind = array.type
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_floating(kind):
        floats: npt.NDArray[np.float64] = array.cast(pa.float64()).to_numpy()
        large = np.abs(floats) > MOST_EXACT
        if large.any():
            raise spot.error_at(
                large,
                f"is {kind} and holds {floats[large][0]}, beyond 2^53, where floats skip integers,",
                "Write it as an integer of 64 bits, or as a text.",
            )
        bad = np.trunc(floats) != floats
        if bad.any():
            raise spot.error_at(
                bad,
                f"is {kind} and holds {floats[bad][0]}, which is no whole number,",
                "An id is an integer or a text: bucket such numbers where the table is made, or "
                "list the column under `dense`.",
            )
        return floats.astype(np.int64)
    elif pa.types.is_decimal(kind):
        try:
            beyond = (pc.max(array).as_py() or 0) >= 2**63
            array = array.cast(pa.uint64() if beyond else pa.int64())
        except pa.ArrowInvalid as error:
            raise spot.error(
                f"is {kind} and holds a value that is not an integer of 64 bits ({error})",
                "Store it as a text to hash it.",
            ) from error
    found: npt.NDArray[Any] = array.to_numpy()
    return found.astype(np.uint64 if array.type == pa.uint64() else np.int64, copy=False)


def hashes(array: pa.Array, spot: Spot, seed: int = 0) -> npt.NDArray[np.uint64]:
    """The XXH64 of values [N] without nulls."""
    from recd_plugins.data.conform.hashing import hash_integers, hash_texts  # numba

    if isinstance(array, pa.DictionaryArray) and not pa.types.is_floating(array.type.value_type):
        if array.dictionary.null_count:
            return hashes(array.dictionary_decode(), spot, seed)
        each: npt.NDArray[np.uint64] = hashes(array.dictionary, spot, seed)
        found: npt.NDArray[np.uint64] = each[array.indices.to_numpy()]
        return found
    array = plain(array)
    if pa.types.is_decimal(array.type) and len(array):
        low, high = pc.min_max(array).as_py().values()
        if low < 0 and high >= 2**63:  # each fits into 64 bits, but no 64-bit type holds them all
            found = np.empty(len(array), np.uint64)
            negative = pc.less(array, pa.scalar(Decimal(0), array.type))
            for part in (negative, pc.invert(negative)):
                mask = part.to_numpy(zero_copy_only=False)
                found[mask] = hashes(array.filter(part), spot, seed)
            return found
    if are_integers(array.type):
        return hash_integers(integers(array, spot), seed)
    if pa.types.is_null(array.type):
        return np.empty(0, np.uint64)
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int64 if wide else np.int32) if offsets else np.zeros(1)
    starts = starts[array.offset : array.offset + len(array) + 1]
    if not len(array):
        return np.empty(0, np.uint64)
    return hash_texts(
        np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), starts, seed
    )


def text_error(array: pa.Array, spot: Spot) -> Exception:
    """The error for texts where integers are expected."""
    some = plain(array)[0].as_py() if len(array) else ""
    return spot.error(
        f"holds texts, as {shown(some)}, but its ids are taken as they are",
        "Write `ids: hash`, or `ids: vocabulary`, in its entry of the schema.",
    )
