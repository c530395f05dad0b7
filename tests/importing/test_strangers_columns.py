"""Value tests: columns as other writers have them, proposed and imported as what they are."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from imported_tables import recd as called
from imported_tables import rows_both_ways, rows_of, schema_file
from strangers_files import text, write
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.conform.values import is_list
from recd_plugins.data.importing.column_types import ColumnTypes
from recd_plugins.data.importing.reading import blocks
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError

ROWS = 600
DRAW = np.random.default_rng(0)
IDS = [int(one) for one in DRAW.zipf(1.4, ROWS) % 200]


def recd(*words: object) -> str:
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


def imported(folder: Path, column: pa.Array, name: str = "x") -> tuple[Any, list[Any], list[str]]:
    """What is proposed of a column, what an import makes of it, and the doubts."""
    label = pa.array(DRAW.integers(0, 2, len(column)))
    path = folder / "a.parquet"
    pq.write_table(pa.table({"clicked": label, name: column}), path)
    found = json.loads(recd("data", "schema", path, "--json"))
    schema = found["schema"]
    file = text(folder / "schema.yaml", json.dumps(schema))
    recd("data", "import", path, folder / "t", "--schema", file)
    opened = Table.open(folder / "t")
    rows = pa.concat_tables(opened.read(stripe) for stripe in opened.stripes)
    entries = [*schema.get("dense", []), *schema.get("sparse", [])]
    return entries[0] if entries else {}, rows[name].to_pylist() if entries else [], found["doubts"]


def kept(found: list[list[int]], values: list[Any]) -> bool:
    """Whether each value has an id, and no two have one."""
    pairs = {(one, value) for (one,), value in zip(found, values, strict=True)}
    return len(pairs) == len({*values}) == len({one for one, _ in pairs})


@pytest.mark.parametrize("more", [0, 2**62, 2**63])
def test_decimals_of_warehouses_are_integers(tmp_path: Path, more: int) -> None:
    """NUMBER(38), of which no float holds each beyond 2^53."""
    values = [Decimal(one + more) for one in IDS]
    entry, found, _ = imported(tmp_path, pa.array(values, pa.decimal128(38, 0)), "item_id")
    assert entry["num_ids"] >= len({*values})
    assert kept(found, values)


def test_decimals_with_places_are_numbers(tmp_path: Path) -> None:
    prices = [Decimal(one) / 4 for one in IDS]
    entry, found, _ = imported(tmp_path, pa.array(prices, pa.decimal128(10, 2)))
    assert entry == "x"
    assert found == [float(one) for one in prices]


def test_bytes_that_are_texts_have_a_vocabulary(tmp_path: Path) -> None:
    """As Impala and old Sparks write their strings; other bytes are hashed, far apart."""
    values = [f"shop {one % 9}".encode() for one in IDS]
    entry, found, _ = imported(tmp_path, pa.array(values))
    assert entry["ids"] == "vocabulary"
    assert kept(found, values)
    (tmp_path / "keys").mkdir()
    keys = [one.to_bytes(16, "big") for one in IDS]
    entry, found, _ = imported(tmp_path / "keys", pa.array(keys, pa.binary(16)))
    assert (entry["ids"], entry["num_ids"] >= 10 * len({*keys})) == ("hash", True)


def test_vectors_of_half_floats_and_such_with_gaps(tmp_path: Path) -> None:
    vectors = DRAW.random((ROWS, 4)).astype(np.float16)
    entry, found, _ = imported(tmp_path, pa.array([*vectors], pa.list_(pa.float16(), 4)))
    assert entry == {"name": "x", "width": 4}
    assert np.array_equal(found, vectors.astype(np.float32))
    (tmp_path / "gaps").mkdir()
    vectors = vectors.astype(np.float64)
    vectors[::50, 1] = np.nan
    entry, found, doubts = imported(tmp_path / "gaps", pa.array([*vectors]))
    assert entry["nulls"] == {"value": 0}
    assert doubts == ["x: 12 of the numbers of its lists lack: 0 stands for them"]
    assert np.array_equal(found, np.nan_to_num(vectors).astype(np.float32))


def test_lists_of_a_dictionary_and_fields_of_objects_in_lists_of_one_length(tmp_path: Path) -> None:
    words = [["a", f"b{one % 3}"] for one in IDS]
    kind = pa.list_(pa.dictionary(pa.int32(), pa.string()))
    entry, found, _ = imported(tmp_path, pa.array(words).cast(kind))
    assert entry == {"name": "x", "num_ids": 15, "ids": "vocabulary", "sequence": True}
    assert len({tuple(one) for one in found}) == 3
    pairs = [[{"id": one, "at": "b"}] * 2 for one in IDS]
    kind = pa.list_(pa.struct([("id", pa.int64()), ("at", pa.string())]), 2)
    pq.write_table(pa.table({"x": pa.array(pairs, kind)}), tmp_path / "b.parquet")
    (file,) = foreign_files([tmp_path / "b.parquet"])
    (block,) = blocks([file], ["x.id"])
    assert block.rows(["x.id"], ColumnTypes())["x.id"].to_pylist() == [[one] * 2 for one in IDS]


@pytest.mark.parametrize(
    ("later", "zone", "time"),
    [(0, None, "rated"), (0, "America/New_York", "rated"), (40, None, "day")],
)
def test_a_day_is_not_taken_for_the_time_where_there_are_times_of_these_days(
    tmp_path: Path, later: int, zone: str | None, time: str
) -> None:
    """Times of other days may be of anything, such as of when an account was made."""
    times = [datetime(2024, 5, 1) + timedelta(hours=7 * n) for n in range(60)]
    rated = [one + timedelta(days=later) for one in times]
    rows = {
        "day": pa.array([one.date() for one in times]),
        "rated": pa.array(rated, pa.timestamp("us", tz=zone)),
        "none": pa.nulls(60, pa.timestamp("us")),
        "label": [n % 2 for n in range(60)],
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    assert yaml.safe_load(recd("data", "schema", tmp_path))["timestamp"] == time


@pytest.mark.parametrize("name", ["ga_session_number", "visit"])
def test_sessions_that_are_numbered_anew_for_each_user_are_of_both_columns(
    tmp_path: Path, name: str
) -> None:
    rows = 2000
    users, sessions = np.repeat(np.arange(100), 20), np.arange(rows) // 10 % 2 + 1
    columns = {"user_id": users, "item_id": DRAW.integers(0, 50, rows)}
    clicked, path = DRAW.integers(0, 2, rows), tmp_path / "a.parquet"
    pq.write_table(pa.table({**columns, name: sessions, "clicked": clicked}), path)
    found = json.loads(recd("data", "schema", path, "--json"))
    assert found["schema"]["session_id"] == ["user_id", name]
    assert any(one.startswith(f"{name}: has far fewer different values") for one in found["doubts"])
    recd("data", "import", path, tmp_path / "t")
    opened = Table.open(tmp_path / "t")
    assert opened.schema.session_id is not None
    made = pa.concat_tables(opened.each_read([opened.schema.session_id]))[0].to_numpy()
    assert [*map(len, np.split(made, np.flatnonzero(np.diff(made)) + 1))] == [10] * 200
    assert len({*made.tolist()}) == 200
    pq.write_table(pa.table({**columns, name: 2 * users + sessions, "clicked": clicked}), path)
    assert json.loads(recd("data", "schema", path, "--json"))["schema"]["session_id"] == name


def test_what_a_schema_names_by_default_alone_is_told_how_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": [0, 1], "item": [-3, 4]}), path)
    for options, says in (
        ({}, "write `session_id: null` in the schema"),
        ({"session_id": None}, "write `timestamp: null` in the schema"),
        ({"session_id": None, "timestamp": None}, "`missing: [-3]` leaves out one that stands"),
    ):
        sparse = [{"name": "item", "num_ids": 10}]
        schema = {**options, "label": "label", "sparse": sparse}
        file = text(tmp_path / "schema.yaml", json.dumps(schema))
        for command in (["import", path, tmp_path / "t"], ["check", path]):
            arguments = [*map(str, ["data", *command, "--schema", file])]
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code
            assert says in " ".join(result.output.split())


def test_a_column_of_nulls_alone_is_no_feature(tmp_path: Path) -> None:
    entry, _, doubts = imported(tmp_path, pa.nulls(ROWS))
    assert entry == {}
    assert "x: no value in the sample" in doubts


HISTORIES = [DRAW.integers(1, 300, DRAW.integers(0, 11)).tolist() for _ in range(ROWS)]


def filled(value: Any, *, left: bool) -> list[list[Any]]:
    """The histories, filled up to ten."""
    return [
        [value] * (10 - len(one)) + one if left else one + [value] * (10 - len(one))
        for one in HISTORIES
    ]


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, pa.int64()),
        (-1, pa.int32()),
        (2**31 - 1, pa.int64()),
        (2**64 - 1, pa.uint64()),
        ("", pa.string()),
        ("<pad>", pa.large_string()),
    ],
)
def test_what_fills_lists_up_to_one_length_is_no_id(
    tmp_path: Path, value: Any, kind: pa.DataType, left: bool
) -> None:
    lists = filled(value, left=left)
    if isinstance(value, str):
        lists = [[str(one) for one in each] for each in lists]
    entry, found, doubts = imported(tmp_path, pa.array(lists, pa.list_(kind)))
    assert entry["missing"] == [str(value) if value == 2**64 - 1 else value]
    assert f"x: {value!r} is taken for what fills its lists up, and left out of them" in doubts
    assert [*map(len, found)] == [*map(len, HISTORIES)]
    if not isinstance(value, str):
        assert found == HISTORIES
        assert entry["num_ids"] == 300


@pytest.mark.parametrize(
    "lists",
    [
        [one[::-1] + one for one in filled(0, left=True)],  # amid others
        np.cumsum(DRAW.random((ROWS, 10)) < 0.2, axis=1).tolist(),  # counts that add up
        [[0] * (one % 2) + [one % 7 + 1] * (9 - one % 2) for one in IDS],  # once at most
        HISTORIES,
    ],
)
def test_what_may_be_an_id_stays(tmp_path: Path, lists: list[list[int]]) -> None:
    entry, found, _ = imported(tmp_path, pa.array(lists, pa.list_(pa.int64())))
    assert "missing" not in entry
    assert found == lists


def test_the_largest_integer_of_its_type_gets_a_doubt(tmp_path: Path) -> None:
    values = [one if one % 5 else 2**31 - 1 for one in IDS]
    _, found, doubts = imported(tmp_path, pa.array(values), "item_id")
    assert "item_id: 2147483647, which may mean that there is none, has an id of its own" in doubts
    assert kept(found, values)


PARTS = {"clicked": pa.array(DRAW.integers(0, 2, ROWS)), "item_id": pa.array(IDS)}
TIMES = pa.array([1_714_521_600_000 + one * 60_000 for one in range(ROWS)], pa.timestamp("ms"))
PAIRED = [[one, one] for one in IDS]
FLAGS = [one % 2 for one in IDS]


@pytest.mark.parametrize(
    ("first", "second", "made"),
    [
        (pa.array(PAIRED), pa.array(IDS), PAIRED + [[one] for one in IDS]),
        (TIMES, TIMES.cast(pa.timestamp("ns", "Asia/Tokyo")), None),
        (pa.array(FLAGS), pa.array(FLAGS).cast(pa.bool_()), FLAGS * 2),
        (pa.nulls(ROWS), pa.array([f"c{one}" for one in IDS]), None),
    ],
)  # fmt: skip
def test_files_may_differ_in_the_types_of_a_column(
    tmp_path: Path, first: pa.Array, second: pa.Array, made: list[Any] | None
) -> None:
    (tmp_path / "log").mkdir()
    for number, column in enumerate((first, second)):
        pq.write_table(pa.table({**PARTS, "x_at": column}), tmp_path / "log" / f"{number}.parquet")
    found = json.loads(recd("data", "schema", tmp_path / "log", "--json"))
    schema = text(tmp_path / "schema.yaml", json.dumps(found["schema"]))
    recd("data", "import", tmp_path / "log", tmp_path / "t", "--schema", schema)
    opened = Table.open(tmp_path / "t")
    rows = pa.concat_tables(opened.read(stripe) for stripe in opened.stripes)
    assert rows.num_rows == 2 * ROWS
    if pa.types.is_timestamp(second.type):
        assert found["schema"]["timestamp"] == "x_at"
        assert rows["x_at"].to_pylist() == TIMES.cast(pa.int64()).to_pylist() * 2
    if made is not None:
        assert rows["x_at"].to_pylist() == made


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array(IDS), pa.array([[f"c{one}"] for one in IDS])),
        (pa.array([one % 2 > 0 for one in IDS]), pa.array(PAIRED)),
        (pa.array([f"c{one}".encode() for one in IDS]), pa.array(PAIRED, pa.list_(pa.int16(), 2))),
        (pa.array(IDS), pa.array([one.to_bytes(16, "big") for one in IDS], pa.binary(16))),
    ],
)
def test_an_import_takes_the_types_that_check_takes_and_no_common_one(
    tmp_path: Path, first: pa.Array, second: pa.Array
) -> None:
    """Each file conforms by itself: check passed them, and the import refused them."""
    made, alone = tmp_path / "log", []
    made.mkdir()
    feature = {"name": "x", "num_ids": 100_000, "ids": "hash"}
    schema = {"label": "clicked", "sparse": [feature]}
    for number, column in enumerate((first, second)):
        path = made / f"{number}.parquet"
        pq.write_table(pa.table({"clicked": PARTS["clicked"], "x": column}), path)
        alone += rows_both_ways(path, schema, tmp_path / str(number))
    assert rows_both_ways(made, schema, tmp_path / "t") == alone
    saved = tmp_path / "x.parquet"
    if not pa.types.is_fixed_size_binary(second.type):  # which no vocabulary spells
        recd("data", "vocabulary", made, "--column", "x", "--save", saved)
        assert pq.read_metadata(saved).num_rows > 2


def files_with(folder: Path, *columns: pa.Array) -> dict[str, Any]:
    """What is proposed for files whose column x is these, and imported by it."""
    (folder / "log").mkdir()
    for number, column in enumerate(columns):
        table = pa.table({**PARTS, "x": column})
        pq.write_table(table, folder / "log" / f"{number}.parquet", store_schema=number > 0)
    recd("data", "import", folder / "log", folder / "t", "--accept-doubts")
    found: dict[str, Any] = json.loads(recd("data", "schema", folder / "log", "--json"))
    return found


def test_lists_of_integers_in_one_file_and_of_texts_in_another_have_one_vocabulary(
    tmp_path: Path,
) -> None:
    """No schema was proposed, since files disagreed."""
    texts = pa.array([[str(one) for one in row] for row in PAIRED])
    found = files_with(tmp_path, texts, pa.array(PAIRED, pa.list_(pa.int16(), 2)), pa.array(IDS))
    entry = next(one for one in found["schema"]["sparse"] if one["name"] == "x")
    assert entry["ids"] == "vocabulary"
    made = rows_of(tmp_path / "t")["x"].to_pylist()
    assert made[:ROWS] == made[ROWS : 2 * ROWS]
    assert [row[:1] for row in made[:ROWS]] == made[2 * ROWS :]


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("us")], ids=str)
def test_a_type_of_one_file_that_is_no_id_leaves_the_column_out(
    tmp_path: Path, kind: pa.DataType
) -> None:
    """A schema was proposed that no import took: its column was ids, since they can be written."""
    found = files_with(tmp_path, pa.array(IDS), pa.array(IDS, kind))
    assert "x" not in [one["name"] for one in found["schema"]["sparse"]]
    left = f"x: is int64 in some files and {kind} in others, and ids are integers or texts"
    assert left in recd("data", "schema", tmp_path / "log")


@pytest.mark.parametrize("first", [pa.int8(), pa.int64(), pa.float16(), pa.bool_()], ids=str)
@pytest.mark.parametrize("places", [0, 2])
def test_decimals_beside_other_numbers_are_numbers(
    tmp_path: Path, first: pa.DataType, places: int
) -> None:
    """Arrow has no common type of these, and labels and prices became texts."""
    flags_ = [one % 2 for one in range(ROWS)]
    decimals = pa.array(flags_).cast(pa.decimal128(21, places))
    (tmp_path / "log").mkdir()
    for number, column in enumerate((pa.array(flags_).cast(first), decimals)):
        table = pa.table({"item_id": PARTS["item_id"], "clicked": column})
        pq.write_table(table, tmp_path / "log" / f"{number}.parquet")
    recd("data", "import", tmp_path / "log", tmp_path / "t")
    assert rows_of(tmp_path / "t")["clicked"].to_pylist() == flags_ * 2


def test_integers_and_texts_of_them_are_no_session(tmp_path: Path) -> None:
    """One is taken as it is and the other hashed, so each session would be two."""
    visits = [1_000_000 + one // 4 for one in range(ROWS)]
    (tmp_path / "log").mkdir()
    for number, column in enumerate((pa.array(visits), pa.array(map(str, visits)))):
        table = pa.table({**PARTS, "session_id": column})
        pq.write_table(table, tmp_path / "log" / f"{number}.parquet")
    found = json.loads(recd("data", "schema", tmp_path / "log", "--json"))
    assert found["schema"]["session_id"] is None
    assert any("'session_id' has several types" in one for one in found["doubts"])


@pytest.mark.parametrize("second", ["ts", "event_time", "cat_id", "category"])
def test_what_is_called_an_id_or_a_time_is_no_weight(tmp_path: Path, second: str) -> None:
    """Of pairs the second was the weight, so that embeddings were multiplied by seconds since
    1970."""
    pairs = [[{"item_id": one, second: 1_700_000_000 + one}] for one in IDS]
    left = f"hist: lists of `item_id` with `{second}`, which is no weight: write a list of each"
    pq.write_table(pa.table({**PARTS, "hist": pairs}), tmp_path / "a.parquet")
    lines = [json.dumps({"clicked": at % 2, "hist": one}) for at, one in enumerate(pairs)]
    for file in (tmp_path / "a.parquet", text(tmp_path / "a.jsonl", "\n".join(lines))):
        said = recd("data", "schema", file)
        assert left in said
        assert "scored" not in said


@pytest.mark.parametrize("second", ["weight", "item_score", "price"])
def test_what_is_taken_for_a_weight_is_named(tmp_path: Path, second: str) -> None:
    pairs = [[{"id": one, second: one / 4}] for one in IDS]
    pq.write_table(pa.table({**PARTS, "hist": pairs}), tmp_path / "a.parquet")
    said = recd("data", "schema", tmp_path / "a.parquet")
    assert "scored: true" in said
    doubt = f"`{second}` is taken for the weight of each `id`: if it is none, write a list of each"
    assert (doubt in said) == (second != "weight")


@pytest.mark.parametrize("name", ["created_at", "session_id"])
@pytest.mark.parametrize(("lacking", "stops"), [(0.05, False), (0.6, True)])
def test_an_import_stops_before_it_leaves_many_rows_out(
    tmp_path: Path, name: str, lacking: float, stops: bool
) -> None:
    """More than half of the rows were left out for a time that nothing asked for."""
    at = [None if one % 100 < 100 * lacking else 1_700_000_000 + one // 3 for one in range(ROWS)]
    pq.write_table(pa.table({**PARTS, name: at}), tmp_path / "a.parquet")
    said = called("data", "import", tmp_path / "a.parquet", tmp_path / "t", fails=2 if stops else 0)
    doubt = f"{name}: {lacking:.1%} of its rows are empty, and would be left out: write null in"
    assert (doubt in said) == stops
    assert (tmp_path / "t").exists() == (not stops)
    assert "rows without" in called(
        "data", "import", tmp_path / "a.parquet", tmp_path / "u", "--accept-doubts"
    )


@pytest.mark.parametrize("key", [pa.int64(), pa.string()], ids=str)
def test_a_map_has_no_names_to_ask_about(tmp_path: Path, key: pa.DataType) -> None:
    maps = [[(one, 0.5)] for one in pa.array(IDS).cast(key).to_pylist()]
    column = pa.array(maps, pa.map_(key, pa.float32()))
    pq.write_table(pa.table({**PARTS, "hist": column}), tmp_path / "a.parquet")
    assert "scored: true" in recd("data", "schema", tmp_path / "a.parquet")


def test_integers_that_no_64_bits_hold_are_left_out_as_such(tmp_path: Path) -> None:
    """All were 1e+30 to the survey: the same value in every row."""
    wide = pa.array([Decimal(10**30 + one) for one in IDS], pa.decimal128(38, 0))
    for column in (wide, pa.array([[one] for one in wide.to_pylist()], pa.list_(wide.type))):
        pq.write_table(pa.table({**PARTS, "key": column}), tmp_path / "a.parquet")
        said = recd("data", "schema", tmp_path / "a.parquet")
        assert "key: integers of more than 64 bits: write them as texts" in said


DAYS = [f"2024-03-{one % 9 + 1:02}" for one in IDS]


@pytest.mark.parametrize("name", ["day.csv", "day.jsonl"])
def test_dates_of_text_that_are_ids_are_texts_whatever_stands_in_other_rows(
    tmp_path: Path, name: str
) -> None:
    """Where all were dates they were refused, and a vocabulary of them ended in a traceback."""
    feature: dict[str, Any] = {"name": "day", "num_ids": 100_000, "ids": "hash"}
    made = []
    for number, more in enumerate(([], ["unknown"])):
        days = pa.array(DAYS + more)
        file = write(tmp_path / f"{number}-{name}", pa.table({"clicked": flags(days), "day": days}))
        for ids in ("hash", "vocabulary"):
            schema = {"label": "clicked", "sparse": [{**feature, "ids": ids}]}
            path = schema_file(schema, tmp_path / f"{number}-{ids}")
            assert "no problem" in called("data", "check", file, "--schema", path)
            called("data", "import", file, path.with_suffix(""), "--schema", path)
        made.append(rows_of(tmp_path / f"{number}-hash")["day"].to_pylist())
        called(
            "data", "vocabulary", file, "--column", "day", "--save", tmp_path / f"{number}.parquet"
        )
        assert {*DAYS} <= {*pq.read_table(tmp_path / f"{number}.parquet")["value"].to_pylist()}
    assert made[0] == made[1][: len(DAYS)]
    assert kept(made[0], DAYS)


def flags(like: pa.Array) -> pa.Array:
    return pa.array([one % 2 for one in range(len(like))])


@pytest.mark.parametrize("how", ["csv", "jsonl", "date32", "timestamp", "folders"])
@pytest.mark.parametrize("timed", [False, True])
def test_a_user_and_a_day_make_a_session_together(tmp_path: Path, how: str, timed: bool) -> None:
    """As the comment of a schema advises: a day of text, of Parquet or of folders was refused."""
    days = pa.array(DAYS).cast(pa.date32())
    table = pa.table({"clicked": flags(days), "item_id": IDS, "user": [one % 5 for one in IDS]})
    log = tmp_path / "log"
    log.mkdir()
    if how == "folders":
        for day in pc.unique(days).to_pylist():
            (log / f"day={day}").mkdir()
            pq.write_table(table.filter(pc.equal(days, day)), log / f"day={day}" / "a.parquet")
        parts = [table.filter(pc.equal(days, day)) for day in sorted({*days.to_pylist()})]
        users = pa.concat_tables(parts)["user"].to_pylist()
        pairs = [*zip(users, sorted(DAYS), strict=True)]
    else:
        kinds = {"date32": pa.date32(), "timestamp": pa.timestamp("ms", "UTC")}
        column = days.cast(kinds[how]) if how in kinds else pa.array(DAYS)
        suffix = how if how in ("csv", "jsonl") else "parquet"
        write(log / f"a.{suffix}", table.append_column("day", column))
        pairs = [*zip(table["user"].to_pylist(), DAYS, strict=True)]
    schema: dict[str, Any] = {"session_id": ["user", "day"], "label": "clicked"}
    schema |= {"timestamp": "day", "timestamp_unit": "yyyy-mm-dd"} if timed else {}
    schema["sparse"] = [{"name": "item_id", "num_ids": 200}]
    file = schema_file(schema, tmp_path / "t")
    assert "no problem" in called("data", "check", log, "--schema", file)
    called("data", "import", log, tmp_path / "t", "--schema", file)
    sessions = rows_of(tmp_path / "t")["session_id"].to_pylist()
    assert len({*zip(sessions, pairs, strict=True)}) == len({*sessions}) == len({*pairs})


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("ms", "UTC"), pa.time64("us")])
def test_a_vocabulary_of_what_is_no_id_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    """It ended in a traceback."""
    days = pa.array(IDS, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"clicked": flags(days), "day": days}), path)
    feature = {"name": "day", "num_ids": 100, "ids": "vocabulary"}
    file = schema_file({"label": "clicked", "sparse": [feature]}, tmp_path / "t")
    done = called("data", "import", path, tmp_path / "t", "--schema", file, fails=2)
    told = f"column 'day' is {kind}, but ids are integers or texts"
    assert told in " ".join(done.split())
    done = called("data", "vocabulary", path, "--column", "day", "--save", tmp_path / "v", fails=2)
    told = f"column 'day' holds {kind}, but ids are integers or texts"
    assert told in " ".join(done.split())


def test_bytes_that_no_vocabulary_spells_do_not_check_clean(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    keys = pa.array([one.to_bytes(2, "big") + b"\xff" for one in IDS])
    pq.write_table(pa.table({"clicked": flags(keys), "x": keys}), path)
    feature = {"name": "x", "num_ids": 100, "ids": "vocabulary"}
    file = schema_file({"label": "clicked", "sparse": [feature]}, tmp_path / "t")
    told = "column 'x' holds bytes that are no UTF-8, which a vocabulary cannot hold"
    assert told in " ".join(called("data", "check", path, "--schema", file, fails=1).split())
    done = called("data", "import", path, tmp_path / "t", "--schema", file, fails=2)
    assert told in " ".join(done.split())


def test_parts_of_a_header_alone_hold_no_rows(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    rows = "".join(f"{one % 2},{one % 50}\n" for one in range(100))
    for name, content in {"a": "", "b": rows, "c": "", "d": rows}.items():
        text(tmp_path / "log" / f"{name}.csv", f"clicked,item_id\n{content}")
    recd("data", "import", tmp_path / "log", tmp_path / "t")
    assert Table.open(tmp_path / "t").num_rows == 200
    result = CliRunner().invoke(app, ["data", "schema", str(tmp_path / "log" / "a.csv")])
    assert (result.exit_code, "a.csv: holds no rows" in result.stderr) == (2, True)
    pq.write_table(pa.table(PARTS).slice(0, 0), tmp_path / "none.parquet")
    result = CliRunner().invoke(app, ["data", "schema", str(tmp_path / "none.parquet")])
    assert (result.exit_code, "none.parquet: holds no rows" in result.stderr) == (2, True)


def test_all_files_that_cannot_be_read_are_told_at_once(tmp_path: Path) -> None:
    for number in range(20):
        text(tmp_path / f"{number:02}.csv", "a,b\n1,2\n" if number % 2 else "")
    with pytest.raises(DataError, match="10 files cannot be read; the first of them:") as told:
        foreign_files([tmp_path])
    assert str(told.value).count("the file is empty. Take it out") == 10


def vectors(draw: Any) -> list[list[Any]]:
    rows: list[list[Any]] = draw.tolist()
    return rows


@pytest.mark.parametrize(
    ("lists", "part", "settle"),
    [
        (vectors(DRAW.integers(0, 2, (ROWS, 9))), "dense", ""),  # one flag for each of nine
        (vectors(DRAW.integers(0, 2, (ROWS, 9)) > 0), "dense", ""),
        (vectors(DRAW.poisson(3, (ROWS, 7))), "sparse", "a vector goes under `dense`, with `width"),
        (vectors(DRAW.poisson(3, (ROWS, 7)) * 1.0), "dense", "Taken for a vector; ids go under"),
        (vectors(DRAW.permutation(900)[DRAW.zipf(1.3, (ROWS, 7)) % 900]), "sparse", ""),
        ([[1.0 * one for one in each] for each in HISTORIES], "sparse", ""),
        ([[one % 2 > 0 for one in each] for each in HISTORIES], "", ""),
    ],
)
def test_vectors_and_ids_in_lists(
    tmp_path: Path, lists: list[list[Any]], part: str, settle: str
) -> None:
    """What may be either stops an import that nobody settled."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({**PARTS, "x": lists}), path)
    found = json.loads(recd("data", "schema", path, "--json"))
    names = {
        key: [one if isinstance(one, str) else one["name"] for one in found["schema"].get(key, [])]
        for key in ("dense", "sparse")
    }
    assert [key for key in names if "x" in names[key]] == ([part] if part else [])
    assert [settle in one for one in found["to_settle"]] == ([True] if settle else [])
    schema = text(tmp_path / "schema.yaml", json.dumps(found["schema"]))
    recd("data", "import", path, tmp_path / "t", "--schema", schema)


@pytest.mark.parametrize("command", ["schema", "check", "import"])
def test_a_page_that_is_not_as_it_was_written_is_damaged(tmp_path: Path, command: str) -> None:
    """By its checksum, which parquet-mr writes by itself: its values could be read."""
    path = tmp_path / "a.parquet"
    numbers = pa.array(np.arange(3_000) % 97)
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    table = pa.table({"clicked": numbers.cast(pa.int8()), "item_id": numbers})
    pq.write_table(table, path, write_page_checksum=True, **options)
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(20).tobytes()) + 80] ^= 1
    path.write_bytes(content)
    assert pq.read_table(path)["item_id"][10].as_py() == 11
    more = [str(tmp_path / "t")] if command == "import" else []
    result = CliRunner().invoke(app, ["data", command, str(path), *more])
    assert result.exit_code == (1 if command == "check" else 2), result.output
    assert "a.parquet, row group 0: cannot be read" in result.output
    assert "It was cut short or damaged" in result.output


@pytest.mark.parametrize(
    "column",
    [
        pa.array([f"c{one}" for one in IDS], pa.string_view()),
        pa.array([f"c{one}".encode() for one in IDS], pa.binary_view()),
        pa.array([[f"c{one}"] for one in IDS], pa.list_(pa.string_view())),
    ],
)
def test_views_are_what_they_are_of(tmp_path: Path, column: pa.Array) -> None:
    """Of which Arrow can neither filter nor take: by a split, and where rows are dropped."""
    whole = column.cast(pa.list_(pa.string()) if is_list(column.type) else pa.string())
    made = []
    for number, one in enumerate((column, whole)):
        price = pa.array([None if one % 7 == 0 else one / 2 for one in range(ROWS)])
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({**PARTS, "x": one, "price": price}), path)
        found = json.loads(recd("data", "schema", path, "--json"))["schema"]
        found["dense"] = [{"name": "price", "nulls": "drop"}]
        schema = text(tmp_path / "schema.yaml", json.dumps(found))
        table = tmp_path / f"t{number}"
        recd("data", "import", path, table, "--schema", schema, "--split-by", "hash:item_id")
        for split in ("train", "test"):
            opened = Table.open(table / split)
            made.append(pa.concat_tables(opened.read(stripe) for stripe in opened.stripes))
    assert made[:2] == made[2:]


def test_a_row_by_which_none_can_be_parted_is_named(tmp_path: Path) -> None:
    values = pa.array([None, *range(ROWS - 2), 1.5])
    pq.write_table(pa.table({**PARTS, "x": values}), tmp_path / "a.parquet", row_group_size=100)
    options = ["--split-by", "hash:x", "--accept-doubts"]
    arguments = ["data", "import", str(tmp_path / "a.parquet"), str(tmp_path / "t"), *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert (
        f"a.parquet: column 'x' is double and holds 1.5, which is no whole number, in row {ROWS}"
        in (" ".join(result.stderr.split()))
    )


@pytest.mark.parametrize(
    "column",
    [
        pa.array([Decimal(one + 2**62) for one in IDS], pa.decimal256(50, 0)),
        pa.array([Decimal(one) for one in IDS], pa.decimal128(38, 10)),
        pa.array([one + 2**63 for one in IDS], pa.uint64()),
        pa.array(IDS).dictionary_encode(),
        pa.array([[None, one] if one % 2 else None for one in IDS], pa.large_list(pa.int32())),
        pa.array([[one, 3] if one % 3 else None for one in IDS], pa.list_(pa.int16(), 2)),
        pa.array(np.array(IDS, np.float16)),
        pa.array([one % 2 > 0 for one in IDS]),
        pa.array([[f"c{one}"] for one in IDS], pa.list_(pa.string_view())),
        pa.array(
            [[(one, 0.5)] if one % 4 else None for one in IDS], pa.map_(pa.int16(), pa.float32())
        ),
    ],
)
def test_an_import_makes_what_is_read_in_place(tmp_path: Path, column: pa.Array) -> None:
    (tmp_path / "log").mkdir()
    table = pa.table({"clicked": PARTS["clicked"], "x": column})
    pq.write_table(table, tmp_path / "log" / "a.parquet", row_group_size=250)
    feature = {"name": "x", "num_ids": 100_000, "ids": "hash", "missing": [7]}
    feature |= {"scored": True} if pa.types.is_map(column.type) else {}
    schema = {"session_id": None, "timestamp": None, "label": "clicked", "sparse": [feature]}
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    recd("data", "import", tmp_path / "log", tmp_path / "t", "--schema", file)
    made = Table.open(tmp_path / "t")
    in_place = Table.open(tmp_path / "log", load_schema(file))
    first, second = (
        pa.concat_tables(one.read(stripe) for stripe in one.stripes).to_pylist()
        for one in (made, in_place)
    )
    assert first == second
