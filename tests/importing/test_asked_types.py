"""Value tests: what a schema says of columns counts where a sample shows little of them, or shows
it in pieces; and what comes behind a sample is read as if it had been in it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from strangers_files import PACKINGS, text

from recd_plugins.config import parse
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.proposing.proposal import propose
from recd_plugins.data.importing.surveying import sample as samples
from recd_plugins.data.importing.surveying.asked_types import types_asked
from recd_plugins.data.importing.surveying.survey import Survey, survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.table_import import TableImport
from recd_plugins.data.importing.text import whole_lines
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.data.importing.vocabulary_pass import write_vocabulary
from recd_plugins.data.table import Table


def imported(
    path: Path, form: TextForm | None = None, **asked: Any
) -> tuple[Survey, list[dict[str, Any]], tuple[str, ...]]:
    """What a sample shows of a file, its rows as a schema has them, and the import's notes."""
    keys = {"label": "label", "session_id": None, "timestamp": None, **asked}
    schema = parse(ForeignSchema, keys, "schema")
    names = [one.name for one in schema.sparse]
    found = survey(foreign_files([path], form), {*schema.columns}, alone=True, form=form, ids=names)
    to = path.with_suffix(".table")
    made = TableImport(found.files, to, schema, types_asked(found, schema), form=form).run()
    table = Table.open(to)
    rows = [row for stripe in table.stripes for row in table.read(stripe).to_pylist()]
    return found, rows, made.notes


def column(path: Path, values: list[str]) -> Path:
    rows = [f'{number % 2};"{value}"' for number, value in enumerate(values)]
    return text(path, "label;x\n" + "\n".join(rows))


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "FIRST_BYTES", 400)
    monkeypatch.setattr(samples, "SPOT_BYTES", 40)
    monkeypatch.setattr(samples, "SPOTS", 2)
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 1_000)


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("first", range(400, 470, 10))
def test_texts_of_several_lines_may_end_behind_what_is_looked_at(
    tmp_path: Path, first: int, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that was cut amid one was refused as damaged text: Expected 3 columns, got 2."""
    for name in ("FIRST_BYTES", "PACKED_BYTES"):
        monkeypatch.setattr(samples, name, first)
    monkeypatch.setattr(samples, "SPOT_BYTES", 70)
    texts = ["".join(f"1,line {one},5\n" for one in range(number % 5)) for number in range(300)]
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow(["label", "said", "x"])
    csv.writer(written, lineterminator="\n").writerows(
        [number % 2, said, number % 9] for number, said in enumerate(texts)
    )
    path = tmp_path / f"a.csv{packing}"
    with pa.OSFile(str(path), "wb") as plain:
        packed = pa.CompressedOutputStream(plain, PACKINGS[packing]) if packing else plain
        with packed:
            packed.write(written.getvalue().encode())
    found = survey(foreign_files([path]))
    assert found.read_as.types == {"label": pa.int64(), "said": pa.string(), "x": pa.int64()}
    assert {*found.sample["label"].to_pylist()} == {0, 1}
    assert {*found.sample["said"].to_pylist()} <= {*texts, None}


def test_a_first_row_may_be_longer_than_what_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for a file without rows."""
    monkeypatch.setattr(samples, "FIRST_BYTES", 100)
    monkeypatch.setattr(samples, "SPOT_BYTES", 10)
    path = text(tmp_path / "a.csv", "label,x\n" + "".join(f"1,{'7' * 900}{n}\n" for n in range(9)))
    assert survey(foreign_files([path])).sampled == 9


def test_ids_with_weights_are_such_by_a_schema(tmp_path: Path) -> None:
    """One alone looks like a time, and none may have a weight where it is looked at."""
    for number, values in enumerate([["3:2", "5:1"], ["3:", "5:"], ["", "NULL"]]):
        path = column(tmp_path / f"{number}.csv", values * 9)
        asked = {"name": "x", "scored": True, "num_ids": 9, "nulls": {"value": 7}}
        _, rows, _ = imported(path, sparse=[asked])
        ids = [(row["x"], row["x_weights"]) for row in rows[:2]]
        right = [[([3], [2.0]), ([5], [1.0])], [([3], [1.0]), ([5], [1.0])], [([7], [1.0])] * 2]
        assert ids == right[number]


def test_weights_of_a_column_of_their_own_are_read_beside_the_ids(tmp_path: Path) -> None:
    asked = {"name": "x", "weights": "w", "num_ids": 9}
    both = [([3, 5], [0.5, 2.0]), ([4], [0.5])]
    for number, (lines, right) in enumerate(
        [
            (("3|5,0.5|2", "4,0.5"), both),
            (("3;5,0.5;2", "4,0.5"), both),
            (("4,0.5", ","), [both[1], ([], [])]),
        ]
    ):
        rows_of_text = "".join(f"{n % 2},{line}\n" for n, line in enumerate(lines * 9))
        path = text(tmp_path / f"{number}.csv", f"label,x,w\n{rows_of_text}")
        _, rows, _ = imported(path, sparse=[asked])
        assert [(row["x"], row["x_weights"]) for row in rows[:2]] == right
    proposed = propose(survey(foreign_files([tmp_path / "0.csv"])))
    assert "# - w: lists of numbers that differ in length are no feature" in proposed.text
    assert "as long as those of x: if they are the weights of these ids, write `weights: w`" in (
        proposed.text
    )


def test_whole_floats_are_ids_beside_weights_too(tmp_path: Path) -> None:
    path = column(tmp_path / "a.csv", ["3.0:0.5|5.0:1", "7.0:2"] * 9)
    _, rows, _ = imported(path, sparse=[{"name": "x", "scored": True, "num_ids": 9}])
    assert [row["x"] for row in rows[:2]] == [[3, 5], [7]]


def test_a_weight_behind_the_sample_may_have_a_fraction(
    tmp_path: Path, small_samples: None
) -> None:
    lines = [
        {"label": n % 2, "x": [{"id": n % 9, "weight": 1 if n < 200 else 0.5}]} for n in range(250)
    ]
    path = text(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    _, rows, _ = imported(path, sparse=[{"name": "x", "scored": True, "num_ids": 9}])
    assert [row["x_weights"] for row in rows] == [[1.0]] * 200 + [[0.5]] * 50


@pytest.mark.parametrize("ids", ["as_is", "hash"])
def test_lists_without_an_element_in_the_sample_are_what_the_schema_says(
    tmp_path: Path, small_samples: None, ids: str
) -> None:
    path = column(tmp_path / "a.csv", ["[]"] * 200 + ["3|5"])
    asked = [{"name": "x", "num_ids": 9, "ids": ids}]
    _, rows, _ = imported(path, TextForm(lists={"x": "|"}), sparse=asked)
    assert [len(row["x"]) for row in rows] == [0] * 200 + [2]


@pytest.mark.parametrize("spelled", ["nan", "NaN"])
def test_integers_beside_nan_stay_integers(tmp_path: Path, spelled: str) -> None:
    """They became floats, of which some are several integers."""
    large = [2**60 + one for one in range(9)]
    path = column(tmp_path / "a.csv", [*map(str, large), spelled])
    found, rows, _ = imported(path, sparse=[{"name": "x", "num_ids": 2**62, "nulls": "empty"}])
    assert found.read_as.types["x"] == pa.int64()
    assert [row["x"] for row in rows] == [*([one] for one in large), []]


def test_what_stands_for_nothing_is_nothing_where_no_number_shows_it(
    tmp_path: Path, small_samples: None
) -> None:
    asked = [{"name": "x", "nulls": {"value": -1}}]
    path = column(tmp_path / "a.csv", ["NA", "-"] * 9)
    assert {row["x"] for row in imported(path, dense=asked)[1]} == {-1.0}
    path = column(tmp_path / "b.csv", ["NA"] * 200 + ["1,234", "-", "?", "5"])
    _, rows, _ = imported(path, TextForm(thousands=("x",)), dense=asked)
    assert [row["x"] for row in rows[-4:]] == [1234.0, -1.0, -1.0, 5.0]


def test_a_whole_float_behind_the_sample_is_its_integer(
    tmp_path: Path, small_samples: None
) -> None:
    """It was a text, with another id than the integer; beside a text, which is noted, too."""
    asked = [{"name": "x", "ids": "hash", "num_ids": 2**40}]
    values = [str(100 + one % 90) for one in range(300)]
    plain = [row["x"] for row in imported(column(tmp_path / "a.csv", values), sparse=asked)[1]]
    values[200] += ".0"
    path = column(tmp_path / "b.csv", values)
    _, rows, notes = imported(path, sparse=asked)
    assert [row["x"] for row in rows] == plain
    assert [one for one in notes if "read as numbers with fractions, for" in one and "120.0" in one]
    path = column(tmp_path / "c.csv", [*values, "none of them"])
    _, rows, notes = imported(path, sparse=asked)
    assert [row["x"] for row in rows[:300]] == plain
    assert [one for one in notes if "read as text, for" in one and "none of them" in one]


def test_a_session_without_a_value_in_the_sample_is_a_number_until_one_is_none(
    tmp_path: Path, small_samples: None
) -> None:
    path = column(tmp_path / "a.csv", ["NULL"] * 200 + ["5"])
    asked = {"session_id": "x", "nulls": {"x": {"value": 3}}}
    assert [row["x"] for row in imported(path, **asked)[1]] == [3] * 200 + [5]


@pytest.mark.parametrize("flags", [["True", "False"], ["true", "false", ""]])
def test_true_and_false_that_are_hashed_have_the_ids_that_they_have_beside_texts(
    tmp_path: Path, flags: list[str]
) -> None:
    """They were 1 and 0 on a day that had no other text, without a word."""
    feature = {"name": "x", "ids": "hash", "num_ids": 1_000_000}
    _, rows, _ = imported(column(tmp_path / "a.csv", flags * 20), sparse=[feature])
    mixed = column(tmp_path / "b.csv", [*flags * 20, "unknown"])
    _, beside_texts, _ = imported(mixed, sparse=[feature])
    assert rows == beside_texts[:-1]
    as_is = {"name": "x", "num_ids": 2}
    _, numbers, _ = imported(column(tmp_path / "c.csv", flags[:2] * 20), sparse=[as_is])
    assert [row["x"] for row in numbers] == [[1], [0]] * 20


@pytest.mark.parametrize("ids", [["true", "false"], ["True", "False"]])
def test_a_vocabulary_knows_true_and_false_of_a_later_file(tmp_path: Path, ids: list[str]) -> None:
    vocabulary = tmp_path / "x.parquet"
    first = column(tmp_path / "a.csv", [*ids * 20, "unknown"])
    write_vocabulary(survey(foreign_files([first])), ["x"], vocabulary, most=10)
    feature = {"name": "x", "ids": "vocabulary", "num_ids": 10, "vocabulary": str(vocabulary)}
    _, rows, notes = imported(column(tmp_path / "b.csv", ids * 20), sparse=[feature])
    assert {*rows[0]["x"], *rows[1]["x"]} == {1, 2}
    assert not notes
    again = tmp_path / "y.parquet"
    write_vocabulary(survey(foreign_files([tmp_path / "b.csv"])), ["x"], again, most=10)
    assert {*pq.read_table(again)["value"].to_pylist()} == {*ids}


def test_a_column_may_have_a_name_in_braces(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "{x}~label\n" + "5~1\n" * 9)
    (file,) = foreign_files([path], TextForm(delimiter="~"))
    assert (file.format, file.names) == ("text", ("{x}", "label"))
    path = text(tmp_path / "a.jsonl", '{"x": 5}\n')
    of_schema = foreign_files([path], TextForm(delimiter="~"), given=TextForm())
    assert of_schema[0].format == "jsonl"


def test_a_schema_of_many_columns_is_gone_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once per column: a table may have thousands."""
    names = [f"c{number}" for number in range(100)]
    lines = [",".join(["label", *names]), *[",".join(["1"] * 101)] * 3]
    path = text(tmp_path / "wide.csv", "\n".join(lines))
    keys = {"label": "label", "session_id": None, "timestamp": None, "dense": names}
    schema, asked = parse(ForeignSchema, keys, "schema"), [0]
    found, whole = survey(foreign_files([path])), schema.dense_columns

    def counted(_: ForeignSchema) -> Any:
        asked[0] += 1
        return whole

    monkeypatch.setattr(ForeignSchema, "dense_columns", property(counted))
    read_as = types_asked(found, schema)
    assert len(read_as.types) == 101
    assert asked[0] <= 10
