"""Conversion of numbers to float32: labels, sample weights, dense floats and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import are_integers, is_list, plain, plain_type
from recd_plugins.data.schema import Fill, Label, Nulls, floats

__all__ = [
    "check_finite",
    "check_label",
    "check_weight",
    "check_whole_numbers",
    "finite",
    "float_type_problem",
    "floats_of",
    "logarithms",
    "not_finite",
    "not_finite_rows",
    "numbers_of",
    "vectors_of",
]

F32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

CURE = "Give a value for it in the column's entry of the schema, as `nulls: {value: 0}`"


def floats_of(array: pa.Array, nulls: Nulls, spot: Spot) -> pa.Array:
    """Numbers of any type, one per row, as float32; finite float32 is returned uncopied."""
    if array.type == pa.float32() and not array.null_count and finite(array.to_numpy()):
        return array
    return pa.array(_filled(numbers_of(array), nulls, spot), pa.float32())


def vectors_of(array: pa.Array, width: int, nulls: Nulls, spot: Spot) -> pa.Array:
    """Lists of numbers as float32 lists of `width`; a list of another length is an error."""
    array = plain(array)
    if pa.types.is_null(array.type):
        array = array.cast(pa.list_(pa.float32()))
    kind, made = array.type, floats(width)
    if pa.types.is_fixed_size_list(kind) and kind.value_type == pa.float32():
        values = array.flatten()
        if not array.null_count and not values.null_count and finite(values.to_numpy()):
            return pa.FixedSizeListArray.from_arrays(values, type=made)
    there = ~array.is_null().to_numpy(zero_copy_only=False)
    lengths = np.zeros(len(array), np.int64)
    lengths[there] = pc.list_value_length(array.drop_null()).to_numpy()
    bad = there & (lengths != width)
    if bad.any():
        raise spot.error_at(
            bad,
            f"holds a list of {lengths[bad][0]} numbers, but its width is {width},",
            "Correct its width in the schema, or the lists where the table is made.",
        )
    numbers = np.full((len(array), width), np.nan, np.float32)
    numbers[there] = numbers_of(array.flatten()).reshape(-1, width)
    each = spot._replace(lengths=np.full(len(array), width))
    values = pa.array(_filled(numbers.reshape(-1), nulls, each), pa.float32())
    return pa.FixedSizeListArray.from_arrays(values, type=made)


def logarithms(array: pa.Array) -> pa.Array:
    """sign(x) log(1 + |x|) of floats, or of the elements of vectors."""
    numbers = array.flatten().to_numpy() if pa.types.is_fixed_size_list(array.type) else array
    x = numbers if isinstance(numbers, np.ndarray) else numbers.to_numpy()
    scaled = pa.array(np.copysign(np.log1p(np.abs(x)), x), pa.float32())
    if pa.types.is_fixed_size_list(array.type):
        return pa.FixedSizeListArray.from_arrays(scaled, type=array.type)
    return scaled


def not_finite_rows(array: pa.Array, width: int | None) -> Mask:
    """[N] which rows are null or hold something that is not a finite number."""
    array = plain(array)
    if width is None:
        return not_finite(numbers_of(array))
    rows: Mask = array.is_null().to_numpy(zero_copy_only=False).copy()
    if pa.types.is_null(array.type):
        return rows
    there = array.drop_null()
    lengths = pc.list_value_length(there).to_numpy().astype(np.int64)
    owners = np.repeat(np.flatnonzero(~rows), lengths)
    rows[owners[not_finite(numbers_of(there.flatten()))]] = True
    return rows


def check_label(array: pa.Array | pa.ChunkedArray, label: Label, spot: Spot) -> None:
    """Raise `DataError` if a click or a grade is out of range."""
    if label.kind == "regression" or not len(array):
        return
    values = array.to_numpy()
    if label.nulls == "empty":
        values = np.nan_to_num(values, nan=0.0)
    if values.min() >= 0 and values.max() <= label.scale:
        return
    bad = (values < 0) | (values > label.scale)
    raise spot.error_at(
        bad,
        f"is a {label.kind} label and holds {values[bad][0]:g}, outside [0, {label.scale:g}],",
        "Map its values where the table is made, or name it under `labels` with `kind: "
        "regression`, or with `kind: graded` and its `grades`.",
    )


def check_weight(array: pa.Array | pa.ChunkedArray, spot: Spot) -> None:
    """Raise `DataError` if a sample weight is negative."""
    values = array.to_numpy()
    if len(values) and values.min() < 0:
        raise spot.error_at(
            values < 0,
            f"is the sample weight and holds {values[values < 0][0]:g}",
            "A weight is 0 or more: correct the weights where the table is made.",
        )


def check_finite(column: pa.ChunkedArray, spot: Spot) -> None:
    """Raise `DataError` if a number, or one in a vector, is not finite; none may be null."""
    first = 0
    for chunk in column.chunks:
        at, values = spot._replace(first=first), plain(chunk)
        if is_list(values.type):
            lengths = pc.list_value_length(values).to_numpy().astype(np.int64)
            at, values = at._replace(lengths=lengths), values.flatten()
        numbers = numbers_of(values)
        if not finite(numbers):
            raise at.error_at(
                not_finite(numbers),
                "holds a value that is not a finite number of 32 bits",
                "Put a number in its place where the table is made.",
            )
        first += len(chunk)


def check_whole_numbers(column: pa.ChunkedArray, spot: Spot) -> None:
    """Raise `DataError` if a session or a time, stored as a float, is not a 64-bit integer."""
    if not pa.types.is_floating(column.type):
        return
    values = column.to_numpy().astype(np.float64)
    whole = (np.rint(values) == values) & (np.abs(values) < 2.0**63)  # NaN is neither
    if not whole.all():
        raise spot.error_at(
            ~whole,
            f"holds {values[~whole][0]:g}, which is no integer,",
            "Give it whole numbers where the table is made.",
        )


def float_type_problem(kind: pa.DataType, width: int | None) -> tuple[str, str] | None:
    """What is wrong with the type of a column of numbers or of vectors, and the cure; or None."""
    inner = plain_type(kind)
    if pa.types.is_null(inner):
        return None
    if not is_list(inner):
        if width is not None:
            return (f"is {kind}, but a vector of {width} is a list", "Take `width` out.")
        if are_integers(inner):
            return None
        return (
            f"is {kind}, but must be a number",
            "Make it one where the table is made; texts and integers that name something are "
            "features: list the column under `sparse`.",
        )
    if width is None:
        size = inner.list_size if pa.types.is_fixed_size_list(inner) else "N"
        return (
            f"is {kind}, but must be a number",
            f"A list of N floats in each row is `{{name: ..., width: {size}}}` under `dense`.",
        )
    element = plain_type(inner.value_type)
    if not (are_integers(element) or pa.types.is_null(element)):
        return (f"is {kind}, but must be a list of numbers", "Make it one where the table is made.")
    if pa.types.is_fixed_size_list(inner) and inner.list_size != width:
        return (f"is {kind}, but its width in the schema is {width}", "Correct it there.")
    return None


def finite(numbers: F32) -> bool:
    """Whether all numbers are finite; as fast as a sum if they are."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = numbers.sum()
    return bool(np.isfinite(total)) or not not_finite(numbers).any()


def not_finite(numbers: npt.NDArray[np.floating]) -> Mask:
    mask: Mask = ~np.isfinite(numbers)
    return mask


def numbers_of(array: pa.Array) -> F32:
    """[N] float32; a null becomes NaN."""
    array = plain(array)
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan, np.float32)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    numbers: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32, copy=False)


def _filled(numbers: F32, nulls: Nulls, spot: Spot) -> F32:
    bad = not_finite(numbers)
    if not bad.any():
        return numbers
    if isinstance(nulls, Fill):
        numbers = numbers.copy()
        numbers[bad] = nulls.value
        return numbers
    if nulls == "empty":
        return np.where(bad, np.float32(np.nan), numbers)
    infinite = np.isinf(numbers[bad][0])
    entry = f"{CURE} or `nulls: drop` (the row)" if spot.drops else CURE
    raise spot.error_at(
        bad,
        "holds a value that is infinite as a float32" if infinite else "holds a null or NaN",
        f"{entry}; if it has no entry, under `nulls` of the schema: "
        f"`nulls: {{{spot.column}: {{value: 0}}}}`.",
    )
