"""Rung 1 and 2 (values and properties): a checksum that sees every change but that of order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_tables import SCHEMA, mixed_rows

from recd_dedup.etl.checksum import Checksum, checksum

ROWS = mixed_rows(200)


def of(rows):
    return checksum([rows])


@given(st.randoms(use_true_random=False), st.integers(1, 50))
def test_no_order_and_no_cut_changes_it(random, size):
    order = list(range(ROWS.num_rows))
    random.shuffle(order)
    shuffled = ROWS.take(pa.array(order)).combine_chunks()
    cuts = [shuffled.slice(at, size) for at in range(0, shuffled.num_rows, size)]
    assert checksum(cuts) == of(pa.concat_tables(cuts)) == of(ROWS)


def replaced(name, values):
    return ROWS.set_column(ROWS.column_names.index(name), SCHEMA.arrow().field(name), [values])


def swapped(name):
    """The values of two rows that differ have traded places."""
    values = ROWS[name].to_pylist()
    other = next(i for i, value in enumerate(values) if value != values[0])
    values[0], values[other] = values[other], values[0]
    return replaced(name, pa.array(values, SCHEMA.arrow().field(name).type))


@pytest.mark.parametrize("name", SCHEMA.columns)
def test_values_that_trade_rows_change_it(name):
    assert of(swapped(name)) != of(ROWS)


def first_list(ids):
    lists = [ids, *ROWS["history"].to_pylist()[1:]]
    return of(replaced("history", pa.array(lists, SCHEMA.arrow().field("history").type)))


def test_a_list_counts_with_its_order_and_length():
    lists = [[], [0], [0, 0], [1, 2], [2, 1], [1, 2, 0], [2**63 - 1], [-(2**63)]]
    assert len({first_list(ids) for ids in lists}) == len(lists)


def test_ids_that_move_to_the_next_row_change_it():
    def two(first, second):
        column = pa.array([first, second], SCHEMA.arrow().field("history").type)
        return of(ROWS.slice(0, 2).set_column(4, SCHEMA.arrow().field("history"), [column]))

    assert two([1, 2], [3]) != two([1], [2, 3])


def test_columns_that_trade_places_change_it():
    names = list(ROWS.column_names)
    i, j = names.index("label"), names.index("row")
    names[i], names[j] = names[j], names[i]
    assert of(ROWS.rename_columns(names)) != of(ROWS)


def test_a_row_that_is_lost_or_doubled_changes_it():
    assert of(ROWS.slice(1)) != of(ROWS)
    twice = pa.concat_tables([ROWS.slice(0, 1)] * 3)
    assert of(twice) not in (of(ROWS.slice(0, 1)), Checksum())
    assert of(twice).rows == 3


def test_checksums_add_up():
    assert of(ROWS.slice(0, 70)) + of(ROWS.slice(70)) == of(ROWS)
    assert of(ROWS.slice(0, 0)) == Checksum()


def test_it_is_the_same_in_every_version():
    """Kept on disk in the spills of a run that was killed, so it must not drift."""
    column = pa.array([[1, 2, 3], []], pa.list_(pa.int64()))
    rows = pa.table({"ids": column, "label": np.array([1.0, 0.0], np.float32)})
    assert f"{of(rows).total:016x}" == "e85e90b55780aa2c"
