"""Arrow columns as tensors and back, on the same memory if their types agree.

A null is an error, since a tensor has no place for one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from recd_plugins.errors import DataError, so_many
from recd_plugins.sparse.jagged import HeldOnce, Jagged

__all__ = [
    "floats_from_arrow",
    "held_chunks",
    "jagged_chunks",
    "jagged_from_arrow",
    "jagged_to_arrow",
    "vectors_from_arrow",
]


def jagged_chunks(
    column: pa.Array | pa.ChunkedArray, name: str, *, weights: bool = False
) -> list[Jagged]:
    """Each chunk of a list column as (values, lengths), its values shared with Arrow.

    Slices, and offsets that begin anywhere, are taken as they are. Values are int32 or int64; lists
    of other integers are converted to int64; with `weights`, values are float32. `name` opens error
    messages.
    """
    kind = column.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    number = pa.types.is_floating if weights else pa.types.is_integer
    if not (lists and number(kind.value_type)):
        what = "floats" if weights else "integers"
        raise DataError(f"{name}: is {kind}, but must be a list of {what}.")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    types = (pa.float32(),) if weights else (pa.int64(), pa.int32())
    return [_jagged(chunk, name, types) for chunk in chunks]


def held_chunks(column: pa.ChunkedArray, name: str) -> Sequence[Jagged | HeldOnce]:
    """`jagged_chunks`, also for a column of dictionaries whose values are lists."""
    if not pa.types.is_dictionary(column.type):
        return jagged_chunks(column, name)
    return [_held_once(chunk, name) for chunk in column.chunks if len(chunk)]


def _held_once(chunk: pa.DictionaryArray, name: str) -> HeldOnce:
    which = chunk.indices.to_numpy()
    first, last = which[0], which[-1]  # a slice has every list from its first one to its last
    (held,) = jagged_chunks(chunk.dictionary.slice(first, last + 1 - first), name)
    return HeldOnce(held, torch.from_numpy(which - first))


def jagged_from_arrow(column: pa.Array | pa.ChunkedArray, name: str) -> Jagged:
    """A list column as (values, lengths); several chunks are joined, which copies."""
    chunks = jagged_chunks(column, name)
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return Jagged(
            torch.empty(0, dtype=torch.int64, device="cpu"),
            torch.empty(0, dtype=torch.int32, device="cpu"),
        )
    values, lengths = zip(*chunks, strict=True)
    return Jagged(torch.cat(values), torch.cat(lengths))


def jagged_to_arrow(jagged: Jagged) -> pa.ListArray | pa.LargeListArray:
    """(values, lengths) as a list array on the same values; a large list array if there are more
    than 2^31 - 1."""
    values = pa.array(jagged.values.numpy())
    large = len(values) > np.iinfo(np.int32).max
    offsets = np.zeros(jagged.lengths.numel() + 1, dtype=np.int64 if large else np.int32)
    np.cumsum(jagged.lengths.numpy(), out=offsets[1:])
    element = pa.field("element", values.type, nullable=False)
    if large:
        return pa.LargeListArray.from_arrays(offsets, values, type=pa.large_list(element))
    return pa.ListArray.from_arrays(offsets, values, type=pa.list_(element))


def floats_from_arrow(column: pa.Array | pa.ChunkedArray, name: str) -> Tensor:
    """A column of numbers as float32 [B]; one chunk of float32 shares its memory."""
    if column.null_count:
        raise DataError(
            f"{name}: holds {so_many(column.null_count, 'null')}. Fill them, for example with 0, "
            "where the table is made."
        )
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [torch.from_dlpack(chunk).float() for chunk in chunks if len(chunk)]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float32, device="cpu")


def vectors_from_arrow(column: pa.Array | pa.ChunkedArray, width: int, name: str) -> Tensor:
    """A column of lists of `width` numbers as float32 [B, width]."""
    whole = pc.list_flatten(column)
    if column.null_count or len(whole) != len(column) * width:
        raise DataError(
            f"{name}: {column.null_count} of its rows are null, and the others hold {len(whole)} "
            f"numbers, but each row must hold {width}. Write the table again in this way."
        )
    return floats_from_arrow(whole, name).view(-1, width)


def _jagged(
    chunk: pa.ListArray | pa.LargeListArray, name: str, types: Sequence[pa.DataType]
) -> Jagged:
    if chunk.null_count:
        raise DataError(
            f"{name}: {chunk.null_count} of its rows are null. Write a missing list as an empty "
            "one where the table is made."
        )
    values = chunk.flatten()  # respects the slice, which .values does not
    if values.null_count:
        raise DataError(
            f"{name}: its lists hold {so_many(values.null_count, 'null')}. Leave them out, or give "
            "them an id of their own, where the table is made."
        )
    if values.type not in types:
        try:
            values = values.cast(types[0])
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{name}: its ids are {values.type}, and one is no int64 ({error}). Hash them "
                "where the table is made."
            ) from error
    return Jagged(torch.from_dlpack(values), torch.from_dlpack(chunk.offsets).diff())
