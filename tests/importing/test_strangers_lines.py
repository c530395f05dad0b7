"""Value tests: lines of text and of JSON that are not as they should be are named, each with a cure
that works."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from imported_tables import recd, rows_of
from strangers_files import text
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.importing.column_types import ColumnTypes
from recd_plugins.data.importing.proposing.proposal import propose
from recd_plugins.data.importing.reading import blocks
from recd_plugins.data.importing.surveying import sample as samples
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.text import json_rows, whole_lines
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError

LINES = "".join(f'{one % 2},{one % 50},"a\nb"\n' for one in range(100))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (f"clicked,item,said\n{LINES}1,3\n", r"data\.csv:202: Expected 3 columns, got 2: 1,3"),
        (f"clicked,item,said\n{LINES}\n\r\n1,3,4,5\n", r"data\.csv:204: Expected 3 .* got 4: 1,3"),
        (f'clicked,item,said\n{LINES}1,2,5" disk\n1,3\n', r"data\.csv:203: Expected 3 columns"),
        (
            f'clicked,item,said\n{LINES}1,2,"oh\n1,2,b\n1,2,c\n',
            r"data\.csv:202: opens a quote that ",
        ),
        (f'clicked,item,said\n{LINES}1,2,"oh\n1,2,b\n1,2,"ah\n', r"csv:202: opens .* of line 204:"),
    ],
)
def test_a_line_of_another_length_is_named_with_its_number(
    tmp_path: Path, content: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind line ends in quotes and empty lines, in one block and in several."""
    path = text(tmp_path / "data.csv", content)
    (file,) = foreign_files([path])
    for size in (whole_lines.BLOCK_BYTES, 500):
        monkeypatch.setattr(whole_lines, "BLOCK_BYTES", size)
        with pytest.raises(DataError, match=says):
            [block.rows(["item"], ColumnTypes()) for block in blocks([file], ["item"])]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("# made today\na,b\n" + "1,2\n" * 9, "its first line has 1 field, '# made today', and"),
        ("a,b,\n" + "1,2\n" * 9, "its first line has 3 fields, 'a,b,', and those below have 2"),
        ("a,b\r" + "1,2\r" * 9, "its lines end in carriage returns alone"),
        ("sep=;\na;b\n" + "1;2\n" * 9, "its first line names the delimiter, as Excel"),
        ("a, b\n" + '1, "x, y"\n' * 9, "has blanks before quotes, which then quote nothing"),
        ("a b\n" + " 1   2\n" * 9, "blanks seem to separate the fields of its lines"),
        ("a,b\n1,x\n" * 9, "repeats its header among the rows"),
        ("[1, 2]\n" * 9, "has a JSON array on each line. Write them as CSV"),
    ],
)
def test_what_is_no_table_is_told_with_a_cure_that_works(
    tmp_path: Path, content: str, says: str
) -> None:
    path = text(tmp_path / "data.csv", content)
    with pytest.raises(DataError, match=says) as told:
        survey(foreign_files([path]))
    command = str(told.value).rpartition(": ")[2]
    if shutil.which(command.split()[0]) is None:  # jq
        pytest.skip(f"{command.split()[0]}, which the advice names, is not there to try it")
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, check=True)
    (made,) = {*tmp_path.iterdir()} - {path}
    assert len(foreign_files([made])[0].names) == 2
    assert survey(foreign_files([made])).rows == 9


@pytest.mark.parametrize("wrong", ['{"a": 1, "b', '{"a": }', '{"a": 1, "a": 2}'])
def test_a_line_that_is_no_object_is_named_with_its_number(tmp_path: Path, wrong: str) -> None:
    lines = [json.dumps({"a": one}) for one in range(300)]
    good = foreign_files([text(tmp_path / "good.jsonl", "\n".join(lines))])
    lines[250] = f"\n \n{wrong}"
    files = foreign_files([text(tmp_path / "rows.jsonl", "\n".join(lines))])
    with pytest.raises(DataError, match=r"rows\.jsonl:253: "):
        survey(files)
    read_as = survey(good).read_as
    with pytest.raises(DataError, match=r"rows\.jsonl:253: "):
        [block.rows(["a"], read_as) for block in blocks(files, ["a"])]


@pytest.mark.parametrize(
    ("amounts", "doubted"),
    [
        (["$12.50", "$1,200.00", "$7"], True),
        (["12,50 \u20ac", "1 \u20ac"], True),
        (["3.5%", "-12 %"], True),
        (["12 cm", "50%"], False),
        (["7", "8"], False),
        (["1.2.3", "1.2.4"], False),
        (["$12 shop", "$7 shop"], False),
    ],
)
def test_amounts_with_a_sign_get_a_doubt(tmp_path: Path, amounts: list[str], doubted: bool) -> None:
    rows = "".join(f'{one % 2},"{amounts[one // 2 % len(amounts)]}"\n' for one in range(90))
    files = foreign_files([text(tmp_path / "a.csv", f"clicked,x\n{rows}")])
    doubts = propose(survey(files)).doubts
    assert any(one.startswith("x: amounts, as ") for one in doubts) == doubted


def test_numbers_in_texts_of_json_get_a_doubt_and_codes_with_an_e_are_texts(tmp_path: Path) -> None:
    """Of 0e1 and 0e3 as numbers one would be left."""
    rows = [{"clicked": one % 2, "x": ["3.5", "4"][one % 2 - one % 3 % 2]} for one in range(90)]
    files = foreign_files([text(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))])
    assert "x: amounts, as '3.5', taken for ids" in " ".join(propose(survey(files)).doubts)
    codes = [f"{one % 3}e{one % 7}" for one in range(90)]
    lines = "\n".join(f"{one % 2},{code}" for one, code in enumerate(codes))
    found = survey(foreign_files([text(tmp_path / "b.csv", f"clicked,x\n{lines}\n")]))
    (column,) = (one for one in found.columns if one.name == "x")
    assert (column.seems, column.distinct) == ("texts", len({*codes}))
    plus = "\n".join(f"{one % 2},{one}e+05" for one in range(90))
    found = survey(foreign_files([text(tmp_path / "c.csv", f"clicked,x\n{plus}\n")]))
    assert found.columns[1].seems == "numbers"


@pytest.mark.parametrize(
    ("part", "made"),
    [
        ("dense: [{name: x, nulls: {value: -1}}]", [-1.0, 2.5]),
        ("labels: [{name: clicked}, {name: x, kind: regression, nulls: empty}]", [None, 2.5]),
        ("sparse: [{name: x, num_ids: 9}]", [[], [2]]),
        ("sparse: [{name: x, num_ids: 9, ids: hash}]", None),
        ("timestamp: x\ntimestamp_unit: s\nnulls: {x: {value: 7}}", [7_000, 2_000]),
    ],
)
def test_a_column_of_text_that_a_sample_shows_empty_is_what_the_schema_says(
    tmp_path: Path, part: str, made: list[object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many files some are looked at."""
    monkeypatch.setattr(samples, "SMALL_FILES", 2)
    (tmp_path / "log").mkdir()
    value = "2.5" if made and 2.5 in made else "2"
    for day in range(3):
        rows = "".join(f"{one % 2},{value if day == 1 else ''}\n" for one in range(20))
        text(tmp_path / "log" / f"{day}.csv", f"clicked,x\n{rows}")
    lines = ["session_id: null", part]
    lines += [] if "timestamp" in part else ["timestamp: null"]
    lines += [] if "labels" in part else ["label: clicked"]
    schema = text(tmp_path / "schema.yaml", "\n".join(lines))
    options = [str(tmp_path / "log"), "--schema", str(schema)]
    assert "is string" not in CliRunner().invoke(app, ["data", "check", *options]).output
    result = CliRunner().invoke(
        app, ["data", "import", options[0], str(tmp_path / "t"), *options[1:]]
    )
    assert result.exit_code == 0, result.output
    opened = Table.open(tmp_path / "t")
    rows_ = pa.concat_tables(opened.read(stripe) for stripe in opened.stripes)["x"].to_pylist()
    assert len(rows_) == 60
    if made is not None:
        found = [rows_[0], rows_[20]]
        assert [None if one != one else one for one in found] == made
    else:
        assert [len(rows_[0]), len(rows_[20])] == [0, 1]


@pytest.mark.parametrize(
    ("form", "usual", "odd", "part", "made"),
    [
        ("jsonl", 3, 2.5, "dense: [x]", [3.0, 2.5]),
        ("jsonl", 3, 2.5, "labels: [{name: clicked}, {name: x, kind: regression}]", [3.0, 2.5]),
        ("jsonl", [3, 1], [2.5, 1], "dense: [{name: x, width: 2}]", [[3.0, 1.0], [2.5, 1.0]]),
        ("jsonl", 3, 2.0, "sparse: [{name: x, num_ids: 9}]", [[3], [2]]),
        ("jsonl", 3, 3.0, "sparse: [{name: x, num_ids: 9999, ids: hash}]", "equal"),
        ("csv", "3|1", "2.5|1", "dense: [{name: x, width: 2}]", [[3.0, 1.0], [2.5, 1.0]]),
        ("csv", "3|1", "2.0|1", "sparse: [{name: x, num_ids: 9}]", [[3, 1], [2, 1]]),
        ("csv", "3", "NA", "dense: [{name: x, nulls: {value: 7}}]", [3.0, 7.0]),
        ("csv", "3.5", "?", "dense: [{name: x, nulls: {value: 7}}]", [3.5, 7.0]),
        ("csv", "3", "None", "sparse: [{name: x, num_ids: 9}]", [[3], []]),
        ("csv", "3", "NA", "dense: [x]", "column 'x' holds a null"),
        ("csv", "3", "3|4", "sparse: [{name: x, num_ids: 9, ids: hash}]", "lists: {x: "),
        ("csv", "3|1", "a|1", "sparse: [{name: x, num_ids: 9}]", "column 'x' "),
    ],
)
def test_what_a_sample_did_not_show_is_read_or_named(
    tmp_path: Path,
    form: str,
    usual: object,
    odd: object,
    part: str,
    made: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "FIRST_BYTES", 1_000)
    monkeypatch.setattr(samples, "SPOT_BYTES", 100)
    values = [odd if one == 777 else usual for one in range(2_000)]
    lines = [f"{one % 2},{value}" for one, value in enumerate(values)]
    if form == "jsonl":
        lines = [json.dumps({"clicked": one % 2, "x": value}) for one, value in enumerate(values)]
    path = text(tmp_path / "a", "\n".join([*(["clicked,x"] if form == "csv" else []), *lines]))
    label = "" if "labels" in part else "label: clicked\n"
    schema = text(tmp_path / "s.yaml", f"session_id: null\ntimestamp: null\n{label}{part}\n")
    options = ["--schema", str(schema)]
    result = CliRunner().invoke(app, ["data", "import", str(path), str(tmp_path / "t"), *options])
    if isinstance(made, str) and made != "equal":
        assert (result.exit_code, made in result.stderr) == (2, True), result.output
        return
    assert result.exit_code == 0, result.output
    opened = Table.open(tmp_path / "t")
    rows = pa.concat_tables(opened.read(stripe) for stripe in opened.stripes)["x"].to_pylist()
    assert [rows[0], rows[777]] == ([rows[0]] * 2 if made == "equal" else made)
    checked = CliRunner().invoke(app, ["data", "check", str(path), *options])
    assert "no problem" in checked.stdout, checked.output


def test_a_header_may_end_in_what_parts_fields(tmp_path: Path) -> None:
    rows = "".join(f"{one % 2},n{one % 7},\n" for one in range(90))
    (file,) = foreign_files([text(tmp_path / "a.csv", f"clicked,name,\n{rows}")])
    assert file.names == ("clicked", "name", "column_3")
    assert propose(survey([file])).schema["label"] == "clicked"
    (file,) = foreign_files([text(tmp_path / "b.csv", rows)])
    assert not file.header


def test_a_line_of_totals_is_told(tmp_path: Path) -> None:
    rows = "".join(f"{one % 2},{one % 40}\n" for one in range(300))
    files = foreign_files([text(tmp_path / "a.csv", f"clicked,item\n{rows}total,300\n")])
    (doubt,) = survey(files).doubts
    assert doubt.startswith(
        "'clicked' is taken for texts, since 'total' is not a number, while all but"
    )
    codes = "".join(f"{one % 2},{'A1' if one % 9 == 0 else one % 40}\n" for one in range(300))
    assert not survey(foreign_files([text(tmp_path / "b.csv", f"clicked,item\n{codes}")])).doubts


@pytest.mark.parametrize("values", [[7, 8], ["a", "b"], [0.5, 1.5], [None, None]])
def test_a_list_may_begin_with_a_null_in_the_first_line(tmp_path: Path, values: list[Any]) -> None:
    """Arrow 26 loses such nulls as it infers a type, and with them which value is whose."""
    rows = [{"label": n % 2, "ids": [None, None, *values]} for n in range(4)]
    rows += [{"label": 1, "ids": [values[1]]}]
    path = text(tmp_path / "a.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    found = survey(foreign_files([path]))
    assert found.sample["ids"].to_pylist() == [row["ids"] for row in rows]
    assert pa.types.is_null(found.sample["ids"].type.value_type) == (values[0] is None)
    schema = pa.schema([("ids", found.sample["ids"].type)])
    told = json_rows.read_json(pa.py_buffer(path.read_bytes()), schema)
    told.validate(full=True)
    assert told["ids"].to_pylist() == [row["ids"] for row in rows]


@pytest.mark.parametrize("nothing", ["", "NULL", "NA"])
def test_a_flag_that_some_rows_lack_is_proposed_with_what_stands_for_it(
    tmp_path: Path, nothing: str
) -> None:
    """A lacking flag counted as false in the survey, and an import stopped at the null."""
    flags = ["true", nothing, "False"] * 100
    rows = [f"{n % 2},{flag},{n % 7}\n" for n, flag in enumerate(flags)]
    file = text(tmp_path / "a.csv", "".join(["clicked,mobile,item_id\n", *rows]))
    assert "mobile, nulls: {value: 0}}  # booleans; 33.3% empty" in recd("data", "schema", file)
    recd("data", "import", file, tmp_path / "t")
    assert rows_of(tmp_path / "t")["mobile"].to_pylist() == [1.0, 0.0, 0.0] * 100
    labels = file.read_text().replace("clicked,mobile", "other,clicked")
    recd("data", "import", text(tmp_path / "b.csv", labels), tmp_path / "u", "--accept-doubts")
    assert rows_of(tmp_path / "u")["clicked"].to_pylist() == [1.0, 0.0] * 100
