"""Rung 1 (values): `batch_of` by a table's schema, and of rows that need another form first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recd_plugins.data.foreign import DenseColumn, ForeignFeature, ForeignSchema
from recd_plugins.data.request import batch_of
from recd_plugins.data.schema import Schema, SparseFeature, Vector
from recd_plugins.errors import DataError
from recd_plugins.testing.batches import random_table, to_lists

SCHEMA = Schema(
    dense=("price", "text"),
    vectors=(Vector(name="text", width=3),),
    sparse=(
        SparseFeature(name="item", num_ids=2**40),
        SparseFeature(name="cart", num_ids=9, scored=True),
        SparseFeature(name="history", num_ids=9, sequence=True),
    ),
)


@pytest.fixture
def rows(tmp_path: Path) -> pa.Table:
    table = random_table(tmp_path / "table", SCHEMA, 20)
    (stripe,) = table.stripes
    return table.read(stripe)


def test_rows_of_a_table_become_a_batch_by_its_schema(rows: pa.Table) -> None:
    batch = batch_of(rows, SCHEMA)
    assert to_lists(batch.features) == {
        name: rows[name].to_pylist() for name in ("item", "cart", "history")
    }
    weights = batch.features["cart"].weights().tolist()
    assert weights == [one for row in rows["cart_weights"].to_pylist() for one in row]
    assert batch.dense[:, 1:].tolist() == rows["text"].to_pylist()
    assert batch.labels.tolist() == rows["label"].to_pylist()
    request = rows.drop_columns(["label", "session_id", "timestamp"])
    assert batch_of(request, SCHEMA).features.values().equal(batch.features.values())


@pytest.mark.parametrize("name", ["cart_weights", "cart", "price"])
def test_a_column_that_rows_of_a_request_lack_is_named(name: str, rows: pa.Table) -> None:
    with pytest.raises(DataError, match=f"rows: .*{name!r}"):
        batch_of(rows.drop_columns([name]), SCHEMA)


def test_an_id_of_no_row_is_named(rows: pa.Table) -> None:
    at = rows.schema.get_field_index("history")
    wrong = rows.set_column(at, "history", pa.array([[9]] * len(rows)))
    with pytest.raises(DataError, match="history"):
        batch_of(wrong, SCHEMA)


FOREIGN = ForeignSchema(
    timestamp=None,
    session_id=None,
    dense=(DenseColumn(name="user.geo.lat"),),
    sparse=(
        ForeignFeature(name="user.id", num_ids=9, table="user_id"),
        ForeignFeature(name="cart.item", num_ids=9, table="cart_item"),
    ),
)
NESTED = [
    {"user": {"id": 3, "geo": {"lat": 0.5}}, "cart": [{"item": 1, "price": 2, "n": 1}]},
    {"user": {"id": 4, "geo": {"lat": 1.5}}, "cart": []},
]


def test_fields_of_structs_in_a_request_are_columns_as_in_an_import() -> None:
    batch = batch_of(pa.Table.from_pylist(NESTED), FOREIGN)
    assert batch.dense.tolist() == [[0.5], [1.5]]
    assert to_lists(batch.features) == {"user.id": [[3], [4]], "cart.item": [[1], []]}


def test_a_record_batch_is_a_request_too() -> None:
    rows = pa.Table.from_pylist(NESTED)
    (one,) = rows.to_batches()
    served, expected = batch_of(one, FOREIGN), batch_of(rows, FOREIGN)
    assert served.features.values().equal(expected.features.values())


@pytest.mark.parametrize(
    ("rows", "message"),
    [(NESTED, "is 'list'.*from_pylist"), (pa.Table.from_pylist(NESTED).slice(2), "has no row")],
)
def test_what_is_no_request_is_named(rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        batch_of(rows, FOREIGN)
