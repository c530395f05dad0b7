"""Value tests: files in the layouts of public datasets are imported, and hold what plain Python
reads of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from imported_tables import recd, rows_of
from strangers_files import text
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.conform.dates import text_dates
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import hashes, integers
from recd_plugins.data.importing.surveying import sample as samples
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.text import whole_lines
from recd_plugins.errors import DataError


def imported(path: Path, *options: str, **changes: Any) -> tuple[pa.Table, dict[str, Any]]:
    """The rows that an import makes by the schema that is proposed, with these changes."""
    shown = CliRunner().invoke(app, ["data", "schema", str(path), "--json", *options])
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(shown.stdout)
    schema = text(path.with_suffix(".yaml"), json.dumps(found["schema"] | changes))
    assert "no problem" in recd("data", "check", path, "--schema", schema, *options)
    recd("data", "import", path, path.with_suffix(""), "--schema", schema, *options)
    return rows_of(path.with_suffix("")), found


def values_of(table: Path, feature: str) -> list[str]:
    """The values whose ids a vocabulary has, behind the one id that the others share."""
    rows = pq.read_table(table / "vocabularies" / f"{feature}.parquet")
    return ["", *rows["value"].to_pylist()]


def test_movielens_1m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two colons part its fields, and its titles are in Latin-1."""
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 4_000)
    titles = ["Misérables, Les (1995)", "Cité des enfants perdus, La (1995)", 'Say "Ah": 2 (1999)']
    movies = [
        f"{one}::{titles[one % 3]}::{('Drama|Animation', 'Comedy')[one % 2]}"
        for one in range(1, 301)
    ]
    path = text(tmp_path / "movies.dat", ("\n".join(movies) + "\n").encode("latin-1"))
    told = recd("data", "schema", path, fails=2)
    assert "movies.dat:1: holds bytes that are no UTF-8" in told
    assert "`--encoding`: as latin-1 these bytes would read '1::Cité des" in told
    label = {"label": "column_1", "labels": [{"name": "column_1", "kind": "regression"}]}
    sparse = [
        {"name": name, "num_ids": 99, "ids": "vocabulary"} for name in ("column_2", "column_3")
    ]
    rows, found = imported(
        path, "--encoding", "latin-1", **label, timestamp=None, dense=[], sparse=sparse
    )
    assert found["files"][0]["is"] == "text separated by '::', no header, latin-1"
    lines = [one.split("::") for one in path.read_bytes().decode("latin-1").splitlines()]
    known = values_of(tmp_path / "movies", "column_2")
    assert [[known[id_] for id_ in ids] for ids in rows["column_2"].to_pylist()] == [
        [line[1]] for line in lines
    ]
    known = values_of(tmp_path / "movies", "column_3")
    assert [[known[id_] for id_ in ids] for ids in rows["column_3"].to_pylist()] == [
        line[2].split("|") for line in lines
    ]
    cut = text(tmp_path / "cut.dat", b"1::2::3\n" * 40 + b"1::2\n" + b"1::2::3\n" * 40)
    told = recd("data", "import", cut, tmp_path / "cut", fails=2)
    assert "cut.dat:41: Expected 3 columns, got 2: 1::2." in told


def test_an_encoding_that_is_none_is_refused_and_one_that_is_late_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = text(tmp_path / "a.csv", "label,item\n" + "1,x\n0,y\n" * 200 + "1,caf\u00e9\n")
    for odd in ("utf-16", "utf-7", "hex", "cp037", "no such", "", "x" * 5_000, "a\0b", "\u0661"):
        told = recd("data", "schema", path, "--encoding", odd, fails=2)
        assert "in which ASCII keeps its bytes" in told
    told = recd("data", "schema", path, "--encoding", "ascii", fails=2)
    assert "a.csv:402: holds bytes that are no ASCII" in told
    late = text(tmp_path / "b.csv", path.read_text().encode("latin-1"))
    monkeypatch.setattr("recd_plugins.data.importing.formats.HEAD_BYTES", 100)
    monkeypatch.setattr(samples, "FIRST_BYTES", 100)
    monkeypatch.setattr(samples, "SPOT_BYTES", 8)
    schema: dict[str, Any] = {"session_id": None, "timestamp": None}
    schema["sparse"] = [{"name": "item", "num_ids": 9, "ids": "vocabulary"}]
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    told = recd("data", "import", late, tmp_path / "no", "--schema", file, fails=2)
    assert "b.csv:402: column 'item'" in told
    assert "Give its encoding, as `--encoding latin-1`" in told
    recd("data", "import", late, tmp_path / "t", "--schema", file, "--encoding", "latin-1")
    assert values_of(tmp_path / "t", "item")[3] == "caf\u00e9"
    told = recd("data", "import", late, tmp_path / "no", "--schema", file, "--encoding", "ascii",
                fails=2)  # fmt: skip
    assert "b.csv:402: holds bytes that are no ASCII (b'\\xe9\\n')" in told


def test_decimal_commas(tmp_path: Path) -> None:
    """As spreadsheets of half of Europe write them: no list of two ids, and nothing is nothing."""
    lines = [
        f"{one % 2};{f'{one / 4:.2f}'.replace('.', ',') if one % 9 else 'NA'};{one % 50},{one % 4}"
        f";{one % 30}.5;{one % 7},{one % 5},{one % 3}"
        for one in range(200)
    ]
    path = text(tmp_path / "c.csv", "label;price;share;height;seen\n" + "\n".join(lines) + "\n")
    rows, found = imported(path)
    doubts = [one for one in found["doubts"] if "decimal points" in one]
    assert doubts == [
        f"{name!r}: its commas are taken for decimal points" for name in ("price", "share")
    ]
    prices = np.array([one / 4 if one % 9 else 0 for one in range(200)], np.float32)
    np.testing.assert_array_equal(rows["price"], prices)
    shares = [f"{one % 50}.{one % 4}" for one in range(200)]
    np.testing.assert_array_equal(rows["share"], np.array(shares, np.float32))
    np.testing.assert_array_equal(rows["height"], [one % 30 + 0.5 for one in range(200)])
    assert [len(one) for one in rows["seen"].to_pylist()] == [3] * 200
    tabs = [f"{one % 2}\t{one % 9},{one % 90:02}\t{one % 9},{one % 90}" for one in range(200)]
    path = text(tmp_path / "d.tsv", "label\tprice\tseen\n" + "\n".join(tabs) + "\n")
    rows, _ = imported(path)
    prices = np.array([f"{one % 9}.{one % 90:02}" for one in range(200)], np.float32)
    np.testing.assert_array_equal(rows["price"], prices)
    assert [len(one) for one in rows["seen"].to_pylist()] == [2] * 200
    wrong = text(path, path.read_text().replace("8,89\t", "x\t"))
    told = recd("data", "import", wrong, tmp_path / "no", "--schema", path.with_suffix(".yaml"),
                fails=2)  # fmt: skip
    assert "column 'price'" in told


def test_a_point_behind_the_sample_is_no_decimal_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where commas are, it parts thousands."""
    lines = [f"{one % 2};{one % 999},5" for one in range(3_000)]
    path = text(tmp_path / "c.csv", "label;price\n" + "\n".join(lines) + "\n")
    imported(path)
    monkeypatch.setattr(samples, "FIRST_BYTES", 1_000)
    monkeypatch.setattr(samples, "SPOT_BYTES", 100)
    late = text(tmp_path / "late.csv", path.read_text().replace("776,5\n", "1.234\n"))
    told = recd("data", "import", late, tmp_path / "no", "--schema", path.with_suffix(".yaml"),
                fails=2)  # fmt: skip
    assert "column 'price': a number has a point, where commas are decimal points" in told


def test_phone_numbers_are_no_lists(tmp_path: Path) -> None:
    phones = ["089 123 45 67", *(f"0891234{one:03}" for one in range(199))]
    lines = [f"{one % 2},{phone},{one} 2 3 4" for one, phone in enumerate(phones)]
    path = text(tmp_path / "c.csv", "label,phone,seen\n" + "\n".join(lines) + "\n")
    types = survey(foreign_files([path])).read_as.types
    assert types["phone"] == pa.string()
    assert pa.types.is_list(types["seen"])


@pytest.mark.parametrize("form", ["%d/%m/%y", "%m/%d/%y %H:%M", "%y-%m-%d", "%d.%m.%y %H:%M:%S"])
def test_years_of_two_digits(tmp_path: Path, form: str) -> None:
    """Where several orders fit, the one by which all lie near each other."""
    days = [datetime(2024, 3, 1 + one % 12, tzinfo=UTC) for one in range(200)]
    days = [day + timedelta(hours=3) if "%H" in form else day for day in days]
    lines = [f"{one % 2},{day.strftime(form)},{one % 7}" for one, day in enumerate(days)]
    path = text(tmp_path / "c.csv", "label,day,item\n" + "\n".join(lines) + "\n")
    rows, found = imported(path)
    assert rows["day"].to_pylist() == [int(day.timestamp()) * 1_000 for day in days]
    assert any("Each fits them all: the first is taken" in one for one in found["doubts"])


def test_versions_are_no_dates_and_years_are_of_a_century() -> None:
    assert text_dates(pa.array(["4.10.12", "4.9.15"])) == ()
    assert text_dates(pa.array(["24.12.23", "31.01.24"])) == ("dd/mm/yy", "yy/mm/dd")
    assert text_dates(pa.array(["01/02/70"])) == ()  # 1970


def test_ids_of_64_bits_without_a_sign_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stays itself, in objects and lists, and in places that the sample did not show."""
    monkeypatch.setattr(samples, "FIRST_BYTES", 4_000)
    monkeypatch.setattr(samples, "SPOT_BYTES", 1_000)
    ids = [2**64 - 1 - one % 90 for one in range(3_000)]
    rows = [
        {
            "label": one % 2,
            "item": id_,
            "user": {"hash": id_ - 1 if one % 2 else one % 90},
            "seen": [id_, 7][: one % 3],
            "shown": [{"ad": id_ - 2}],
            "late": 2**63 + 5 if one == 1_501 else one % 50,
            "session": id_ - one % 40,
            "ratio": 1e30 * one,
        }
        for one, id_ in enumerate(ids)
    ]
    path = text(tmp_path / "c.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    names = ("item", "user.hash", "seen", "shown.ad", "late")
    sparse = [
        {"name": name, "num_ids": 1 << 20, "ids": "hash", "table": name.replace(".", "_")}
        for name in names
    ]
    made, found = imported(path, sparse=sparse, dense=[])
    assert found["schema"]["session_id"] == "session"
    proposed = {one["name"]: one for one in found["schema"]["sparse"]}
    assert {*names} - {"late"} <= {*proposed}
    wanted = [
        ids,
        [row["user"]["hash"] for row in rows],
        [id_ for row in rows for id_ in row["seen"]],
        [id_ - 2 for id_ in ids],
        [row["late"] for row in rows],
    ]
    for name, values in zip(names, wanted, strict=True):
        hashed = hashes(pa.array(values, pa.uint64()), Spot("", "")) % np.uint64(1 << 20)
        assert pa.compute.list_flatten(made[name]).to_pylist() == hashed.tolist(), name
    sessions = np.array([row["session"] for row in rows], np.uint64).view(np.int64)
    np.testing.assert_array_equal(made["session"], sessions)


def test_integers_that_no_float_holds_are_named_and_decimals_hold_them() -> None:
    spot = Spot("a file", "item")
    with pytest.raises(DataError, match=r"1\.8e\+19, beyond 2\^53, where floats skip integers"):
        integers(pa.array([1.8e19]), spot)
    some = pa.array([2**64 - 1, 5], pa.decimal128(20, 0))
    assert integers(some, spot).tolist() == [2**64 - 1, 5]
    with pytest.raises(DataError, match="is not an integer of 64 bits"):
        integers(pa.array([2**64 - 1, -5], pa.decimal128(20, 0)), spot)


def test_mind(tmp_path: Path) -> None:
    """Ids between blanks are a history; those that have labels are no feature."""
    lines = [
        f"{one}\tU{one % 90}\t11/{1 + one % 28}/2019 9:05:58 AM\t"
        + " ".join(f"N{(one + each) % 70}" for each in range(one % 9))
        + "\t"
        + " ".join(f"N{one % 70}-{each % 2}" for each in range(2 + one % 5))
        + f"\tSW{one % 9}A 1AA\n"
        for one in range(300)
    ]
    path = text(tmp_path / "behaviors.tsv", "".join(lines))
    schema = recd("data", "schema", path)
    assert "column_5: elements end in -0 and -1, as labels do: write a row for each" in schema
    label = {"labels": [{"name": "column_1", "kind": "regression"}]}
    rows, found = imported(path, **label, dense=[])
    features = {one["name"]: one.get("sequence", False) for one in found["schema"]["sparse"]}
    assert (features["column_4"], features["column_6"]) == (True, False)
    known = values_of(tmp_path / "behaviors", "column_4")
    assert [[known[id_] for id_ in ids] for ids in rows["column_4"].to_pylist()] == [
        line.split("\t")[3].split() for line in lines
    ]


def test_quotes_within_fields_that_tabs_part_are_characters(tmp_path: Path) -> None:
    titles = ['"Heroes"', '12" Mix', '"Weird Al" Yankovic', '"Unclosed', "plain"]
    lines = [f"{one % 2}\t{titles[one % 5]}\t{one % 7}" for one in range(200)]
    path = text(tmp_path / "plays.tsv", "label\ttitle\titem\n" + "\n".join(lines) + "\n")
    rows, _ = imported(path)
    known = values_of(tmp_path / "plays", "title")
    assert [known[id_] for (id_,) in rows["title"].to_pylist()] == titles * 40


def test_dicts_of_python_are_named(tmp_path: Path) -> None:
    path = text(tmp_path / "meta.json", "{'asin': '1', 'title': \"it's\"}\n")
    assert "write json.dumps(ast.literal_eval(line))" in recd("data", "schema", path, fails=2)


def test_clicks_without_a_label_are_told_what_to_do(tmp_path: Path) -> None:
    """A browser's name is no list, whatever semicolons it has."""
    browsers = ["Mozilla/5.0 (X11; Linux)", "Opera/9.8 (Windows; U; en)"]
    lines = [f"{one % 90}::{one % 40}::{browsers[one // 7 % 2]}" for one in range(200)]
    path = text(tmp_path / "clicks.dat", "user_id::item_id::agent\n" + "\n".join(lines) + "\n")
    told = recd("data", "import", path, tmp_path / "no", fails=2)
    assert "doubt: no column looks like a label: name it; or" in told
    assert "no column is called 'label', the label of the schema. Name the label there." in told
    assert "user_id. Or, if each row is a click, give `--negatives 4`." in told
    recd("data", "import", path, tmp_path / "t", "--negatives", 1, "--item", "item_id")
    assert {*values_of(tmp_path / "t", "agent")} == {"", *browsers}


def test_columns_without_a_header_have_the_names_that_are_given(tmp_path: Path) -> None:
    """As all of MovieLens 1M: what a column is called says what it is."""
    lines = [
        f"{one // 20}::{one % 50 * 7}::{1 + one % 5}::{956_703_932 + one}" for one in range(300)
    ]
    path = text(tmp_path / "ratings.dat", "\n".join(lines) + "\n")
    rows, found = imported(path, "--names", "user_id, movie_id,rating,timestamp")
    schema = found["schema"]
    assert [one["name"] for one in schema["sparse"]] == ["user_id", "movie_id"]
    assert (schema["timestamp"], schema["labels"][0]["name"]) == ("timestamp", "rating")
    assert rows["user_id"].to_pylist() == [[one // 20] for one in range(300)]
    for names in ("user_id,movie_id", "a,b,c,c", "a,b,c,"):
        told = recd("data", "schema", path, "--names", names, fails=2)
        assert "with 4 columns, and" in told


def test_a_guess_that_would_train_wrongly_stops_an_import(tmp_path: Path) -> None:
    """As Yambda's `is_organic`, which is 0 or 1 and no label, and weights that are plays."""
    draw = np.random.default_rng(0)
    lines = [
        f"{one // 20},{draw.integers(0, 9_000_000)},{one % 2},{1 + one % 7}" for one in range(400)
    ]
    path = text(tmp_path / "a.csv", "uid,track,is_organic,weight\n" + "\n".join(lines) + "\n")
    told = recd("data", "import", path, tmp_path / "t", fails=2)
    doubts = [
        "is_organic: taken for the label, because it is 0 or 1",
        "track: whole numbers: counts, or ids of something? Taken for counts",
        "weight: taken by its name for what a sample counts in the loss",
    ]
    refused = told[told.index("these doubts are not settled") :]
    assert all(f"doubt: {one}" in told and f"  {one}" in refused for one in doubts)
    assert "--accept-doubts" in refused
    assert not (tmp_path / "t").exists()
    shown = json.loads(recd("data", "schema", path, "--json"))
    assert {*shown["to_settle"]} == {*doubts}
    recd("data", "import", path, tmp_path / "t", "--accept-doubts")
    settled = text(tmp_path / "s.yaml", json.dumps(shown["schema"] | {"sample_weight": None}))
    assert "doubt" not in recd("data", "import", path, tmp_path / "u", "--schema", settled)


def proposal(path: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The schema that is proposed, and all that is said of it."""
    found = json.loads(recd("data", "schema", path, "--json", *options))
    return found["schema"], "\n".join(found["doubts"])


def test_what_fills_lists_up_is_no_id(tmp_path: Path) -> None:
    """As in KuaiRec's tensors of histories: lists of one length, with -1 where there is nothing."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 11, 500)
    history = np.where(np.arange(10) < lengths[:, None], draw.integers(0, 300, (500, 10)), -1)
    rows = {"clicked": draw.integers(0, 2, 500), "item_history": [*history]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    made, found = imported(tmp_path / "a.parquet")
    (feature,) = found["schema"]["sparse"]
    assert feature["missing"] == [-1]
    doubt = "item_history: -1 is taken for what fills its lists up, and left out of them"
    assert doubt in found["doubts"]
    assert [*map(len, made["item_history"].to_pylist())] == lengths.tolist()


def test_codes_and_ids_without_names_are_ids(tmp_path: Path) -> None:
    """As in Avazu, KuaiRand, and MovieLens without a header."""
    draw = np.random.default_rng(0)
    rows = [
        f"{draw.integers(0, 2)},{draw.choice([320, 300, 216])},{draw.choice([-1, -1, 100084, 77])},"
        f"{draw.integers(0, 24) * 100 + draw.integers(0, 60)},{draw.integers(0, 5)},"
        f"{draw.poisson(3)}"
        for _ in range(800)
    ]
    path = text(tmp_path / "a.csv", "click,C15,C20,hourmin,tab,seen\n" + "\n".join(rows) + "\n")
    made, found = imported(path)
    schema = found["schema"]
    assert [one["name"] for one in schema["sparse"]] == ["C15", "C20", "hourmin", "tab"]
    assert schema["dense"] == ["seen"]
    assert "C20: -1, which may mean that there is none, has an id of its own" in found["doubts"]
    assert {len(ids) for ids in made["C20"].to_pylist()} == {1}
    assert len({id_ for (id_,) in made["C20"].to_pylist()}) == 3
    movies = draw.permutation(1_700)[(draw.zipf(1.3, 2_000) - 1) % 1_700]
    ratings = [
        f"{one // 20 + 1}::{movie}::{draw.integers(1, 6)}::{956_703_932 + one}"
        for one, movie in enumerate(movies)
    ]
    schema, doubts = proposal(text(tmp_path / "ratings.dat", "\n".join(ratings) + "\n"))
    assert [one["name"] for one in schema["sparse"]] == ["column_1", "column_2"]
    assert "dense" not in schema
    assert "'column_3' may be grades" in doubts
    assert "column_3: may be grades, which as a feature would tell the answer" in doubts
    assert "column_2: whole numbers, taken for ids: some of its values are common and" in doubts


def test_what_users_did_is_no_feature_whatever_it_is_called(tmp_path: Path) -> None:
    """As in MerRec and Steam; and -1 or 1 as in KDD Cup 2012."""
    did = ["item_view", "item_like", "buy_comp"]
    lines = [f"{one % 90}\t{did[one % 3]}\t{('play', 'purchase')[one % 2]}" for one in range(200)]
    path = text(tmp_path / "a.tsv", "item_id\tevent_id\thow\n" + "\n".join(lines) + "\n")
    schema, doubts = proposal(path)
    assert [one["name"] for one in schema["sparse"]] == ["item_id"]
    assert "event_id: is what users did" in doubts
    assert "how: is what users did" in doubts
    lines = [f"{one % 90}\tx{one % 7}\t{1 - one % 2 * 2}" for one in range(200)]
    schema, doubts = proposal(text(path, "\n".join(lines) + "\n"))
    assert schema["labels"] == [{"name": "column_3", "kind": "regression"}]
    assert "If -1 means no, write 0 for it" in doubts


def test_fields_within_fields(tmp_path: Path) -> None:
    """As in the RecSys challenges of Twitter, and in Ali-CCP."""
    lines = [
        "\x01".join(["\t".join(str(one + each) for each in range(1 + one % 3)), str(one % 2)])
        for one in range(200)
    ]
    path = text(tmp_path / "a.tsv", "\n".join(lines) + "\n")
    rows, found = imported(path)
    assert found["schema"]["text"] == {"lists": {"column_1": "\t"}}
    assert [len(one) for one in rows["column_1"].to_pylist()] == [1 + one % 3 for one in range(200)]
    lines = [f"{one},{one % 2},205\x02{one}\x031.0\x01206\x027\x031.0" for one in range(200)]
    path = text(path, "\n".join(lines) + "\n")
    assert "has features within it, separated by ^A and ^B and ^C" in proposal(path)[1]
    told = recd("data", "import", path, tmp_path / "t", fails=2)
    assert "no column is a feature as it is" in told


def test_ratings_below_a_line_of_their_film_are_refused(tmp_path: Path) -> None:
    """As in the Netflix prize; the cure that is named makes rows of them."""
    path = text(tmp_path / "c.txt", "1:\n7,3,2005-09-06\n9,5,2005-05-13\n2:\n7,4,2004-01-02\n")
    told = recd("data", "schema", path, fails=2)
    cure = told.partition("each line below: ")[2].strip()
    assert cure.startswith("awk '")
    if shutil.which("awk") is None:
        pytest.skip("awk, which the advice names, is not there to try it")
    subprocess.run(cure, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "c.csv").read_text().splitlines() == [
        "1,7,3,2005-09-06", "1,9,5,2005-05-13", "2,7,4,2004-01-02",
    ]  # fmt: skip


def test_sessions_in_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Otto; the lines of the page make a row of each event, with what came before."""
    kinds = ["clicks", "carts", "orders"]
    start = 1_659_304_800_025
    lines = [
        {
            "session": one,
            "events": [
                {"aid": (one * 7 + at * at) % 90, "ts": start + at, "type": kinds[at % 3]}
                for at in range(3 + one % 5)
            ],
        }
        for one in range(120)
    ]
    path = text(tmp_path / "train.jsonl", "".join(json.dumps(one) + "\n" for one in lines))
    assert "Each row seems to be a whole session, its events in lists" in proposal(path)[1]
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()
    code = page.partition("# events.py\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    rows, found = imported(tmp_path / "rows.jsonl")
    schema = found["schema"]
    assert [schema[one] for one in ("session_id", "timestamp", "label")] == [
        "session_id", "ts", "label",
    ]  # fmt: skip
    sparse = {one["name"]: one for one in schema["sparse"]}
    assert sparse["seen"]["table"] == "item_id"
    assert rows["seen"].to_pylist()[:3] == [[], [0], [0, 1]]
    assert rows["label"].to_pylist()[:3] == [0, 0, 1]


def test_whole_numbers_are_told_apart_in_floats_too(tmp_path: Path) -> None:
    """As pandas writes integers of which some are missing."""
    draw = np.random.default_rng(0)
    items = draw.permutation(900)[(draw.zipf(1.3, 1_000) - 1) % 900].astype(np.float64)
    seen = draw.poisson(3, 1_000).astype(np.float64)
    items[::50], seen[::50] = np.nan, np.nan
    path = tmp_path / "a.parquet"
    clicks = draw.integers(0, 2, 1_000)
    pq.write_table(pa.table({"click": clicks, "thing": items, "seen": seen}), path)
    rows, found = imported(path)
    assert [one["name"] for one in found["schema"]["sparse"]] == ["thing"]
    assert [one["name"] for one in found["schema"]["dense"]] == ["seen"]
    assert "thing: whole numbers, taken for ids" in "\n".join(found["doubts"])
    assert [len(ids) for ids in rows["thing"].to_pylist()][49:52] == [1, 0, 1]


def test_what_describes_an_item_and_is_not_drawn_with_it_stops_an_import(tmp_path: Path) -> None:
    """As the artist's name beside its id in Last.fm, and a price."""
    lines = [
        f"{one % 70},{one * one % 40},A{one * one % 40},{one * one % 40 / 8},{one % 11 / 8}"
        for one in range(400)
    ]
    head = "user_id,artist_id,artist,price,age"
    path = text(tmp_path / "a.csv", head + "\n" + "\n".join(lines) + "\n")
    words = ("data", "import", path, tmp_path / "t", "--negatives", 1, "--item", "artist_id")
    told = recd(*words, fails=2)
    assert re.findall(r"doubt: (\w+): is the same wherever an item is", told) == [
        "artist", "price",
    ]  # fmt: skip
    assert "these doubts are not settled" in told
    assert not (tmp_path / "t").exists()
    schema = tmp_path / "a.yaml"
    recd("data", "schema", path, "--out", schema)
    assert "these doubts are not settled" in recd(*words, "--schema", schema, fails=2)
    recd(*words, "--accept-doubts")
    every = ("--item", "artist", "--item", "price")
    told = recd(*words[:3], tmp_path / "u", *words[4:], *every)
    assert "is the same wherever an item is" not in told


def test_several_histories_share_one_table_of_one_size(tmp_path: Path) -> None:
    """As clicks, carts and orders, one of which has -1 for nothing."""
    draw = np.random.default_rng(0)
    items = draw.integers(0, 300, 1_000)
    lists = [draw.integers(0, 300, 10).tolist() for _ in items]
    padded = [[-1, *one[1:]] for one in lists]
    columns = {"click": items % 2, "item_id": items, "clicked_items": lists, "cart_items": padded}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    features = proposal(tmp_path / "a.parquet")[0]["sparse"]
    assert {one.get("table", one["name"]) for one in features} == {"item_id"}
    assert len({(one["num_ids"], one.get("ids")) for one in features}) == 1
