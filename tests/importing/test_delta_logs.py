"""Value tests: tables of Delta Lake as other programs write them, by logs that are written by hand:
read right in place and by an import, or refused with a cure."""

from __future__ import annotations

import datetime
import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_tables import added, commit, deleted, lists, metadata, protocol, struct
from imported_tables import recd, rows_both_ways, rows_of, schema_file
from strangers_files import text

from recd_plugins.data.files.found import found_files
from recd_plugins.data.files.snapshots import snapshot_files
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError

pytest.importorskip("deltalake", reason="needs the extra delta")

FIRST, HOUR = 1_714_521_600_000, 3_600_000
"""2024-05-01, in ms; an hour."""
CLICKS: dict[str, Any] = {"clicked": "long", "item": "long"}


def clicks(*items: int) -> dict[str, Any]:
    return {"clicked": [one % 2 for one in range(len(items))], "item": [*items]}


SCHEMA: dict[str, Any] = {"label": "clicked", "sparse": [{"name": "item", "num_ids": 100}]}


def items_of(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(one for row in rows for one in row["item"])


def test_rows_of_a_checkpoint_and_of_what_came_after(tmp_path: Path) -> None:
    """The commits before it are cleaned up after a while."""
    import deltalake

    table = tmp_path / "t"
    commit(table, 0, protocol(), metadata(CLICKS), added(table, "a.parquet", clicks(1, 2)))
    again = {"remove": {"path": "a.parquet", "deletionTimestamp": 0, "dataChange": True}}
    commit(table, 1, again, added(table, "b.parquet", clicks(3, 4)))
    deltalake.DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    commit(table, 2, added(table, "c.parquet", clicks(5, 6)))
    assert items_of(rows_both_ways(table, SCHEMA, tmp_path / "made")) == [3, 4, 5, 6]


def test_rows_of_a_checkpoint_with_files_beside_it(tmp_path: Path) -> None:
    """Those of version 2 name files that have their actions."""
    table = tmp_path / "t"
    commit(table, 0, protocol("v2Checkpoint"), metadata(CLICKS))
    known = added(table, "a.parquet", clicks(1, 2))["add"]
    pairs = pa.map_(pa.string(), pa.string())
    kind = pa.struct(
        [
            ("path", pa.string()), ("partitionValues", pairs), ("size", pa.int64()),
            ("modificationTime", pa.int64()), ("dataChange", pa.bool_()),
        ]
    )  # fmt: skip
    beside = table / "_delta_log" / "_sidecars" / f"{uuid.uuid4()}.parquet"
    beside.parent.mkdir()
    pq.write_table(pa.table({"add": pa.array([known | {"partitionValues": []}], kind)}), beside)
    lines = [
        {"checkpointMetadata": {"version": 0}},
        protocol("v2Checkpoint"),
        metadata(CLICKS),
        {
            "sidecar": {
                "path": beside.name,
                "sizeInBytes": beside.stat().st_size,
                "modificationTime": 0,
            }
        },
    ]
    name = f"{0:020}.checkpoint.{uuid.uuid4()}.json"
    (table / "_delta_log" / name).write_text("\n".join(map(json.dumps, lines)))
    (table / "_delta_log" / f"{0:020}.json").unlink()
    commit(table, 1, added(table, "b.parquet", clicks(3, 4)))
    assert items_of(rows_both_ways(table, SCHEMA, tmp_path / "made")) == [1, 2, 3, 4]


def test_rows_that_are_deleted_but_lie_in_files_are_refused(tmp_path: Path) -> None:
    """However the file is named."""
    table = tmp_path / "t"
    file = added(table, "a.parquet", clicks(*range(30)))
    commit(table, 0, protocol("deletionVectors"), metadata(CLICKS), file)
    assert len(rows_both_ways(table, SCHEMA, tmp_path / "made")) == 30
    again = {"remove": {"path": "a.parquet", "deletionTimestamp": 0, "dataChange": True}}
    kept = {"deletionVector": deleted(3, 7), "stats": json.dumps({"numRecords": 30})}
    for version, more, says in (
        (1, kept, r"has deletion vectors.* Run REORG TABLE"),
        (2, {"deletionVector": kept["deletionVector"]}, r"may have .*write\.parquet\(FOLDER\)"),
    ):
        commit(table, version, again, {"add": file["add"] | more})
        for path in (table, table / "a.parquet"):
            with pytest.raises(DataError, match=says):
                found_files(path)
    assert len(snapshot_files(table, "delta", 0)[0]) == 1


@pytest.mark.parametrize(
    ("feature", "says"),
    [("catalogManaged", "catalog-managed"), ("rowsOfTomorrow", "'rowsOfTomorrow'")],
)
def test_what_readers_are_asked_for_and_do_not_know_is_refused(
    tmp_path: Path, feature: str, says: str
) -> None:
    """As of a table whose latest commits its catalog alone has."""
    table = tmp_path / "t"
    file = added(table, "a.parquet", clicks(1, 2))
    commit(table, 0, protocol(feature), metadata(CLICKS), file)
    says = rf"needs a reader that knows .*{says}.*write\.parquet\(FOLDER\)"
    with pytest.raises(DataError, match=says):
        found_files(table)


def test_types_that_became_wider(tmp_path: Path) -> None:
    """Files of before have the narrower ones."""
    table = tmp_path / "t"
    early = {
        "clicked": pa.array([0, 1], pa.int8()), "item": pa.array([1, 2], pa.int32()),
        "price": pa.array([0.5, 1.5], pa.float32()), "at": pa.array([19_844, 19_845], pa.date32()),
        "sum": pa.array([1, 2], pa.int16()),
    }  # fmt: skip
    late = {
        "clicked": pa.array([0, 1], pa.int32()), "item": pa.array([3, 2**40], pa.int64()),
        "price": pa.array([2.5, 3.5], pa.float64()),
        "at": pa.array([datetime.datetime(2024, 5, 1, 1)] * 2, pa.timestamp("us")),
        "sum": pa.array([3, 4], pa.float64()),
    }  # fmt: skip
    kinds = {
        "clicked": "integer", "item": "long", "price": "double", "at": "timestamp_ntz",
        "sum": "double",
    }  # fmt: skip
    files = added(table, "a.parquet", early), added(table, "b.parquet", late)
    commit(table, 0, protocol("typeWidening", "timestampNtz"), metadata(kinds), *files)
    schema = {
        "label": "clicked",
        "timestamp": "at",
        "dense": ["price", "sum"],
        "sparse": [{"name": "item", "num_ids": 2**41}],
    }
    rows = rows_both_ways(table, schema, tmp_path / "made")
    assert items_of(rows) == [1, 2, 3, 2**40]
    assert [(row["at"], row["price"], row["sum"]) for row in rows] == [
        (FIRST, 0.5, 1), (FIRST + 24 * HOUR, 1.5, 2), (FIRST + HOUR, 2.5, 3),
        (FIRST + HOUR, 3.5, 4),
    ]  # fmt: skip
    proposed = json.loads(recd("data", "schema", table, "--json"))
    assert proposed["rows"] == 4


def test_files_of_another_folder(tmp_path: Path) -> None:
    """As a shallow clone has them: a log may name a file by its place, percent-encoded."""
    table, other = tmp_path / "t", tmp_path / "other place"
    places = [
        (other / "a.parquet").as_uri(),
        (other / "b.parquet").as_uri().replace("file:///", "file:/"),
    ]
    files = [
        added(other, f"{name}.parquet", clicks(one, one + 1), place=place)
        for name, one, place in zip("ab", (1, 3), places, strict=True)
    ]
    commit(table, 0, protocol(), metadata(CLICKS), *files)
    assert items_of(rows_both_ways(table, SCHEMA, tmp_path / "made")) == [1, 2, 3, 4]


def test_partitions_are_of_the_types_that_the_log_says(tmp_path: Path) -> None:
    """None of them is in the files; an empty text, like none, is a null."""
    table = tmp_path / "t"
    kinds = {
        **CLICKS, "at": "timestamp", "day": "date", "shop": "integer", "new": "boolean",
        "name": "string",
    }  # fmt: skip
    values = [
        {
            "at": "2024-05-01 12:00:00.5", "day": "2024-05-01", "shop": "7", "new": "true",
            "name": "07",
        },
        {
            "at": "2024-05-02 00:00:00", "day": "2024-05-02", "shop": None, "new": "false",
            "name": "",
        },
    ]  # fmt: skip
    files = [
        added(table, f"{one}.parquet", clicks(one, one + 2), partitionValues=value)
        for one, value in enumerate(values)
    ]
    commit(table, 0, protocol(), metadata(kinds, "at", "day", "shop", "new", "name"), *files)
    schema = {
        "label": "clicked",
        "timestamp": "at",
        "dense": ["new", {"name": "shop", "nulls": {"value": -1}}],
        "sparse": [*SCHEMA["sparse"], {"name": "name", "num_ids": 2**40, "ids": "hash"}],
    }
    rows = rows_both_ways(table, schema, tmp_path / "made")
    day, half = 86_400_000, 43_200_500
    assert [row["at"] for row in rows] == [FIRST + half] * 2 + [FIRST + day] * 2
    assert [(row["new"], row["shop"]) for row in rows] == [(1, 7)] * 2 + [(0, -1)] * 2
    assert [len(row["name"]) for row in rows] == [1, 1, 0, 0]
    known = [facts.partitions["day"].as_py() for facts in found_files(table).values()]
    assert sorted(known) == [datetime.date(2024, 5, 1), datetime.date(2024, 5, 2)]


def test_structs_and_fields_that_came_later_are_null_before(tmp_path: Path) -> None:
    """A struct, a field of one, and a list of structs, with no word of `--absent`."""
    table = tmp_path / "t"
    user = struct(city="string", age="integer")
    kinds = {**CLICKS, "user": user, "seen": lists(struct(id="long", kind="string"))}
    kinds |= {"at": struct(place=struct(row="long"))}
    first = clicks(1, 2)
    second = clicks(3, 4) | {"user": [{"city": "Bonn"}, None]}
    kind = pa.struct([("city", pa.string()), ("age", pa.int32())])
    third = clicks(5, 6) | {
        "user": pa.array([{"city": "Rom", "age": 40}] * 2, kind),
        "seen": [[{"id": 7, "kind": "a"}, {"id": 8, "kind": "b"}], None],
        "at": [{"place": {"row": 9}}, {"place": None}],
    }
    files = [
        added(table, f"{name}.parquet", rows)
        for name, rows in zip("abc", (first, second, third), strict=True)
    ]
    commit(table, 0, protocol(), metadata(kinds), *files)
    features = [
        {"name": "user.city", "num_ids": 99, "ids": "hash", "table": "city"},
        {"name": "seen.id", "num_ids": 99, "table": "seen"},
        {"name": "at.place.row", "num_ids": 99, "table": "rows"},
    ]
    schema = {
        "label": "clicked",
        "dense": [{"name": "user.age", "nulls": {"value": -1}}],
        "sparse": [*SCHEMA["sparse"], *features],
    }
    file = schema_file(schema, tmp_path / "made")
    assert "no problem" in recd("data", "check", table, "--schema", file)
    recd("data", "import", table, tmp_path / "made", "--schema", file)
    rows = rows_of(tmp_path / "made").to_pylist()
    assert items_of(rows) == [1, 2, 3, 4, 5, 6]
    assert [row["user.age"] for row in rows] == [-1] * 4 + [40, 40]
    assert [len(row["user.city"]) for row in rows] == [0, 0, 1, 0, 1, 1]
    assert [row["seen.id"] for row in rows] == [[], [], [], [], [7, 8], []]
    assert [row["at.place.row"] for row in rows] == [[], [], [], [], [9], []]
    shown = json.loads(recd("data", "schema", table, "--json"))
    assert not [one for one in shown["doubts"] if "--absent" in one]
    registry = text(
        tmp_path / "registry.yaml",
        json.dumps({"plugins": [], "dataset": {
            "use": "parquet", "format": "delta", "train": str(table), "test": str(table),
            "schema": json.loads(file.read_text()),
        }}),
    )  # fmt: skip
    told = recd("data", "check", registry, fails=1)
    assert "column 'user.city' is not there, but the schema names it" in told


def test_ids_with_weights_and_maps_that_came_later_are_none_before(tmp_path: Path) -> None:
    table = tmp_path / "t"
    pairs = {"type": "map", "keyType": "long", "valueType": "double", "valueContainsNull": True}
    kinds = {**CLICKS, "cart": lists(struct(id="long", weight="double")), "views": pairs}
    late = clicks(3, 4) | {
        "cart": [[{"id": 7, "weight": 0.5}], None],
        "views": pa.array([[(8, 1.5)], []], pa.map_(pa.int64(), pa.float64())),
    }
    files = added(table, "a.parquet", clicks(1, 2)), added(table, "b.parquet", late)
    commit(table, 0, protocol(), metadata(kinds), *files)
    sparse = [{"name": name, "num_ids": 9, "scored": True} for name in ("cart", "views")]
    schema = SCHEMA | {"sparse": [*SCHEMA["sparse"], *sparse]}
    rows = rows_both_ways(table, schema, tmp_path / "made")
    assert [(row["cart"], row["views_weights"]) for row in rows] == [
        ([], []), ([], []), ([7], [1.5]), ([], []),
    ]  # fmt: skip


def test_a_field_that_came_later_to_structs_in_lists_is_asked_for(tmp_path: Path) -> None:
    """A list of before has elements, of which no null says how many there are."""
    table = tmp_path / "t"
    kinds = {**CLICKS, "seen": lists(struct(id="long", kind="string"))}
    early = clicks(1, 2) | {"seen": [[{"id": 7}], [{"id": 8}, {"id": 9}]]}
    late = clicks(3, 4) | {"seen": [[{"id": 7, "kind": "a"}]] * 2}
    files = added(table, "a.parquet", early), added(table, "b.parquet", late)
    commit(table, 0, protocol(), metadata(kinds), *files)
    features = [{"name": "seen.kind", "num_ids": 9, "table": "kind", "ids": "hash"}]
    file = schema_file({"label": "clicked", "sparse": features}, tmp_path / "made")
    told = recd("data", "import", table, tmp_path / "made", "--schema", file, fails=2)
    assert "a.parquet: lacks column 'seen.kind'" in told


def test_columns_of_files_that_the_table_has_not_are_none(tmp_path: Path) -> None:
    """As the numbers of rows that a writer keeps beside them."""
    table = tmp_path / "t"
    more = clicks(1, 2) | {"_row-id-col-1": [7, 8], "user": [{"id": 3}, {"id": 4}]}
    commit(table, 0, protocol(), metadata(CLICKS), added(table, "a.parquet", more))
    shown = json.loads(recd("data", "schema", table, "--json"))
    assert not [one for one in shown["doubts"] if "row-id" in one or "user" in one]
    sparse = [{"name": "_row-id-col-1", "num_ids": 9}]
    file = schema_file({"label": "clicked", "sparse": sparse}, tmp_path / "made")
    told = recd("data", "import", table, tmp_path / "made", "--schema", file, fails=2)
    assert "lacks column '_row-id-col-1'" in told
    with pytest.raises(DataError, match="column '_row-id-col-1' is not there"):
        Table.open(table, load_schema(file))


def test_a_column_in_letters_of_another_case_is_named(tmp_path: Path) -> None:
    """As where files were taken over as they were: it would be null throughout."""
    table = tmp_path / "t"
    file = added(table, "a.parquet", {"clicked": [0, 1], "Item": [1, 2]})
    commit(table, 0, protocol(), metadata(CLICKS), file)
    schema = schema_file(SCHEMA, tmp_path / "made")
    says = "has column 'Item', which its table calls 'item'"
    assert says in recd("data", "import", table, tmp_path / "made", "--schema", schema, fails=2)
    with pytest.raises(DataError, match=says):
        Table.open(table, load_schema(schema))


def test_files_of_changes_and_of_what_was_removed_are_not_read(tmp_path: Path) -> None:
    table = tmp_path / "t"
    changes = {
        "cdc": added(table, "_change_data/c.parquet", clicks(9))["add"] | {"dataChange": False}
    }
    changes["cdc"].pop("modificationTime")
    commit(table, 0, protocol(), metadata(CLICKS), added(table, "a.parquet", clicks(1, 2)), changes)
    added(table, "left.parquet", clicks(8))
    assert items_of(rows_both_ways(table, SCHEMA, tmp_path / "made")) == [1, 2]


def test_a_variant_is_no_group_of_columns(tmp_path: Path) -> None:
    """Its bytes would be ids; the other columns are read."""
    table = tmp_path / "t"
    values = [{"metadata": b"\1\0\0", "value": bytes([12, one % 5])} for one in range(60)]
    rows = clicks(*(one % 7 for one in range(60))) | {"v": values}
    file = added(table, "a.parquet", rows)
    commit(table, 0, protocol("variantType"), metadata({**CLICKS, "v": "variant"}), file)
    shown = json.loads(recd("data", "schema", table, "--json"))
    assert [one["name"] for one in shown["schema"]["sparse"]] == ["item"]
    assert "v: a variant, whose values are of any type" in "".join(shown["doubts"])
    assert len(rows_both_ways(table, SCHEMA, tmp_path / "made")) == 60
    wrong = schema_file(
        {"label": "clicked", "sparse": [{"name": "v", "num_ids": 9}]}, tmp_path / "v"
    )
    told = recd("data", "import", table, tmp_path / "v", "--schema", wrong, fails=2)
    assert "column 'v' is struct<metadata: binary" in told
