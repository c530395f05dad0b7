"""Value tests: which columns the files of an Iceberg table have, and what they lack: read right in
place and by an import, or refused with a cure."""

from __future__ import annotations

import datetime
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import delete_rows, edited, iceberg, latest_metadata
from imported_tables import recd, rows_both_ways, schema_file

from recd_plugins.data.files.found import found_files
from recd_plugins.data.files.snapshots import snapshot_files
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.parquet_tables import ParquetConfig, ParquetTables
from recd_plugins.data.pins import check_pins, write_pins
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError

pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

SCHEMA: dict[str, Any] = {"label": "clicked", "sparse": [{"name": "item", "num_ids": 100}]}
REWRITE = r"CALL system\.rewrite_data_files"


def clicks(*items: int, **more: Any) -> pa.Table:
    return pa.table({"clicked": [one % 2 for one in range(len(items))], "item": [*items], **more})


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    """A table of two rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = iceberg(f"file://{tmp_path}/t")
        made.create(clicks(1).schema).append(clicks(1, 2))
        yield made


def items_of(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(one for row in rows for one in row["item"])


def by_item(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["item"][0]: row for row in rows}


def test_columns_and_structs_that_came_later_are_null_before(catalog: Any, tmp_path: Path) -> None:
    """With no word of `--absent`; a field of a struct may come later, too."""
    with catalog.latest.update_schema() as update:
        update.add_column("price", DoubleType())
        update.add_column("user", StructType(NestedField(1, "city", StringType())))
    user = pa.array([{"city": "Bonn"}, None])
    catalog.latest.append(clicks(3, 4, price=[0.5, 1.5], user=user))
    with catalog.latest.update_schema() as update:
        update.add_column(("user", "age"), IntegerType())
    kind = pa.struct([("city", pa.string()), ("age", pa.int32())])
    user = pa.array([{"city": "Rom", "age": 40}, {"city": None, "age": 50}], kind)
    catalog.latest.append(clicks(5, 6, price=[2.5, 3.5], user=user))
    price = {"name": "price", "nulls": {"value": -1}}
    rows = by_item(rows_both_ways(tmp_path / "t", SCHEMA | {"dense": [price]}, tmp_path / "made"))
    assert [rows[one]["price"] for one in range(1, 7)] == [-1, -1, 0.5, 1.5, 2.5, 3.5]
    schema = {
        "label": "clicked",
        "dense": [{"name": "user.age", "nulls": {"value": -1}}],
        "sparse": [
            *SCHEMA["sparse"],
            {"name": "user.city", "num_ids": 99, "ids": "hash", "table": "city"},
        ],
    }
    file = schema_file(schema, tmp_path / "fields")
    assert "no problem" in recd("data", "check", tmp_path / "t", "--schema", file)
    recd("data", "import", tmp_path / "t", tmp_path / "fields", "--schema", file)
    made = Table.open(tmp_path / "fields")
    rows = by_item([row for one in made.stripes for row in made.read(one).to_pylist()])
    assert [rows[one]["user.age"] for one in range(1, 7)] == [-1, -1, -1, -1, 40, 50]
    assert [len(rows[one]["user.city"]) for one in range(1, 7)] == [0, 0, 1, 0, 1, 0]


def test_columns_that_came_later_are_rewritten_as_nulls(catalog: Any, tmp_path: Path) -> None:
    """Of the types that they have in other files."""
    with catalog.latest.update_schema() as update:
        update.add_column("shop", StringType())
        update.add_column("seen", ListType(9, StringType(), element_required=False))
        update.add_column("user", StructType(NestedField(1, "city", StringType())))
    late = {"shop": ["a", "b"], "seen": [["x"], []], "user": [{"city": "Bonn"}, None]}
    catalog.latest.append(clicks(3, 4, **late))
    recd("data", "rewrite", tmp_path / "t", tmp_path / "made")
    rows = pq.read_table(tmp_path / "made").sort_by("item")
    assert rows["shop"].to_pylist() == [None, None, "a", "b"]
    assert rows["seen"].to_pylist() == [None, None, ["x"], []]
    assert rows["user"].to_pylist() == [None, None, {"city": "Bonn"}, None]


def test_a_column_has_the_default_of_the_rows_before_it_came(catalog: Any, tmp_path: Path) -> None:
    """`initial-default` of format 3; `write-default` is of rows that are written without one."""

    def later(described: dict[str, Any]) -> None:
        described |= {"format-version": 3, "next-row-id": 0, "last-column-id": 9}
        described["schemas"][-1]["fields"] += [
            {"id": 6, "name": "tier", "required": True, "type": "int",
             "initial-default": 3, "write-default": 5},
            {"id": 7, "name": "day", "required": False, "type": "date",
             "initial-default": "2024-05-01"},
            {"id": 8, "name": "shop", "required": False, "type": "string",
             "initial-default": "none", "write-default": "new"},
            {"id": 9, "name": "more", "required": False, "type": "double", "write-default": 7.0},
        ]  # fmt: skip

    table = edited(tmp_path / "t", later)
    schema = {
        "label": "clicked",
        "timestamp": "day",
        "dense": ["tier", {"name": "more", "nulls": {"value": -1}}],
        "sparse": [*SCHEMA["sparse"], {"name": "shop", "num_ids": 99, "ids": "hash"}],
    }
    rows = rows_both_ways(table, schema, tmp_path / "made")
    assert [(row["tier"], row["more"], row["day"]) for row in rows] == [
        (3, -1, 1_714_521_600_000)
    ] * 2
    assert [len(row["shop"]) for row in rows] == [1, 1]
    (facts,) = found_files(table).values()
    assert facts.partitions["shop"].as_py() == "none"


def test_the_default_of_a_field_of_a_struct_is_refused(catalog: Any, tmp_path: Path) -> None:
    """Where a file has the struct and lacks the field; a struct that it lacks is null."""
    with catalog.latest.update_schema() as update:
        update.add_column("user", StructType(NestedField(1, "city", StringType())))
    catalog.latest.append(clicks(3, user=[{"city": "Bonn"}]))

    def there(described: dict[str, Any]) -> None:
        described |= {"format-version": 3, "next-row-id": 0}
        (user,) = (one for one in described["schemas"][-1]["fields"] if one["name"] == "user")
        user["type"]["fields"][0]["initial-default"] = "Rom"

    rows = rows_both_ways(edited(tmp_path / "t", there), SCHEMA, tmp_path / "made")
    assert items_of(rows) == [1, 2, 3]

    def later(described: dict[str, Any]) -> None:
        described["last-column-id"] = 9
        (user,) = (one for one in described["schemas"][-1]["fields"] if one["name"] == "user")
        user["type"]["fields"].append(
            {"id": 9, "name": "age", "required": False, "type": "int", "initial-default": 18}
        )

    says = rf"lacks field 'user\.age' of a struct, which has an initial-default.*{REWRITE}"
    with pytest.raises(DataError, match=says):
        found_files(edited(tmp_path / "t", later))


def imported(table: Path, features: list[dict[str, Any]], to: Path) -> dict[int, dict[str, Any]]:
    """The rows of an import of fields of structs, which training in place does not take."""
    schema = {"label": "clicked", "sparse": [*SCHEMA["sparse"], *features]}
    recd("data", "import", table, to, "--schema", schema_file(schema, to))
    made = Table.open(to)
    return by_item([row for one in made.stripes for row in made.read(one).to_pylist()])


def test_fields_of_structs_that_were_renamed_or_made_anew_are_told(
    catalog: Any, tmp_path: Path
) -> None:
    """In structs and in structs of lists; what was dropped is no field any more."""
    kind = ListType(20, StructType(NestedField(21, "id", LongType())), element_required=False)
    with catalog.latest.update_schema() as update:
        update.add_column("user", StructType(NestedField(1, "city", LongType())))
        update.add_column("seen", kind)
    catalog.latest.append(clicks(3, user=[{"city": 30}], seen=[[{"id": 7}, {"id": 8}]]))
    with catalog.latest.update_schema() as update:
        update.rename_column(("user", "city"), "town")
        update.rename_column(("seen", "element", "id"), "thing")
    named = [
        {"name": "user.town", "num_ids": 99, "table": "town"},
        {"name": "seen.thing", "num_ids": 99, "table": "thing"},
    ]
    rows = imported(tmp_path / "t", named, tmp_path / "renamed")
    assert [rows[one]["user.town"] for one in (1, 2, 3)] == [[], [], [30]]
    assert [rows[one]["seen.thing"] for one in (1, 2, 3)] == [[], [], [7, 8]]
    with catalog.latest.update_schema() as update:
        update.delete_column(("user", "town"))
        update.add_column(("user", "age"), IntegerType())
    with catalog.latest.update_schema() as update:
        update.add_column(("user", "city"), LongType())
    user = pa.array(
        [{"age": 5, "city": 40}], pa.struct([("age", pa.int32()), ("city", pa.int64())])
    )
    catalog.latest.append(clicks(4, user=user, seen=[[{"thing": 9}]]))
    named[0] = {"name": "user.city", "num_ids": 99, "table": "city"}
    rows = imported(tmp_path / "t", named, tmp_path / "anew")
    assert [rows[one]["user.city"] for one in (1, 2, 3, 4)] == [[], [], [], [40]]
    assert [rows[one]["seen.thing"] for one in (3, 4)] == [[7, 8], [9]]
    shown = recd("data", "schema", tmp_path / "t", "--json")
    assert "user.town" not in shown
    assert "of before" not in shown


def test_columns_that_were_renamed_to_each_others_names_have_their_values(
    catalog: Any, tmp_path: Path
) -> None:
    """Files of before have both names, each for the other; rows are chosen by the names of now, and
    so are the stripes that have none of them."""
    with catalog.latest.update_schema() as update:
        update.add_column("shop", LongType())
    catalog.latest.append(clicks(3, 4, shop=[1003, 1004]))
    for before, after in (("item", "other"), ("shop", "item"), ("other", "shop")):
        with catalog.latest.update_schema() as update:
            update.rename_column(before, after)
    catalog.latest.append(pa.table({"clicked": [0, 1], "shop": [5, 6], "item": [1005, 1006]}))
    sparse = [{"name": "shop", "num_ids": 100}, {"name": "item", "num_ids": 2000}]
    schema = {"label": "clicked", "sparse": sparse}
    rows = rows_both_ways(tmp_path / "t", schema, tmp_path / "made")
    assert sorted((row["shop"], row["item"]) for row in rows) == [
        ([1], []), ([2], []), ([3], [1003]), ([4], [1004]), ([5], [1005]), ([6], [1006]),
    ]  # fmt: skip
    for where, left in (("shop <= 3", [1, 2, 3]), ("item >= 1004", [4, 5, 6])):
        given = load_schema(schema_file(schema, tmp_path / "made"))
        config = ParquetConfig(train=tmp_path / "t", test=tmp_path / "t", schema=given, where=where)
        found = ParquetTables(config).prepare(tmp_path / "out").train
        chosen = [found.read(stripe)["shop"].to_pylist() for stripe in found.stripes]
        assert sorted(one for rows in chosen for ids in rows for one in ids) == left


def test_a_column_that_was_dropped_and_made_anew_is_null_before(
    catalog: Any, tmp_path: Path
) -> None:
    with catalog.latest.update_schema() as update:
        update.delete_column("item")
        update.add_column("shop", LongType())
    with catalog.latest.update_schema() as update:
        update.add_column("item", LongType())
    catalog.latest.append(pa.table({"clicked": [0, 1], "shop": [7, 7], "item": [3, 4]}))
    rows = rows_both_ways(tmp_path / "t", SCHEMA, tmp_path / "made")
    assert sorted(row["item"] for row in rows) == [[], [], [3], [4]]


def test_a_run_is_not_resumed_under_other_names(catalog: Any, tmp_path: Path) -> None:
    """Nor are rows that were copied taken for those of now: the files are the same."""
    schema = load_schema(schema_file(SCHEMA, tmp_path / "made"))
    config = ParquetConfig(train=tmp_path / "t", test=tmp_path / "t", schema=schema)
    known = ParquetTables(config).fingerprint()
    write_pins(tmp_path, ParquetTables(config).prepare(tmp_path / "out"))
    for before, after in (("item", "other"), ("clicked", "item"), ("other", "clicked")):
        with catalog.latest.update_schema() as update:
            update.rename_column(before, after)
    assert ParquetTables(config).fingerprint() != known
    other = replace(
        schema,
        label="item",
        sparse=(replace(schema.sparse[0], name="clicked"),),
    )
    found = ParquetTables(replace(config, schema=other)).prepare(tmp_path / "out")
    with pytest.raises(DataError, match=r"\.parquet: is not what it was when the run began"):
        check_pins(tmp_path, found)


def with_numbers(file: Path, numbers: dict[str, int]) -> None:
    """The file anew, its columns by these numbers, and the others by none."""
    rows = pq.ParquetFile(file).read()
    fields = [
        pa.field(
            one.name,
            one.type,
            metadata={"PARQUET:field_id": str(numbers[one.name])} if one.name in numbers else None,
        )
        for one in rows.schema
    ]
    pq.write_table(rows.cast(pa.schema(fields)), file)


def test_what_neither_number_nor_name_tells_is_refused(catalog: Any, tmp_path: Path) -> None:
    """A column without a number in a file that has some; and a name that two columns have had, in a
    file that has none."""

    def unmapped(described: dict[str, Any]) -> None:
        described["properties"].pop("schema.name-mapping.default", None)

    edited(tmp_path / "t", unmapped)
    (file,) = (tmp_path / "t" / "data").glob("*.parquet")
    with_numbers(file, {"clicked": 1})
    says = rf"has column 'item' without a number \(field_id\).*nothing says which .*\. .*{REWRITE}"
    with pytest.raises(DataError, match=says):
        found_files(tmp_path / "t")
    with_numbers(file, {})
    assert items_of(rows_both_ways(tmp_path / "t", SCHEMA, tmp_path / "made")) == [1, 2]

    def anew(described: dict[str, Any]) -> None:
        described["last-column-id"] = 9
        later = json.loads(json.dumps(described["schemas"][-1]))
        later["schema-id"] = described["current-schema-id"] = 7
        later["fields"][1]["id"] = 9
        described["schemas"].append(later)

    edited(tmp_path / "t", anew)
    says = r"has no numbers of columns.*'item' has been the name of more than one column.*CALL"
    with pytest.raises(DataError, match=says):
        found_files(tmp_path / "t")


def test_a_snapshot_has_the_columns_of_its_time(catalog: Any, tmp_path: Path) -> None:
    """A column that was renamed since has its old name there, as its files do."""
    first = catalog.latest.current_snapshot().snapshot_id
    with catalog.latest.update_schema() as update:
        update.rename_column("item", "thing")
        update.add_column("price", DoubleType())
    catalog.latest.overwrite(pa.table({"clicked": [1], "thing": [3], "price": [0.5]}))
    files, _ = snapshot_files(tmp_path / "t", "iceberg", first)
    assert [facts.columns for facts in files.values()] == [{"clicked", "item"}]
    schema = load_schema(schema_file(SCHEMA, tmp_path / "made"))
    opened = Table.of(tmp_path / "t", files, schema)
    assert opened.read(opened.stripes[0])["item"].to_pylist() == [[1], [2]]
    with pytest.raises(DataError, match=r"Iceberg keeps .*whose latest snapshot has no such file"):
        found_files(tmp_path / "t" / "data")
    files, _ = snapshot_files(tmp_path / "t", "iceberg", None)
    assert [facts.columns for facts in files.values()] == [{"clicked", "thing", "price"}]


def test_a_column_that_was_dropped_is_none_of_the_table(catalog: Any, tmp_path: Path) -> None:
    """Its values lie on in the files of before."""
    with catalog.latest.update_schema() as update:
        update.add_column("secret", LongType())
    catalog.latest.append(clicks(3, 4, secret=[7, 8]))
    with catalog.latest.update_schema() as update:
        update.delete_column("secret")
    shown = json.loads(recd("data", "schema", tmp_path / "t", "--json"))
    assert not [one for one in shown["doubts"] if "secret" in one]
    assert items_of(rows_both_ways(tmp_path / "t", SCHEMA, tmp_path / "made")) == [1, 2, 3, 4]
    wrong = {"label": "clicked", "sparse": [{"name": "secret", "num_ids": 9}]}
    with pytest.raises(DataError, match="column 'secret' is not there"):
        Table.open(tmp_path / "t", load_schema(schema_file(wrong, tmp_path / "wrong")))


def partitioned(tmp_path: Path, version: str) -> Any:
    """A table by day and shop, of a version of the format."""
    columns = Schema(
        NestedField(1, "clicked", LongType()),
        NestedField(2, "item", LongType()),
        NestedField(3, "day", DateType()),
        NestedField(4, "shop", StringType()),
    )
    spec = PartitionSpec(
        PartitionField(3, 1000, IdentityTransform(), "day"),
        PartitionField(4, 1001, IdentityTransform(), "shop"),
    )
    catalog = iceberg(f"file://{tmp_path}/t")
    catalog.create(columns, partition_spec=spec, properties={"format-version": version})
    return catalog


def sold(*items: int, day: str, shop: str | None) -> pa.Table:
    days = pa.array([datetime.date.fromisoformat(day)] * len(items))
    return clicks(*items, day=days, shop=pa.array([shop] * len(items), pa.string()))


def without(folder: Path, *names: str) -> None:
    """Have all files of a table lack these columns, as those of Hive lack those of its folders."""
    for file in folder.rglob("*.parquet"):
        rows = pq.ParquetFile(file).read()
        pq.write_table(rows.drop_columns([one for one in names if one in rows.column_names]), file)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("version", "lacked"), [("1", ("day", "shop")), ("2", ()), ("2", ("day", "shop"))]
)
def test_partitions_that_were_changed_have_the_values_of_their_time(
    tmp_path: Path, version: str, lacked: tuple[str, ...]
) -> None:
    """Where files lack their columns, the partition that each was written in says them; names of
    folders have characters that a URI would have encoded."""
    catalog = partitioned(tmp_path, version)
    catalog.latest.append(sold(1, 2, day="2024-05-01", shop="a/b 50%"))
    catalog.latest.append(sold(3, day="2024-05-02", shop=None))
    with catalog.latest.update_spec() as update:
        update.remove_field("day")
    without(tmp_path / "t", *lacked)
    catalog.latest.append(sold(4, day="2024-05-03", shop="c"))
    schema = {
        "label": "clicked",
        "timestamp": "day",
        "sparse": [*SCHEMA["sparse"], {"name": "shop", "num_ids": 2**40, "ids": "hash"}],
    }
    rows = by_item(rows_both_ways(tmp_path / "t", schema, tmp_path / "made"))
    first, day = 1_714_521_600_000, 86_400_000
    assert [rows[one]["day"] for one in range(1, 5)] == [first, first, first + day, first + 2 * day]
    assert rows[1]["shop"] == rows[2]["shop"] != rows[4]["shop"]
    assert [len(rows[one]["shop"]) for one in range(1, 5)] == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("content", "kept_as"),
    [
        ("POSITION_DELETES", "PARQUET"), ("EQUALITY_DELETES", "PARQUET"),
        ("POSITION_DELETES", "PUFFIN"),
    ],
)  # fmt: skip
def test_rows_that_are_deleted_beside_their_files_are_refused(
    catalog: Any, tmp_path: Path, content: str, kept_as: str
) -> None:
    """By Spark, by Flink, and as the vectors of format 3."""
    delete_rows(catalog.latest, content, kept_as)
    with pytest.raises(DataError, match=rf"t: has delete files: .*{REWRITE}.*rewrite-all"):
        found_files(tmp_path / "t")


@pytest.mark.filterwarnings("ignore")
def test_files_without_numbers_have_their_columns_by_the_names_of_a_mapping(tmp_path: Path) -> None:
    """As those that were there before the table."""
    pq.write_table(clicks(3, 4), tmp_path / "old.parquet")
    catalog = iceberg(f"file://{tmp_path}/t")
    catalog.create(clicks(1).schema).add_files([f"file://{tmp_path}/old.parquet"])
    with catalog.latest.update_schema() as update:
        update.add_column("price", DoubleType())
    schema = SCHEMA | {"dense": [{"name": "price", "nulls": {"value": -1}}]}
    rows = rows_both_ways(tmp_path / "t", schema, tmp_path / "made")
    assert items_of(rows) == [3, 4]
    assert [row["price"] for row in rows] == [-1, -1]

    def unmapped(described: dict[str, Any]) -> None:
        del described["properties"]["schema.name-mapping.default"]

    shutil.copytree(tmp_path / "t", tmp_path / "unmapped")
    edited(tmp_path / "unmapped", unmapped)
    with pytest.raises(DataError, match=r"old\.parquet: column 'price' is not there"):
        Table.open(tmp_path / "unmapped", load_schema(schema_file(schema, tmp_path / "made")))
    with catalog.latest.update_schema() as update:
        update.rename_column("item", "thing")
    renamed = {"label": "clicked", "sparse": [{"name": "thing", "num_ids": 100}]}
    rows = rows_both_ways(tmp_path / "t", renamed, tmp_path / "renamed")
    assert [row["thing"] for row in rows] == [[3], [4]]


@pytest.mark.filterwarnings("ignore")
def test_names_that_files_cannot_have_are_the_tables(tmp_path: Path) -> None:
    """In files of Iceberg they have letters, digits and _ alone."""
    catalog = iceberg(f"file://{tmp_path}/t")
    rows = clicks(1, 2).append_column("user-id", pa.array([5, 6]))
    catalog.create(rows.schema).append(rows)
    (file,) = (tmp_path / "t" / "data").glob("*.parquet")
    assert "user_x2Did" in pq.read_schema(file).names
    schema = {"label": "clicked", "sparse": [{"name": "user-id", "num_ids": 9}]}
    rows = rows_both_ways(tmp_path / "t", schema, tmp_path / "made")
    assert [row["user-id"] for row in rows] == [[5], [6]]


def test_of_two_metadata_files_of_one_number_the_catalog_knows_the_latest(
    catalog: Any, tmp_path: Path
) -> None:
    """As one whose commit failed is left behind."""
    latest = latest_metadata(tmp_path / "t")
    number = latest.name.split("-")[0]
    shutil.copy(latest, latest.with_name(f"{number}-left.metadata.json"))
    says = rf"only its catalog knows which of metadata/.*{number}-left.* is its latest\. Name that"
    with pytest.raises(DataError, match=says):
        found_files(tmp_path / "t")
    assert len(snapshot_files(latest, "iceberg", None)[0]) == 1


@pytest.mark.filterwarnings("ignore")
def test_places_without_slashes_before_them_are_of_this_machine(tmp_path: Path) -> None:
    """As Hadoop writes them: file:/logs."""
    catalog = iceberg(f"file:{tmp_path}/t")
    catalog.create(clicks(1).schema).append(clicks(1, 2))
    assert items_of(rows_both_ways(tmp_path / "t", SCHEMA, tmp_path / "made")) == [1, 2]
