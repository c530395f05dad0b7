"""Value tests: what the columns of foreign files seem to be, and the schema that says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from imported_tables import recd
from strangers_files import PACKINGS, clicks, text, write
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import hashes
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.importing.proposing.column_names import named_after
from recd_plugins.data.importing.proposing.proposal import Proposal, propose
from recd_plugins.data.importing.schema_file import parsed
from recd_plugins.data.importing.surveying import sample as samples
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.table_import import TableImport
from recd_plugins.data.importing.text.text_lists import split_texts
from recd_plugins.data.table import Table


def proposed(path: Path) -> Proposal:
    return propose(survey(foreign_files([path])))


@pytest.mark.parametrize("name", [*(f"c.csv{one}" for one in PACKINGS), "c.jsonl", "c.parquet"])
def test_every_format_gets_the_same_schema(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, clicks(), PACKINGS.get(Path(name).suffix))
    assert proposed(path).schema == {
        "session_id": "visit",
        "timestamp": "at",
        "timestamp_unit": "s",
        "label": "clicked",
        "dense": [{"name": "price", "nulls": {"value": 0}}],
        "sparse": [
            {"name": "item_id", "num_ids": 67, "ids": "vocabulary"},
            {"name": "brand", "num_ids": 20, "ids": "vocabulary"},
        ],
    }


@pytest.mark.parametrize("odd", ["a\nlabel: b", "a\x1b[1m", "a\x85b", "a\u2028b", "a\r"])
def test_a_files_name_stays_in_its_comment(tmp_path: Path, odd: str) -> None:
    """Nothing of it is read as a line of the schema."""
    (tmp_path / odd).mkdir()
    plain = proposed(write(tmp_path / "clicks.csv", clicks())).schema
    found = proposed(write(tmp_path / odd / "clicks.csv", clicks()))
    assert found.schema == plain
    assert found.text.replace(str(tmp_path), "").isascii()


def test_what_a_column_is_stands_beside_it(tmp_path: Path) -> None:
    found = proposed(write(tmp_path / "clicks.csv", clicks()))
    assert "text separated by ',', a header" in found.text
    assert "# 400 rows, 400 of which were looked at; 6 columns" in found.text
    (brand,) = (line for line in found.text.splitlines() if "name: brand" in line)
    assert "texts; 9 different; as 'brand" in brand
    assert any("0 stands for them" in doubt for doubt in found.doubts)


COLUMNS = {
    "row": list(range(500)),  # the number of the row
    "user_id": [one % 90 for one in range(500)],
    "stars": [1 + one % 5 for one in range(500)],
    "day": [f"2024-03-{1 + one // 20:02}" for one in range(500)],
    "genres": ["|".join(["drama", "war", "noir"][: 1 + one % 3]) for one in range(500)],
    "basket": [f"[{one}, {one * 3}]" for one in range(500)],
    "title": [f"The story of film number {one}, retold by its director" for one in range(500)],
    "same": ["x"] * 500,
    "zip": [f"0{one % 200:04}" for one in range(500)],
    "age": ["NA" if one % 50 == 0 else str(20 + one % 40) for one in range(500)],
    "mean": [one / 7 for one in range(500)],
}


def test_columns_of_many_kinds(tmp_path: Path) -> None:
    found = proposed(write(tmp_path / "films.csv", pa.table(COLUMNS)))
    schema = found.schema
    assert (schema["session_id"], schema["timestamp"]) == (None, "day")
    assert "timestamp_unit" not in schema  # dates say what they are
    assert schema["labels"] == [{"name": "stars", "kind": "graded", "grades": 6}]
    dense = {one if isinstance(one, str) else one["name"] for one in schema["dense"]}
    assert dense == {"age", "mean"}
    sparse = {one["name"]: one for one in schema["sparse"]}
    assert sparse["user_id"] == {"name": "user_id", "num_ids": 90, "kind": "user"}
    assert sparse["genres"]["sequence"]
    assert sparse["basket"]["sequence"]
    assert sparse["zip"]["ids"] == "vocabulary"  # 00123 is no number
    left_out = found.text[found.text.index("# Left out") :]
    assert all(f"# - {name}: " in left_out for name in ("row", "title", "same"))


@pytest.mark.parametrize("count", [500, 200_000])
def test_numbers_of_rows_in_any_order_are_left_out(tmp_path: Path, count: int) -> None:
    """Not those of a wider range, which may be ids of something."""
    rows = np.arange(count)
    draw = np.random.default_rng(1)
    table = pa.table(
        {
            "label": rows % 2,
            "item_id": rows % 90,
            "row": draw.permutation(count),
            "row_id": rows[::-1] + 7,
            "other_id": draw.permutation(count * 2)[:count],
        }
    )
    found = proposed(write(tmp_path / "a.parquet", table))
    names = {one["name"] for one in found.schema["sparse"]}
    assert names == {"item_id", "other_id"}
    assert "# - row: another number in each row, as many as rows" in found.text
    assert "# - row_id: another number in each row, as many as rows" in found.text


def test_a_second_label_is_no_feature(tmp_path: Path) -> None:
    table = clicks().append_column("purchase", pa.array([0, 1] * 200))
    found = proposed(write(tmp_path / "c.parquet", table))
    assert found.schema["label"] == "clicked"
    assert "purchase: looks like another label" in found.text
    lonely = proposed(write(tmp_path / "d.csv", clicks().drop_columns(["clicked"])))
    assert "# doubt: no column looks like a label" in lonely.text


def test_numbers_of_lists_and_vectors(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    table = pa.table(
        {
            "y": [0, 1] * 100,
            "vector": pa.array(draw.random((200, 4)).tolist(), pa.list_(pa.float32())),
            "cart": pa.array(
                [[{"id": one, "weight": 0.5}] for one in range(200)],
                pa.list_(pa.struct([("id", pa.int64()), ("weight", pa.float32())])),
            ),
        }
    )
    schema = proposed(write(tmp_path / "t.parquet", table)).schema
    assert schema["dense"] == [{"name": "vector", "width": 4}]
    assert schema["sparse"] == [
        {"name": "cart", "num_ids": 100_000, "ids": "hash", "scored": True, "sequence": True}
    ]


def test_a_large_file_is_sampled_all_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of its end count, and how many rows there are is an estimate close to the truth."""
    monkeypatch.setattr(samples, "FIRST_BYTES", 4_096)
    monkeypatch.setattr(samples, "SPOT_BYTES", 2_048)
    rows = 40_000
    table = pa.table({"label": [0, 1] * (rows // 2), "item_id": [f"i{one}" for one in range(rows)]})
    found = survey(foreign_files([write(tmp_path / "c.csv", table)]))
    assert found.sampled < rows / 10
    assert abs(found.rows - rows) < 0.05 * rows
    assert not found.exact_rows


def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    path, out = write(tmp_path / "clicks.csv", clicks()), tmp_path / "new" / "schema.yaml"
    result = CliRunner().invoke(app, ["data", "schema", str(path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert f"{out}: 2 doubts, 0 to settle" in result.stderr
    shown = CliRunner().invoke(app, ["data", "schema", str(path), "--json"])
    assert json.loads(shown.stdout)["schema"] == yaml.safe_load(out.read_text())
    broken = CliRunner().invoke(app, ["data", "schema", str(text(tmp_path / "no", ""))])
    assert (broken.exit_code, "the file is empty" in broken.stderr) == (2, True)


def test_words_before_ids_are_no_ids_with_weights(tmp_path: Path) -> None:
    """As `ad:31`, of which the kind alone would be an id; ids of which a list has each once are."""
    draw = np.random.default_rng(0)
    shown = [
        [f"{draw.choice(['ad', 'video'])}:{n}" for n in draw.integers(0, 50, 6)] for _ in "x" * 99
    ]
    cart = [[f"{n}:{draw.integers(1, 9)}" for n in range(6)] for _ in shown]
    rated = [["ad:1.5", "ad:2", "ad:3.25", "ad:4"] for _ in shown]
    names = {"y": [0, 1, 1] * 33, "shown": shown, "cart": cart, "rated": rated}
    columns = {
        name: [one if name == "y" else "|".join(one) for one in made]
        for name, made in names.items()
    }
    found = proposed(write(tmp_path / "t.csv", pa.table(columns)))
    assert {one["name"]: one.get("scored", False) for one in found.schema["sparse"]} == {
        "shown": False,
        "cart": True,
        "rated": True,
    }
    assert found.schema["text"] == {"lists": {"shown": "|"}}


def test_requests_that_came_twice_have_keys_that_are_doubted(tmp_path: Path) -> None:
    keys = [f"r{n - n % 20 // 19}" for n in range(2_000)]
    table = pa.table(
        {"y": [0, 1] * 1_000, "rid": keys, "item": [f"i{n % 700}" for n in range(2_000)]}
    )
    found = proposed(write(tmp_path / "t.parquet", table))
    assert [one["name"] for one in found.schema["sparse"]] == ["rid", "item"]
    assert found.text.count("nearly another text in each row: leave it out") == 1


@pytest.mark.parametrize(("by", "delimiter"), [("|", ","), (" ", "\t"), (";", "\t"), ("|", "json")])
def test_ids_with_weights_in_text_are_scored_ids(tmp_path: Path, by: str, delimiter: str) -> None:
    """From text to a table; times of day are no such ids, nor are codes integers."""
    lists = [["3:0.5", "5:1"], [], ["7:2e-1"]]
    rows = [
        (click, by.join(cart), by.join(f"0{one}" for one in cart), clock)
        for click, cart, clock in zip((1, 0, 1), lists, ("12:30", "13:00", "09:15"), strict=True)
    ]
    names = ("y", "cart", "codes", "clock")
    if delimiter == "json":
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
        file = text(tmp_path / "t.jsonl", "\n".join(lines) + "\n")
    else:
        lines = [delimiter.join(map(str, row)) for row in [names, *rows]]
        file = text(tmp_path / "t.csv", "\n".join(lines) + "\n")
    schema = proposed(file).schema
    scored = {one["name"]: one.get("scored", False) for one in schema["sparse"]}
    assert scored == {"cart": True, "codes": True, "clock": False}

    found = survey(foreign_files([file]))
    asked = ForeignSchema(
        session_id=None,
        timestamp=None,
        label="y",
        sparse=tuple(
            ForeignFeature(name=name, num_ids=100, ids="hash", scored=True)
            for name in ("cart", "codes")
        ),
    )
    TableImport(found.files, tmp_path / "made", asked, found.read_as).run()
    table = Table.open(tmp_path / "made")
    made = table.read(table.stripes[0])
    assert made["cart_weights"].to_pylist() == [[0.5, 1.0], [], [float(np.float32(0.2))]]
    spot = Spot("", "")
    for name, kind in (("cart", pa.int64()), ("codes", pa.string())):
        assert found.read_as.types[name].value_type["id"].type == kind
        ids = (
            hashes(pa.array(["3", "5", "7"] if name == "cart" else ["03", "05", "07"]), spot) % 100
        )
        assert made[name].to_pylist() == [ids[:2].tolist(), [], ids[2:].tolist()]


@pytest.mark.parametrize("weight", ["{}", "{}.5", "code {}", "{}|3"])
def test_a_column_of_the_name_of_a_features_weights_is_left_out(
    tmp_path: Path, weight: str
) -> None:
    """Be it a sample weight by its name, or a feature."""
    rows = [f"{n % 2},{n % 7}:0.5|{n % 5}:1,{weight.format(n % 11)}" for n in range(200)]
    found = proposed(text(tmp_path / "t.csv", "\n".join(["y,cart,cart_weights", *rows]) + "\n"))
    schema, _ = parsed(found.schema, "schema")
    assert schema.columns == ("y", "cart")
    assert "# - cart_weights: a table has the weights of 'cart' under this name" in found.text


def test_parentheses_belong_to_an_element_unless_commas_part_it() -> None:
    """As MovieLens has "(no genres listed)": it is one value wherever it stands."""
    texts = pa.chunked_array([["(none)|Drama", "Drama|(none)", "(none)", "[a|b]"]])
    found = split_texts(texts, "|", pa.list_(pa.string())).to_pylist()
    assert found == [["(none)", "Drama"], ["Drama", "(none)"], ["(none)"], ["a", "b"]]
    numbers = pa.chunked_array([["(3, 5)", "[3,5]"]])
    assert split_texts(numbers, ",", pa.list_(pa.int64())).to_pylist() == [[3, 5]] * 2


@pytest.mark.parametrize("kind", [pa.decimal32(7, 0), pa.decimal64(12, 1)])
@pytest.mark.parametrize("lists", [False, True])
def test_decimals_of_few_bits_are_numbers(tmp_path: Path, kind: pa.DataType, lists: bool) -> None:
    numbers = pa.array([one % 7 for one in range(50)]).cast(pa.decimal128(20, 0)).cast(kind)
    if lists:
        numbers = pa.ListArray.from_arrays(pa.array(range(51), pa.int32()), numbers)
    path = write(tmp_path / "a.parquet", pa.table({"label": [0, 1] * 25, "n": numbers}))
    (found,) = (one for one in survey(foreign_files([path])).columns if one.name == "n")
    assert (found.rows, found.distinct, found.is_list) == (50, 7, lists)


@pytest.mark.parametrize("of", [pa.list_, pa.list_view, pa.large_list_view])
def test_bytes_in_views_that_are_no_text_are_surveyed(tmp_path: Path, of: Any) -> None:
    blobs = pa.array([[b"\xff\0", None], None, [], [b"\xfe"]] * 10, of(pa.binary_view()))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": [0, 1] * 20, "blobs": blobs}), path)
    (found,) = (one for one in survey(foreign_files([path])).columns if one.name == "blobs")
    assert (found.rows, found.nulls, found.is_list) == (40, 10, True)


def test_what_is_written_of_files_replaces_none_of_them(tmp_path: Path) -> None:
    """Neither one that is named, nor one that a shell puts behind the option, as for `*.csv`."""
    log, table = tmp_path / "log.csv", tmp_path / "log.parquet"
    log.write_text("item,clicked\n" + "3,1\n4,0\n" * 9)
    pq.write_table(pa.table({"item": [3, 4]}), table)
    counted = ("data", "vocabulary", "--column", "item")
    for file, told in (
        (log, recd("data", "schema", log, "--out", log, fails=2)),
        (log, recd(*counted, table, "--save", log, fails=2)),
        (table, recd(*counted, table, "--save", tmp_path / ".." / tmp_path.name / table.name,
                     fails=2)),
    ):  # fmt: skip
        assert re.search(
            f"{file.name} (must end in|is there already, and is not|is read here)", told
        )
    assert log.read_text().startswith("item,clicked")
    assert pq.read_table(table).num_rows == 2


def shown(requests: int, each: int = 16) -> pa.Table:
    """A log in the order of time: each request's rows lie together."""
    of = np.repeat(np.arange(requests), each)
    draws = np.random.default_rng(0)
    return pa.table(
        {
            "impression_id": of + 7_000_000,
            "member_id": [f"m{one}" for one in of],
            "item_id": draws.integers(0, 50, len(of)),
            "click": draws.integers(0, 2, len(of)),
        }
    )


def test_a_row_group_alone_is_sampled_all_over(tmp_path: Path) -> None:
    pq.write_table(shown(5_120), tmp_path / "one.parquet")  # 81,920 rows
    found = survey(foreign_files([tmp_path / "one.parquet"]))
    (column,) = (one for one in found.columns if one.name == "impression_id")
    assert found.sampled == 4 * samples.GROUP_ROWS
    assert (column.low, column.high) == (7_000_000, 7_005_119)


def test_a_large_row_group_is_sampled_at_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "GROUP_BYTES", 100)
    pq.write_table(shown(2_000), tmp_path / "one.parquet")
    assert survey(foreign_files([tmp_path / "one.parquet"])).sampled == samples.GROUP_ROWS


def test_values_whose_rows_lie_together_are_not_taken_for_all_there_are(tmp_path: Path) -> None:
    """None of 16 rows is alone, so that drawn one by one they would show all values."""
    pq.write_table(shown(5_000), tmp_path / "one.parquet")
    found = survey(foreign_files([tmp_path / "one.parquet"]))
    (column,) = (one for one in found.columns if one.name == "member_id")
    assert column.distinct < 2_100
    assert 4_800 <= column.estimate <= 5_200
    (feature,) = (one for one in propose(found).schema["sparse"] if one["name"] == "member_id")
    assert 5_000 <= feature["num_ids"] <= 6_000


def test_an_impression_of_several_rows_is_the_session(tmp_path: Path) -> None:
    pq.write_table(shown(40), tmp_path / "one.parquet")
    found = proposed(tmp_path / "one.parquet")
    assert found.schema["session_id"] == "impression_id"
    assert any("impression_id: taken for the session" in one for one in found.doubts)
    pq.write_table(shown(600, each=1), tmp_path / "two.parquet")
    assert proposed(tmp_path / "two.parquet").schema["session_id"] is None
    visits = shown(40).append_column("visit", pa.array(np.arange(640) // 32))
    pq.write_table(visits, tmp_path / "three.parquet")
    assert proposed(tmp_path / "three.parquet").schema["session_id"] == "visit"


@pytest.mark.parametrize(("name", "table"), [("clicked_items", "item_id"), ("item_tags", None)])
def test_a_history_goes_back_to_more_than_is_shown(
    tmp_path: Path, name: str, table: str | None
) -> None:
    draws = np.random.default_rng(0)
    lists = [draws.integers(0, 3_000, draws.integers(5, 30)) for _ in range(640)]
    rows = shown(40).set_column(2, "item_id", pa.array(draws.integers(0, 400, 640)))
    pq.write_table(rows.append_column(name, pa.array(lists)), tmp_path / "one.parquet")
    features = {one["name"]: one for one in proposed(tmp_path / "one.parquet").schema["sparse"]}
    assert features[name].get("table") == table


@pytest.mark.parametrize(
    ("name", "things"),
    [("clicked_items", "item"), ("itemId", "item"), ("user_history", ""), ("item_tags", "tag")],
)
def test_a_column_of_ids_is_named_after_things(name: str, things: str) -> None:
    assert named_after(name) == things
