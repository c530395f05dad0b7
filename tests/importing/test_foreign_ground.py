"""Value tests: folders, fields, columns and values of the logs of others, read as they are."""

from __future__ import annotations

import json
import re
import shlex
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from imported_tables import recd, rows_of
from strangers_files import clicks, text, write
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.conform.dates import date_digits
from recd_plugins.data.files.found import found_files
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.importing.reading import blocks
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.importing.surveying import sample as samples
from recd_plugins.data.importing.surveying import survey as surveys
from recd_plugins.data.importing.table_files import files_of, foreign_files
from recd_plugins.data.selection import Selection
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError


def schema_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        CliRunner().invoke(app, ["data", "schema", str(path), "--json"]).stdout
    )
    return found


@pytest.fixture
def hours(tmp_path: Path) -> Path:
    """Hours of a log: the first lacks a column, the last has one of another type."""
    for hour in range(3):
        folder = tmp_path / "log" / "day=2024-03-01" / f"hour={hour:02}"
        folder.mkdir(parents=True)
        (folder / "_SUCCESS").touch()
        rows = clicks(100, seed=hour)
        if hour == 0:
            rows = rows.drop_columns(["brand"])
        if hour == 2:
            at = rows.column_names.index("item_id")
            rows = rows.set_column(at, "item_id", rows["item_id"].cast(pa.string()))
        write(folder / "part.parquet", rows)
    return tmp_path / "log"


def test_folders_are_columns_and_files_may_differ(hours: Path, tmp_path: Path) -> None:
    found = schema_of(hours)
    sparse = {one["name"]: one for one in found["schema"]["sparse"]}
    assert {*sparse} == {"item_id", "brand", "hour"}
    assert {one.partition(" ")[0] for one in found["doubts"]} >= {"'brand'", "'item_id'"}
    schema = text(tmp_path / "schema.yaml", json.dumps(found["schema"]))
    last = hours / "day=2024-03-01" / "hour=02"
    recd("data", "rewrite", hours, tmp_path / "flat", fails=2)  # the types differ
    recd("data", "rewrite", f"{hours}/day=*/hour=02", tmp_path / "flat")
    assert "all counts as read" in recd("data", "layout", tmp_path / "flat")
    flat = pq.read_table(tmp_path / "flat")
    assert flat.column_names == [*pq.read_schema(last / "part.parquet").names, "day", "hour"]
    assert flat["hour"].unique().to_pylist() == ["02"]
    by_day = ("data", "import", last, tmp_path / "no", "--split-by", "hash:at")
    assert recd(*by_day).count("rows in") == 2
    told = recd("data", "import", hours, tmp_path / "t", "--schema", schema, fails=2)
    assert "lacks column 'brand'" in told
    assert "--absent brand" in told
    saved = ("--column", "brand", "--save", tmp_path / "brand.parquet")
    assert "values have ids of their own" in recd("data", "vocabulary", hours, *saved)
    recd("data", "import", hours, tmp_path / "t", "--schema", schema, "--absent", "brand")
    rows = rows_of(tmp_path / "t")
    lengths = pa.compute.list_value_length(rows["brand"]).to_pylist()
    assert lengths == [0] * 100 + [1] * 200
    each = rows["hour"].to_pylist()
    assert [len({*map(tuple, each[first : first + 100])}) for first in (0, 100, 200)] == [1, 1, 1]
    assert len({*map(tuple, each)}) == 3
    items = pa.concat_tables([clicks(100, seed=hour).select(["item_id"]) for hour in range(3)])
    ids = dict(zip(items["item_id"].to_pylist(), rows["item_id"].to_pylist(), strict=True))
    assert [ids[one] for one in items["item_id"].to_pylist()] == rows["item_id"].to_pylist()


def test_a_check_of_a_registry_knows_folders_and_columns_that_came_later(
    hours: Path, tmp_path: Path
) -> None:
    sparse = [{"name": name, "num_ids": 99, "ids": "hash"} for name in ("item_id", "brand", "hour")]
    dataset = {
        "use": "parquet",
        "train": str(hours),
        "test": str(hours),
        "absent": "brand",
        "schema": {
            "session_id": "visit",
            "timestamp": "day",
            "label": "clicked",
            "sparse": sparse,
        },
    }
    registry = tmp_path / "registry.yaml"
    registry.write_text(json.dumps({"plugins": ["recd_dlrm"], "dataset": dataset}))
    assert "train: 300 rows, no problem" in recd("data", "check", registry)
    del dataset["absent"]
    registry.write_text(json.dumps({"plugins": ["recd_dlrm"], "dataset": dataset}))
    told = recd("data", "check", registry, fails=1)
    assert "column 'brand' is not there, but the schema names it. Other files have it" in told


def test_fields_of_objects_are_columns(tmp_path: Path) -> None:
    rows = [
        {
            "like": one % 2,
            "at": f"2024-01-01T00:00:{one % 60:02}{'.250Z' if one % 2 else 'Z'}",
            "user": {"id": f"u{one % 9}", "at": {"city": ["Köln", None][one % 2]}},
            "more": None if one < 300 else {"late": one % 3},
        }
        for one in range(400)
    ]
    nested = pa.Table.from_pylist(rows)
    at = nested["at"].cast(pa.timestamp("us", "UTC"))
    nested = nested.set_column(nested.column_names.index("at"), "at", at)
    lines = text(tmp_path / "c.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for path in (lines, write(tmp_path / "c.parquet", nested)):
        found = schema_of(path)["schema"]
        tables = {one["name"]: one.get("table") for one in found["sparse"]}
        assert tables == {"user.id": "user_id"}
        assert found["timestamp"] == "at"
        found["sparse"] += [{"name": "user.at.city", "num_ids": 50, "ids": "hash"}]
        found["dense"] = [{"name": "more.late", "nulls": {"value": -1}}]
        schema = text(tmp_path / "schema.yaml", json.dumps(found))
        recd("data", "import", path, tmp_path / path.suffix[1:], "--schema", schema)
        made = rows_of(tmp_path / path.suffix[1:])
        assert made["at"].to_pylist()[:2] == [1_704_067_200_000, 1_704_067_201_250]
        assert made["more.late"].to_pylist() == [-1] * 300 + [one % 3 for one in range(300, 400)]
        assert [len(one) for one in made["user.at.city"].to_pylist()] == [1, 0] * 200
        assert len({*map(tuple, made["user.id"].to_pylist())}) == 9


def test_dates_written_as_digits(tmp_path: Path) -> None:
    """As Avazu's hours; 10 digits that may be seconds since 1970 are not taken for these."""
    for unit, first in (("yymmddhh", 14102105), ("yyyymmddhh", 2014102105)):
        lines = [f"{one % 2},{first + one // 20},{one % 7}" for one in range(200)]
        path = text(tmp_path / f"{unit}.csv", "click,hour,item\n" + "\n".join(lines))
        schema = schema_of(path)["schema"]
        assert (schema["timestamp"], schema["timestamp_unit"]) == ("hour", unit)
        file = text(tmp_path / "schema.yaml", json.dumps(schema))
        assert "no problem" in recd("data", "check", path, "--schema", file)
        recd("data", "import", path, tmp_path / unit, "--schema", file)
        times = rows_of(tmp_path / unit)["hour"].to_pylist()
        assert times == [1_413_867_600_000 + one // 20 * 3_600_000 for one in range(200)]
        wrong = text(path, path.read_text().replace(str(first), str(first + 90)))
        told = recd("data", "import", wrong, tmp_path / "no", "--schema", file, fails=2)
        assert f"which is no date of `timestamp_unit: {unit}`" in told


def test_what_writers_keep_for_themselves_is_no_part_of_a_table(tmp_path: Path) -> None:
    """A task that failed left a file; names of folders, keys too, are percent-encoded."""
    null = "a%20b=__HIVE_DEFAULT_PARTITION__"
    for folder in (null, "a%20b=x%2Fy", "_temporary/0/a%20b=x%2Fy", ".old/a%20b=z"):
        (tmp_path / folder).mkdir(parents=True)
        write(tmp_path / folder / "part.parquet", clicks(100))
    in_place = [one.partitions for one in found_files(tmp_path).values()]
    imported = [one.partitions for one in files_of([tmp_path]).values()]
    for found in (in_place, imported):
        named = [{name: one.as_py() for name, one in each.items()} for each in found]
        assert named == [{"a b": None}, {"a b": "x/y"}]
    feature = ForeignFeature(name="a b", num_ids=9, ids="hash")
    schema = ForeignSchema(session_id=None, timestamp=None, label="clicked", sparse=(feature,))
    table = Table.open(tmp_path, schema)
    ids = [one for stripe in table.stripes for one in table.read(stripe)["a b"].to_pylist()]
    assert [len(one) for one in ids] == [0] * 100 + [1] * 100


def test_lines_of_json_end_at_newlines_alone_and_folders_say_texts(tmp_path: Path) -> None:
    """A key that comes behind the first lines does not take the place of a folder's."""
    folder = tmp_path / "day=1" / "at=2024-05-01T13"
    folder.mkdir(parents=True)
    rows = [{"item": f"a\u2028{one % 7}"} | ({"day": 9} if one > 250 else {}) for one in range(300)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    text(folder / "a.jsonl", lines)
    columns = {one.name: one for one in surveys.survey(foreign_files([tmp_path])).columns}
    assert (columns["day"].low, columns["day"].high) == (1, 1)
    assert columns["at"].seems == "texts"


def test_files_of_text_may_have_columns_that_the_schema_does_not_name(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text(tmp_path / "in" / "a.csv", "label,item\n" + "1,5\n0,6\n" * 20)
    text(tmp_path / "in" / "b.csv", "item,label,more\n" + "7,1,x\n" * 20)
    sparse = [{"name": "item", "num_ids": 9}]
    schema = {"session_id": None, "timestamp": None, "sparse": sparse}
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    words = ("data", "import", tmp_path / "in", tmp_path / "t", "--schema", file)
    assert "give `recd data import --absent NAME` for more." in recd(*words, fails=2)
    recd(*words, "--absent", "more")
    assert [one for (one,) in rows_of(tmp_path / "t")["item"].to_pylist()] == [5, 6] * 20 + [7] * 20


def test_what_is_nothing_among_numbers_may_be_a_text(tmp_path: Path) -> None:
    lines = [f"{n % 2},{n / 2 if n % 9 else 'NA'},{('NA', 'DE')[n % 2]}" for n in range(200)]
    path = text(tmp_path / "c.csv", "label,price,country\n" + "\n".join(lines))
    schema = {
        "session_id": None,
        "timestamp": None,
        "dense": [{"name": "price", "nulls": {"value": -1}}],
        "sparse": [{"name": "country", "num_ids": 9, "ids": "vocabulary"}],
    }
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    recd("data", "import", path, tmp_path / "t", "--schema", file)
    rows = rows_of(tmp_path / "t")
    assert rows["price"].to_pylist() == [n / 2 if n % 9 else -1 for n in range(200)]
    assert [len(one) for one in rows["country"].to_pylist()] == [1] * 200


def test_a_survey_of_nanoseconds_bytes_and_numbers_of_several_widths(tmp_path: Path) -> None:
    number = range(400)
    rows = {
        "label": [one % 2 for one in number],
        "at": pa.array([1_700_000_000_000_000_001 + one for one in number], pa.timestamp("ns")),
        "item_id": pa.array([one % 40 for one in number], pa.int32()),
        "seen_ids": [[2**40 + one % 30] for one in number],
        "device": pa.array([bytes([150 + one % 40] * 16) for one in number], pa.binary(16)),
        "tags": [[f"tag {one % 30}"] for one in number],
    }
    found = schema_of(write(tmp_path / "c.parquet", pa.table(rows)))["schema"]
    assert found["timestamp"] == "at"
    names = {one["name"]: one.get("table") for one in found["sparse"]}
    assert names == dict.fromkeys(("item_id", "seen_ids", "device", "tags"))
    assert date_digits(pa.array([2**64 - 1], pa.uint64())) is None


def test_numbers_turn_out_to_have_fractions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the sample did not show is read, and a check has nothing against it."""
    monkeypatch.setattr(samples, "FIRST_BYTES", 1_000)
    monkeypatch.setattr(samples, "SPOT_BYTES", 100)
    lines = [f"{one % 2},{one % 90},{one % 50}" for one in range(20_000)]
    lines[7_777] = "0.5,3.5,abc"
    path = text(tmp_path / "c.csv", "label,count,item\n" + "\n".join(lines) + "\n")
    schema = {
        "session_id": None,
        "timestamp": None,
        "dense": ["count"],
        "sparse": [{"name": "item", "num_ids": 99, "ids": "hash"}],
    }
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    assert "no problem" in recd("data", "check", path, "--schema", file)
    told = recd("data", "import", path, tmp_path / "t", "--schema", file)
    assert "count: read as numbers with fractions" in told
    assert "Correct this value" not in told
    rows = rows_of(tmp_path / "t")
    assert (rows["count"][7_777].as_py(), rows["label"][7_777].as_py()) == (3.5, 0.5)


def test_bytes_are_hashed(tmp_path: Path) -> None:
    keys = [uuid.UUID(int=150 + one % 77 << 120).bytes for one in range(400)]
    rows = clicks().append_column("device", pa.array(keys, pa.binary(16)))
    path = write(tmp_path / "c.parquet", rows)
    (device,) = (one for one in schema_of(path)["schema"]["sparse"] if one["name"] == "device")
    assert device["ids"] == "hash"
    told = recd("data", "vocabulary", path, "--column", "device", "--save", tmp_path / "v.parquet",
                fails=2)  # fmt: skip
    assert "column 'device' holds bytes that are no UTF-8" in told


def test_a_table_of_delta_lake_is_its_latest_version(tmp_path: Path) -> None:
    """Whatever reads the folder: files that the table has no more count nowhere."""
    deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
    deltalake.write_deltalake(tmp_path / "t", clicks(300))
    deltalake.write_deltalake(tmp_path / "t", clicks(200, seed=1), mode="overwrite")
    assert schema_of(tmp_path / "t")["rows"] == 200
    feature = ForeignFeature(name="item_id", num_ids=99, ids="hash")
    schema = ForeignSchema(session_id=None, timestamp=None, label="clicked", sparse=(feature,))
    assert Table.open(tmp_path / "t", schema).num_rows == 200


def test_a_column_that_came_later_to_a_table_of_delta_lake_is_null_before(tmp_path: Path) -> None:
    """As Delta Lake has it, of whatever type; `nulls` says what becomes of it."""
    deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
    lake, shops = tmp_path / "lake", pa.array([f"shop {one % 7}" for one in range(100)])
    seen = pa.array([[one % 9, one % 5] for one in range(100)], pa.list_(pa.int64()))
    later = clicks(100, seed=1).append_column("shop", shops).append_column("seen", seen)
    later = later.append_column("left", pa.array([0.5] * 100))
    deltalake.write_deltalake(lake, clicks(300))
    deltalake.write_deltalake(lake, later, mode="append", schema_mode="merge")
    assert "(0.5; 75.0% empty)" in "".join(schema_of(lake)["doubts"])
    schema = tmp_path / "schema.yaml"
    schema.write_text(
        "{session_id: null, timestamp: null, label: clicked, dense: [{name: left, nulls: "
        "{value: 7}}], sparse: [{name: shop, num_ids: 50, ids: hash}, {name: seen, num_ids: 9}]}"
    )
    recd("data", "check", lake, "--schema", schema)
    recd("data", "import", lake, tmp_path / "made", "--schema", schema)
    foreign = load_schema(schema)
    for table in (Table.open(tmp_path / "made"), Table.open(lake, foreign)):
        rows = pa.concat_tables(table.read(one) for one in table.stripes)
        assert rows["left"].to_pylist().count(7) == 300
        assert [pc.sum(pc.list_value_length(rows[one])).as_py() for one in ("shop", "seen")] == [
            100,
            200,
        ]
    assert Table.open(lake, foreign).select(
        Selection(where="left == 0.5", schema=foreign.conformed, source=foreign)
    ).num_rows == 100  # fmt: skip


def test_two_files_of_json_may_have_other_keys_but_no_other_types(tmp_path: Path) -> None:
    text(tmp_path / "a.jsonl", '{"label": 1, "item": 3}\n')
    text(tmp_path / "b.jsonl", '{"label": 0, "item": "x", "new": 1}\n')
    with pytest.raises(DataError, match=r"type of column 'item': int64 in .*a\.jsonl and string"):
        surveys.survey(surveys_files(tmp_path), ["label"])
    known = surveys.survey(surveys_files(tmp_path), ["label"], alone=True).columns
    assert [one.name for one in known] == ["label", "new"]
    text(tmp_path / "b.jsonl", '{"label": 0, "item": 4, "new": 1}\n')
    names = [one.name for one in surveys.survey(surveys_files(tmp_path)).columns]
    assert names == ["label", "item", "new"]


def surveys_files(folder: Path) -> Any:
    return foreign_files([folder])


def test_parts_of_an_export_share_the_first_ones_header(tmp_path: Path) -> None:
    text(tmp_path / "part-0.csv", "label,item\n" + "1,5\n0,6\n" * 20)
    text(tmp_path / "part-1.csv", "0,7\n1,8\n" * 20)
    recd("data", "import", tmp_path, tmp_path.parent / "whole")
    assert rows_of(tmp_path.parent / "whole").num_rows == 80


def test_keys_of_json_that_come_late_are_found_and_those_of_no_line_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "FIRST_BYTES", 1_000)
    monkeypatch.setattr(samples, "SPOT_BYTES", 100)
    rows: list[dict[str, Any]] = [
        {"label": one % 2, "item": one % 9, "user": {"name": "u"}, "price": None}
        for one in range(3_000)
    ]
    rows[1_234] |= {"user": {"name": "u", "age": 33}, "price": 2.5, "tags": ["a", "b"]}
    path = text(tmp_path / "c.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    found = {one.name: one for one in surveys.survey(foreign_files([path]), ["tags"]).columns}
    assert (found["label"].nulls, found["item"].nulls, found["tags"].values) == (0, 0, 2)
    schema: dict[str, Any] = {
        "session_id": None,
        "timestamp": None,
        "dense": [{"name": name, "nulls": {"value": -1}} for name in ("user.age", "price")],
        "sparse": [{"name": name, "num_ids": 99, "ids": "hash"} for name in ("item", "tags")],
    }
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    assert "no problem" in recd("data", "check", path, "--schema", file)
    recd("data", "import", path, tmp_path / "t", "--schema", file)
    made = rows_of(tmp_path / "t")
    for name, value in (("user.age", 33), ("price", 2.5)):
        assert made[name].to_pylist() == [value if one == 1_234 else -1 for one in range(3_000)]
    assert [at for at, one in enumerate(made["tags"].to_pylist()) if one] == [1_234]
    schema["sparse"] += [{"name": "itme", "num_ids": 99}, {"name": "user", "num_ids": 99}]
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    told = recd("data", "check", path, "--schema", file, fails=1)
    assert "column 'itme' is in no line, but the schema names it. did you mean 'item'?" in told
    assert "column 'user' is in no line" in told
    told = recd("data", "import", path, tmp_path / "no", "--schema", file, fails=2)
    assert "column 'itme' is in no line, but the schema names it. did you mean 'item'?" in told


def test_files_of_json_with_other_keys_are_one_table_for_a_check(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, key in (("a", "price"), ("b", "count")):
        rows = [{"label": one % 2, "item": one % 9, key: one / 2} for one in range(200)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        text(tmp_path / "in" / f"{name}.jsonl", lines)
    dense = [{"name": name, "nulls": {"value": -1}} for name in ("price", "count")]
    sparse = [{"name": "item", "num_ids": 9}]
    schema = {"session_id": None, "timestamp": None, "dense": dense, "sparse": sparse}
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    assert "400 rows, no problem" in recd("data", "check", tmp_path / "in", "--schema", file)


def test_dates_written_as_texts(tmp_path: Path) -> None:
    """In text, lines of JSON and Parquet; a day above 12 tells the order, and none is a doubt."""
    first = 1_704_067_200_000  # 2024-01-01
    forms = (
        ("dd/mm/yyyy", "{day:02}/{month:02}/2024 {hour}:05"),
        ("mm/dd/yyyy", "{month}/{day}/2024 {half}:05:00 {noon}M"),
        ("yyyy-mm-dd", "2024-{month:02}-{day:02}T{hour:02}:05:00.000+00:00"),
        ("yyyy-mm-dd", "2024-{month:02}-{day:02}T{hour:02}:05:00Z"),
    )
    for number, (unit, form) in enumerate(forms):
        each = [
            form.format(
                day=1 + one % 28, month=1, hour=one % 24, half=(one + 11) % 12 + 1,
                noon="AP"[one % 24 // 12],
            )
            for one in range(200)
        ]  # fmt: skip
        wanted = [
            first + one % 28 * 86_400_000 + one % 24 * 3_600_000 + 300_000 for one in range(200)
        ]
        rows = pa.table({"at": each, "label": [one % 2 for one in range(200)]})
        rows = rows.append_column("item", pa.array([one % 7 for one in range(200)]))
        for end in ("csv", "jsonl", "parquet"):
            path = write(tmp_path / f"{number}.{end}", rows)
            schema = schema_of(path)["schema"]
            assert schema["timestamp"] == "at"
            if unit != "yyyy-mm-dd" or end == "parquet":
                assert schema["timestamp_unit"] == unit
            file = text(tmp_path / "schema.yaml", json.dumps(schema))
            assert "no problem" in recd("data", "check", path, "--schema", file)
            to = tmp_path / f"{number}-{end}"
            recd("data", "import", path, to, "--schema", file)
            assert rows_of(to)["at"].to_pylist() == wanted
        table = Table.open(path, load_schema(file))
        assert table.read(table.stripes[0], ["at"])["at"].to_pylist() == wanted


def test_dates_that_may_be_of_either_order_or_are_none(tmp_path: Path) -> None:
    days = [f"{1 + one % 12}.{1 + one // 12}.2024" for one in range(100)]
    lines = [f"{day},{one % 2},{one % 7}" for one, day in enumerate(days)]
    path = text(tmp_path / "c.csv", "day,label,item\n" + "\n".join(lines))
    found = schema_of(path)
    assert any("dates as dd/mm/yyyy or as mm/dd/yyyy?" in doubt for doubt in found["doubts"])
    stated = found["schema"] | {"timestamp_unit": "mm/dd/yyyy"}
    file = text(tmp_path / "schema.yaml", json.dumps(stated))
    recd("data", "import", path, tmp_path / "t", "--schema", file)
    month_of = pa.compute.month(rows_of(tmp_path / "t")["day"].cast(pa.timestamp("ms")))
    assert month_of.to_pylist() == [1 + one % 12 for one in range(100)]
    text(path, path.read_text().replace("1.2.2024", "31.2.2024"))
    told = recd("data", "check", path, "--schema", file, fails=1)
    assert "holds '31.2.2024', which is no date of `timestamp_unit: mm/dd/yyyy`" in told
    file = text(file, json.dumps(stated | {"timestamp_unit": "s"}))
    told = recd("data", "check", path, "--schema", file, fails=1)
    assert "is string, but `timestamp_unit: s` is of numbers" in told


def test_a_check_of_a_registry_reads_structs_as_training_does(tmp_path: Path) -> None:
    users = pa.array([{"city": one % 5} for one in range(100)])
    rows = pa.table({"label": [one % 2 for one in range(100)], "user": users})
    path = write(tmp_path / "c.parquet", rows)
    schema = {
        "session_id": None,
        "timestamp": None,
        "sparse": [{"name": "user.city", "num_ids": 9, "table": "user_city"}],
    }
    dataset = {"use": "parquet", "train": str(path), "test": str(path), "schema": schema}
    registry = tmp_path / "registry.yaml"
    registry.write_text(json.dumps({"plugins": ["recd_dlrm"], "dataset": dataset}))
    told = recd("data", "check", registry, fails=1)
    assert "column 'user.city' is not there, but the schema names it. `recd data import`" in told
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    assert "no problem" in recd("data", "check", path, "--schema", file)


def test_fields_of_objects_in_lists_are_lists(tmp_path: Path) -> None:
    """As GA4 exports its items; a list that is null, or has an object that is, has nulls."""
    events = [
        None if one % 10 == 3 else [
            {"item": f"i{(one + n) % 30}", "at": {"row": n, "price": n / 2}, "kind": "view"}
            for n in range(one % 4)
        ]
        for one in range(400)
    ]  # fmt: skip
    rows = [{"label": n % 2, "item": f"i{n % 30}", "events": one} for n, one in enumerate(events)]
    lines = text(tmp_path / "c.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    parquet = write(tmp_path / "c.parquet", pa.Table.from_pylist(rows), row_group_size=90)
    wanted = [[one["item"] for one in each or ()] for each in events]
    prices = [each and [one["at"]["price"] for one in each] for each in events]
    for path in (lines, parquet):
        found = surveys.survey(foreign_files([path]))
        names = ["events.item", "events.at.row", "events.at.price", "events.kind"]
        assert [one.name for one in found.columns] == ["label", "item", *names]
        parts = [one.rows(names, found.read_as) for one in blocks(found.files, names)]
        assert pa.concat_tables(parts)["events.at.price"].to_pylist() == prices
        schema = schema_of(path)["schema"]
        (history,) = (one for one in schema["sparse"] if one["name"] == "events.item")
        assert (history["table"], history["sequence"]) == ("item", True)
        file = text(tmp_path / "schema.yaml", json.dumps(schema))
        assert "no problem" in recd("data", "check", path, "--schema", file)
        to = tmp_path / path.suffix[1:]
        recd("data", "import", path, to, "--schema", file)
        made = rows_of(to)
        own = dict(zip((one["item"] for one in rows), made["item"].to_pylist(), strict=True))
        assert made["events.item"].to_pylist() == [[own[one][0] for one in each] for each in wanted]


def test_keys_of_several_types_are_left_out_or_named(tmp_path: Path) -> None:
    rows = [
        {
            "label": n % 2,
            "item": n % 9,
            "value": n if n % 2 else "x",
            "more": {"of": [n, {}][n % 2]},
        }
        for n in range(300)
    ]
    path = text(tmp_path / "c.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    found = schema_of(path)
    assert {*found["doubts"]} >= {
        f"{name!r} has several types, so it is left out" for name in ("value", "more.of")
    }
    file = text(tmp_path / "schema.yaml", json.dumps(found["schema"]))
    assert "no problem" in recd("data", "check", path, "--schema", file)
    recd("data", "import", path, tmp_path / "t", "--schema", file)
    assert rows_of(tmp_path / "t")["item"].to_pylist() == [[n % 9] for n in range(300)]
    found["schema"]["sparse"] += [{"name": "value", "num_ids": 9, "ids": "hash"}]
    file = text(tmp_path / "schema.yaml", json.dumps(found["schema"]))
    told = recd("data", "import", path, tmp_path / "no", "--schema", file, fails=2)
    assert "column 'value' has values of several types, as numbers and texts: " in told
    assert "c.jsonl:2. Write it with one type" in told


def test_objects_whose_keys_are_ids_are_named_with_a_cure(tmp_path: Path) -> None:
    """Each key would be a column: lists of pairs, which the cure makes of them, are a feature."""
    made: list[dict[str, Any]] = [
        {
            "label": one % 2,
            "prefs": {f"item_{one * each % 997}": each for each in range(1, 4)},
            "user": {"seen me": {str(one % 40): 0.5, str(one % 7): 1.5}, "age": one % 60},
            "flags": {("wifi", "bar", "pool", "gym")[one % 4]: one % 3},
        }
        for one in range(300)
    ]
    path = text(tmp_path / "a.jsonl", "".join(json.dumps(one) + "\n" for one in made))
    shown = recd("data", "schema", path)
    prefs, seen = (
        next(line for line in shown.splitlines() if f"doubt: {name!r} is an object" in line)
        for name in ("prefs", "user.seen me")
    )
    assert re.search(r"whose keys are ids, as item_\d+, item_\d+, item_\d+: \d+ of them, ", prefs)
    pairs = "(. // {}) | to_entries | map({id: .key, weight: .value})"
    assert f"""jq -c '.user["seen me"] |= ({pairs})' FILE""" in seen
    columns = [one.name for one in surveys.survey(foreign_files([path])).columns]
    flags = ["flags.wifi", "flags.bar", "flags.pool", "flags.gym"]
    assert columns == ["label", "user.age", *flags]
    schema: dict[str, Any] = {"label": "label", "session_id": None, "timestamp": None}
    schema["sparse"] = [{"name": "prefs", "num_ids": 5_000, "ids": "hash", "scored": True}]
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    for words in (["import", path, tmp_path / "t"], ["check", path]):
        told = recd("data", *words, "--schema", file, fails=2 - (words[0] == "check"))
        assert "'prefs' is an object whose keys are ids" in told
        assert f"jq -c '.prefs |= ({pairs})'" in told

    for row in made:
        row["prefs"] = [{"id": key, "weight": one} for key, one in row["prefs"].items()]
    text(path, "".join(json.dumps(one) + "\n" for one in made))
    recd("data", "import", path, tmp_path / "t", "--schema", file)
    by_name = {"sparse": [], "dense": [{"name": "user.seen me.3", "nulls": {"value": 0}}]}
    text(file, json.dumps(schema | by_name))
    recd("data", "import", path, tmp_path / "key", "--schema", file)
    assert sum(rows_of(tmp_path / "key")["user.seen me.3"].to_pylist()) > 0


def test_a_late_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    text(tmp_path / "a.jsonl", '{"label": 1}\n' * 300 + "[1, 2]\n")
    with pytest.raises(DataError, match="cannot be read as lines of JSON"):
        surveys.survey(surveys_files(tmp_path))


def test_integers_of_19_digits_are_times_and_ids(tmp_path: Path) -> None:
    """Nanoseconds, and hashes of 64 bits with a sign; what is an id in Parquet is the same one."""
    first = 1_700_000_000_000_000_000
    keys = [2**63 - 1 - one % 40 if one % 3 else one % 40 - 2**63 for one in range(300)]
    rows = {
        "label": [one % 2 for one in range(300)],
        "event_time": [first + one * 1_000_003 for one in range(300)],
        "item": keys,
        "post": [first + 123_456_789 * (one % 90) for one in range(300)],
        "visited": [first + 1_000 * one for one in range(300)],
    }
    sparse = [{"name": "item", "num_ids": 1 << 20, "ids": "hash"}]
    made = []
    for name in ("c.csv", "c.parquet", "c.jsonl"):
        path = write(tmp_path / name, pa.table(rows))
        schema = schema_of(path)["schema"]
        assert (schema["timestamp"], schema["timestamp_unit"]) == ("event_time", "ns")
        assert [one["name"] for one in schema["sparse"]] == ["item", "post"]
        file = text(tmp_path / "schema.yaml", json.dumps(schema | {"sparse": sparse}))
        recd("data", "import", path, tmp_path / name[2:], "--schema", file)
        made.append(rows_of(tmp_path / name[2:]))
    assert made[0]["event_time"].to_pylist()[1] == first // 1_000_000 + 1
    assert made[0].equals(made[1])
    assert made[0].equals(made[2])


@pytest.mark.parametrize(
    "form",
    ["2024-05-01 13:00:00 UTC", "2024.05.01 13:00", "20240501T130000Z", "2024/05/01 13:00:00"],
)
def test_times_that_are_nearly_of_iso_8601(tmp_path: Path, form: str) -> None:
    rows = [{"at": form, "y": one % 2} for one in range(9)]
    path = text(tmp_path / "c.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    schema = schema_of(path)["schema"]
    assert schema["timestamp"] == "at"
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    recd("data", "import", path, tmp_path / "t", "--schema", file)
    assert {*rows_of(tmp_path / "t")["at"].to_pylist()} == {1_714_568_400_000}


@pytest.mark.parametrize(
    ("name", "values", "part", "doubt"),
    [
        ("clicked", ["yes", "no"], None, "looks like a label in texts ('yes', 'no'): write"),
        ("event", ["view", "buy"], None, "which as a feature would tell the answer: write a label"),
        ("event", ["gala", "fair"], "sparse", ""),
        ("clicked", ["-1", "1"], "labels", "(squared error). If -1 means no, write 0 for it"),
        ("clicked", ["", "1"], "labels", "if that means 0, write nulls: {value: 0}"),
        ("click", [f"0.{one}1" for one in range(10, 90)], "label", "for how likely it is"),
        ("click_rate", [f"0.{one}1" for one in range(10, 90)], "dense", ""),
        ("target", [f"{one}.5" for one in range(10, 90)], "labels", "trained as a number"),
        ("item_id", [f"9.22{one}e18" for one in range(10, 90)], None, "beyond 2^53, where several"),
        ("time", [f"{one} o'clock" for one in range(300)], None, "is called a time, but \"0 o"),
    ],
)  # fmt: skip
def test_what_would_tell_the_answer_is_no_feature(
    tmp_path: Path, name: str, values: list[str], part: str | None, doubt: str
) -> None:
    lines = [f"{values[one % len(values)]},shop {one % 9}" for one in range(300)]
    path = text(tmp_path / "c.csv", f"{name},shop\n" + "\n".join(lines) + "\n")
    found = schema_of(path)
    parts = {
        key: [one if isinstance(one, str) else one["name"] for one in found["schema"].get(key, [])]
        for key in ("labels", "dense", "sparse")
    }
    parts["label"] = [found["schema"].get("label")]
    assert [key for key, names in parts.items() if name in names] == ([part] if part else [])
    assert any(doubt in one for one in found["doubts"]) or not doubt


def test_a_label_in_texts_is_not_said_to_look_like_none(tmp_path: Path) -> None:
    lines = [f"{('yes', 'no')[one % 2]},shop {one % 9}" for one in range(300)]
    found = schema_of(text(tmp_path / "c.csv", "clicked,shop\n" + "\n".join(lines) + "\n"))
    assert not any("no column looks like a label" in one for one in found["doubts"])
    assert any("'clicked' looks like a label in texts" in one for one in found["doubts"])


def test_an_import_says_how_much_its_vocabularies_do_not_know(tmp_path: Path) -> None:
    """Of the rows that they were not made of: those for testing, and of the next day's files."""
    rows = {"label": [0, 1] * 200, "at": [*range(400)], "item": [one // 10 for one in range(400)]}
    path = write(tmp_path / "1.parquet", pa.table(rows))
    schema = {"timestamp": "at", "timestamp_unit": "s", "session_id": None}
    schema |= {"sparse": [{"name": "item", "num_ids": 99, "ids": "vocabulary"}]}
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    options = ("--schema", file, "--split-by", "time", "--test-share", 0.25)
    told = recd("data", "import", path, tmp_path / "t", *options)
    assert "item: the vocabulary does not know 100% of its values of the test rows, which" in told
    again = tmp_path / "t" / "schema.yaml"
    told = recd("data", "import", path, tmp_path / "next", "--schema", again)
    assert "item: the vocabulary does not know 25% of its values, which share" in told
    told = recd("data", "import", path, tmp_path / "all", "--schema", file)
    assert "does not know" not in told


def test_values_that_num_ids_cut_are_no_news_of_the_test_rows(tmp_path: Path) -> None:
    """A long tail has as large a share of the train rows."""
    items = [one % 30 if one % 5 < 3 else one for one in range(1_000)]
    rows = {"label": [0, 1] * 500, "user": [*range(1_000)], "item": items}
    path = write(tmp_path / "1.parquet", pa.table(rows))
    schema = {"timestamp": None, "session_id": None}
    schema |= {"sparse": [{"name": "item", "num_ids": 19, "ids": "vocabulary"}]}
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    told = recd("data", "import", path, tmp_path / "t", "--schema", file, "--split-by", "hash:user")
    assert "values have no id of their own" in told
    assert "does not know" not in told
    again = tmp_path / "t" / "schema.yaml"
    told = recd("data", "import", path, tmp_path / "next", "--schema", again)
    assert "does not know 40% of its values, which" in told
    assert "or such as num_ids or --least-count left out" in " ".join(told.split())


def test_small_files_and_row_groups_are_sampled_enough(tmp_path: Path) -> None:
    rows = clicks(2_000)
    tiny = write(tmp_path / "tiny.parquet", rows, row_group_size=1)
    found = surveys.survey(foreign_files([tiny]))
    assert (found.rows, found.sampled) == (2_000, 15 * 64 + 1)
    items = "sparse: [{name: item_id, num_ids: 1000060}]"
    columns = f"{{timestamp: null, session_id: null, label: clicked, {items}}}"
    file = text(tmp_path / "schema.yaml", columns)
    init = ("init", tiny, "--test", tiny, "--schema", file, "--out", tmp_path / "registry.yaml")
    assert "note: 2,000 stripes (row groups) of 1 row: each is read" in recd(*init)
    (tmp_path / "many").mkdir()
    for number in range(100):
        write(tmp_path / "many" / f"{number}.csv", rows.slice(number * 20, 20))
    assert surveys.survey(foreign_files([tmp_path / "many"])).sampled == 64 * 20
    few = write(tmp_path / "few.parquet", rows, row_group_size=100)
    assert surveys.survey(foreign_files([few])).sampled <= 2_000


def test_tabs_and_doubled_quotes_within_quotes_that_tabs_part(tmp_path: Path) -> None:
    texts = ['he said ""yes"" to it', "a\tb", "plain"]
    for chosen in (texts, texts[:1]):
        lines = [f'{one % 2}\t"{chosen[one % len(chosen)]}"\t{one % 7}' for one in range(90)]
        path = text(tmp_path / "c.tsv", "label\tquery\titem\n" + "\n".join(lines) + "\n")
        (block,) = blocks(foreign_files([path]), ["query"])
        read = block.rows(["query"], surveys.survey(foreign_files([path])).read_as)["query"]
        wanted = [chosen[one % len(chosen)].replace('""', '"') for one in range(90)]
        assert read.to_pylist() == wanted


def test_a_registry_of_files_in_place_is_written_once_vocabularies_are_counted(
    tmp_path: Path,
) -> None:
    """`recd train` refused it, when all ranks had started."""
    path = write(tmp_path / "a b.parquet", clicks(200))
    schema: dict[str, Any] = {"timestamp": None, "session_id": None, "label": "clicked"}
    schema["sparse"] = [{"name": "item_id", "num_ids": 300, "ids": "vocabulary"}]
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    out = tmp_path / "registry.yaml"
    init = ("init", path, "--test", path, "--schema", file, "--out", out)
    refused = recd(*init, fails=2)
    assert "schema.yaml: `ids: vocabulary` of item_id names no vocabulary" in refused
    assert not out.exists()
    printed = refused[refused.index("recd data vocabulary ") : refused.index("; and write")]
    command = shlex.split(printed)[1:]
    saved = tmp_path / "1.parquet"
    recd(*[saved if one == "1.parquet" else one for one in command])
    schema["sparse"][0]["vocabulary"] = str(saved)
    text(file, json.dumps(schema))
    recd(*init)
    assert out.exists()
