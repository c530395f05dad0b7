"""Value tests: what a schema says of a table's columns, in footers, YAML and Arrow."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_plugins.config import parse
from recd_plugins.data.schema import METADATA_KEY, Schema, SparseFeature
from recd_plugins.errors import DataError, RegistryError

SCHEMA = Schema(
    label="clicked",
    session_id="session",
    timestamp=None,
    dense=("age", "price"),
    sparse=(
        SparseFeature(name="item", num_ids=100),
        SparseFeature(name="seen", num_ids=300, table="item", kind="user", sequence=True),
        SparseFeature(name="shop", num_ids=7),
    ),
)


def test_columns_stand_in_the_order_of_the_file() -> None:
    assert SCHEMA.columns == ("session", "clicked", "age", "price", "item", "seen", "shop")
    assert Schema().columns == ("session_id", "timestamp", "label")
    assert SCHEMA.sparse_names == ("item", "seen", "shop")


def test_a_table_is_as_large_as_its_largest_feature() -> None:
    assert SCHEMA.table_sizes() == {"item": 300, "shop": 7}
    assert SCHEMA.replace([SparseFeature(name="item", num_ids=900)]).table_sizes()["item"] == 900
    assert list(SCHEMA.table_sizes()) == ["item", "shop"]  # in the order of the features
    assert [feature.table_name for feature in SCHEMA.sparse] == ["item", "item", "shop"]


def test_a_feature_is_found_or_the_nearest_named() -> None:
    assert SCHEMA.feature("seen").num_ids == 300
    with pytest.raises(DataError, match=r"no sparse feature 'shp'; did you mean 'shop'\?"):
        SCHEMA.feature("shp")


def test_features_are_replaced_where_they_stand() -> None:
    small, unknown = SparseFeature(name="seen", num_ids=5), SparseFeature(name="new", num_ids=5)
    changed = SCHEMA.replace([small])
    assert changed.sparse == (SCHEMA.sparse[0], small, SCHEMA.sparse[2])
    assert changed.columns == SCHEMA.columns
    assert SCHEMA.feature("seen").num_ids == 300
    with pytest.raises(DataError, match=r"no sparse feature 'new' to replace; .*Schema\.add puts"):
        SCHEMA.replace([small, unknown])


def test_features_are_added_behind_the_others_and_dropped_by_name() -> None:
    new = SparseFeature(name="new", num_ids=5)
    assert SCHEMA.add([new]).sparse == (*SCHEMA.sparse, new)
    assert SCHEMA.add([new]).drop(["new", "absent"]) == SCHEMA
    with pytest.raises(RegistryError, match=r"'seen' is named twice\. Name it once"):
        SCHEMA.add([SparseFeature(name="seen", num_ids=5)])


@pytest.mark.parametrize(
    "columns",
    [
        {"label": "session_id"},
        {"dense": ("a", "a")},
        {"dense": ("a",), "sparse": (SparseFeature(name="a", num_ids=1),)},
        {"sparse": (SparseFeature(name="label", num_ids=1),)},
        {"sparse": (SparseFeature(name="x", num_ids=1), SparseFeature(name="x", num_ids=2))},
    ],
)
def test_a_column_has_one_meaning(columns: dict[str, object]) -> None:
    with pytest.raises(RegistryError, match="is named twice"):
        Schema(**columns)  # type: ignore[arg-type]  # whatever the parametrization says


def test_arrow_columns_hold_no_nulls_and_carry_the_schema() -> None:
    arrow = SCHEMA.arrow()
    assert arrow.names == list(SCHEMA.columns)
    assert not any(field.nullable for field in arrow)
    assert arrow.field("session").type == pa.int64()
    assert arrow.field("clicked").type == arrow.field("age").type == pa.float32()
    ids = arrow.field("seen").type
    assert ids.value_type == pa.int64()
    assert not ids.value_field.nullable
    assert Schema.from_json(arrow.metadata[METADATA_KEY], "here") == SCHEMA


names = st.text(min_size=1, max_size=5)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    columns = draw(st.lists(names, min_size=3, max_size=9, unique=True))
    label, *rest = columns
    dense = draw(st.integers(0, len(rest)))
    session = draw(st.booleans()) and dense > 0
    return Schema(
        label=label,
        session_id=rest[0] if session else None,
        timestamp=None,
        dense=tuple(rest[session:dense]),
        sparse=tuple(
            SparseFeature(
                name=name,
                num_ids=draw(st.integers(1, 2**40)),
                kind=draw(st.sampled_from(["user", "item"])),
                table=draw(st.none() | names),
                sequence=draw(st.booleans()),
            )
            for name in rest[dense:]
        ),
    )


@settings(max_examples=at_most(30))
@given(schemas())
def test_json_keeps_all_of_it(schema: Schema) -> None:
    assert Schema.from_json(schema.to_json(), "here") == schema
    assert Schema.from_json(schema.arrow().metadata[METADATA_KEY], "here") == schema


def test_yaml_says_it_like_json() -> None:
    values = {
        "label": "clicked",
        "session_id": "session",
        "timestamp": None,
        "dense": ["age", "price"],
        "sparse": [
            {"name": "item", "num_ids": 100},
            {"name": "seen", "num_ids": 300, "table": "item", "kind": "user", "sequence": True},
            {"name": "shop", "num_ids": 7},
        ],
    }
    assert parse(Schema, values, "dataset.schema") == SCHEMA


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"sparse": [{"name": "x"}]}, r"dataset.schema.sparse\[0\]: option 'num_ids' is required"),
        ({"sparse": [{"name": "x", "num_ids": 0}]}, r"sparse\[0\].num_ids: must be >= 1, but is 0"),
        ({"sparse": [{"name": "x", "num_ids": 1, "kind": "usr"}]}, "did you mean 'user'"),
        ({"lable": "x"}, "dataset.schema.lable: unknown option 'lable'; did you mean 'label'"),
        ({"labels": "x"}, "dataset.schema.labels: expected a list"),
        ({"dense": ["label"]}, "dataset.schema: column 'label' is named twice"),
        ({"dense": "age"}, "dataset.schema.dense: expected a list"),
    ],
)
def test_a_mistake_in_yaml_is_named(values: dict[str, object], says: str) -> None:
    with pytest.raises(RegistryError, match=says):
        parse(Schema, values, "dataset.schema")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '"text"',
        '{"unknown": 1}',
        '{"sparse": [{"name": "x", "num_ids": -1}]}',
        '{"sparse": {"x": 1}}',
        '{"dense": ["label"]}',
        b"\xff\xfe",
        b"\xff\xff\xff\xff",
    ],
)
def test_a_footer_that_makes_no_schema_names_its_file(text: str | bytes) -> None:
    with pytest.raises(DataError, match=r"^part.parquet: its schema cannot be read: "):
        Schema.from_json(text, "part.parquet")


def test_what_a_later_version_adds_is_reported() -> None:
    values = {**json.loads(SCHEMA.to_json()), "weights": "w"}
    with pytest.raises(DataError, match="unknown option 'weights'"):
        Schema.from_json(json.dumps(values), "part.parquet")
