"""Values of the many types of Parquet in the few that Arrow computes with."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.values import MOST_EXACT, are_texts

__all__ = ["is_number", "is_text", "of_few_types"]


def of_few_types(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values in a type that Arrow computes with: decimals become integers if they were written so
    or are beyond 2^53, where floats skip some; bytes become texts if they are, as Impala writes
    them."""
    kind = values.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        text = pa.types.is_string_view(kind)
        values = values.cast(pa.large_string() if text else pa.large_binary())
        kind = values.type
    if are_texts(kind) and not is_text(kind):
        try:
            texts = values.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return values
        odd = pc.any(pc.match_substring_regex(texts, r"[\x00-\x08]")).as_py()
        return values if odd else texts
    if pa.types.is_float16(kind):
        return values.cast(pa.float32())
    if not pa.types.is_decimal(kind):
        return values
    if not pa.types.is_decimal128(kind) and not pa.types.is_decimal256(kind):
        values = values.cast(pa.decimal128(kind.precision, kind.scale))
    ends = pc.min_max(values).as_py()
    if kind.scale == 0 or max(-(ends["min"] or 0), ends["max"] or 0) > MOST_EXACT:
        for whole in (pa.int64(), pa.uint64()):
            try:
                return values.cast(whole)
            except pa.ArrowInvalid:
                continue
    return values.cast(pa.float64())


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts, not bytes."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a type are numbers, flags aside."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
