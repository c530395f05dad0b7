"""Rung 1 and 2 (values, properties): Arrow columns ↔ tensors."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.errors import DataError
from recd_plugins.sparse.arrow import (
    floats_from_arrow,
    jagged_chunks,
    jagged_from_arrow,
    jagged_to_arrow,
)

KINDS = (pa.list_(pa.int64()), pa.list_(pa.int32()), pa.large_list(pa.int64()))
rows = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=8)


def as_lists(values: torch.Tensor, lengths: torch.Tensor) -> list[list[int]]:
    return [part.tolist() for part in values.split(lengths.tolist())]


@given(chunks=st.lists(rows, max_size=3), kind=st.sampled_from(KINDS), data=st.data())
def test_any_chunks_and_slices_keep_their_rows(chunks, kind, data):
    column = pa.chunked_array(chunks, type=kind)
    start = data.draw(st.integers(0, len(column)))
    column = column.slice(start, data.draw(st.integers(0, len(column))))
    assert as_lists(*jagged_from_arrow(column, "a")) == column.to_pylist()


@given(lists=rows)
def test_to_arrow_and_back(lists):
    jagged = jagged_from_arrow(pa.array(lists, type=KINDS[0]), "a")
    column = jagged_to_arrow(jagged)
    assert column.to_pylist() == lists
    assert not column.type.value_field.nullable
    back = jagged_from_arrow(column, "a")
    assert torch.equal(back.values, jagged.values)
    assert torch.equal(back.lengths, jagged.lengths)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_values_share_memory_both_ways(kind):
    column = pa.array([[1, 2], [], [3], [4, 5, 6]], type=kind)
    values, _ = jagged_from_arrow(column[2:], "a")
    assert values.data_ptr() == column.values.buffers()[1].address + 2 * values.element_size()
    back = jagged_to_arrow(jagged_from_arrow(column, "a"))
    assert back.values.buffers()[1].address == column.values.buffers()[1].address


def test_an_array_whose_offsets_do_not_begin_at_zero():
    column = pa.ListArray.from_arrays(pa.array([2, 3, 5], pa.int32()), pa.array([9, 9, 1, 2, 3]))
    assert as_lists(*jagged_from_arrow(column, "a")) == [[1], [2, 3]]


def test_other_integers_become_int64():
    values, _ = jagged_from_arrow(pa.array([[1], [255]], type=pa.list_(pa.uint8())), "a")
    assert values.dtype == torch.int64
    assert values.tolist() == [1, 255]


def test_the_tensor_outlives_the_column():
    values, lengths = jagged_from_arrow(pa.array([[7] * 1000] * 10, type=KINDS[0]), "a")
    pa.array([[0] * 1000] * 10, type=KINDS[0])
    assert values.tolist() == [7] * 10_000
    assert lengths.tolist() == [1000] * 10


@pytest.mark.parametrize(
    ("lists", "reason"),
    [([[1], None, None], "2 of its rows are null"), ([[1, None]], "its lists hold 1 null")],
)
def test_nulls_name_their_column(lists, reason):
    with pytest.raises(DataError, match=f"'history': .*{reason}.* where the table is made"):
        jagged_chunks(pa.chunked_array([lists], type=KINDS[0]), "'history'")


def test_nulls_outside_of_the_slice_do_not_matter():
    column = pa.array([None, [None], [1], [2, 3]], type=KINDS[0])
    assert as_lists(*jagged_from_arrow(column[2:], "a")) == [[1], [2, 3]]


@pytest.mark.parametrize("column", [pa.array([1, 2]), pa.array([[0.5]])])
def test_what_is_no_list_of_integers(column):
    with pytest.raises(DataError, match=r"'a': is .*, but must be a list of integers"):
        jagged_chunks(column, "'a'")


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.int64(), pa.uint8()], ids=str)
def test_numbers_become_float32(kind):
    column = pa.chunked_array([[1, 2], [], [3]], type=kind)
    floats = floats_from_arrow(column, "a")
    assert floats.dtype == torch.float32
    assert floats.tolist() == [1, 2, 3]
    assert floats_from_arrow(column[:0], "a").shape == (0,)


def test_float32_shares_memory():
    column = pa.array([1, 2, 3], type=pa.float32())
    assert floats_from_arrow(column[1:], "a").data_ptr() == column.buffers()[1].address + 4


def test_null_numbers_name_their_column():
    with pytest.raises(DataError, match="'price': holds 1 null"):
        floats_from_arrow(pa.array([1.0, None]), "'price'")
