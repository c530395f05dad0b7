"""Value tests: what was said of text once, and what was found in it, holds for files that come
later; and the odd ways of text that are read, or refused with a cure."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from imported_tables import recd, rows_of
from strangers_files import text
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.conform.dates import text_dates, texts_to_ms
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.importing.column_types import ColumnTypes
from recd_plugins.data.importing.reading import blocks
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.text import whole_lines
from recd_plugins.data.importing.text.escaped_quotes import doubled
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.errors import DataError

DOCS = Path(__file__).parents[2] / "docs"


def proposed(path: Path, *options: str) -> dict[str, Any]:
    shown = CliRunner().invoke(app, ["data", "schema", str(path), "--json", *options])
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_a_schema_remembers_what_was_said_and_found(tmp_path: Path) -> None:
    """The next day's file shows neither its encoding, nor its columns, nor that tags are lists."""
    tags = ["caf\u00e9|bar", "bar", "bar|pub|caf\u00e9"]
    lines = [f"{one % 2};{one % 9};{tags[one % 3]};{one % 7},{one % 5}5" for one in range(300)]
    first = text(tmp_path / "1.csv", ("\n".join(lines) + "\n").encode("latin-1"))
    options = ("--encoding", "latin-1", "--names", "label,item_id,tags,price")
    found = proposed(first, *options)
    schema = text(tmp_path / "schema.yaml", json.dumps(found["schema"]))
    assert found["schema"]["text"] == {
        "encoding": "latin-1",
        "names": ["label", "item_id", "tags", "price"],
        "lists": {"tags": "|"},
        "decimal_commas": ["price"],
    }
    recd("data", "import", first, tmp_path / "said", *options)
    recd("data", "import", first, tmp_path / "by_schema", "--schema", schema)
    kept = tmp_path / "said" / "schema.yaml"
    assert yaml.safe_load(kept.read_text())["text"] == found["schema"]["text"]
    assert rows_of(tmp_path / "said").equals(rows_of(tmp_path / "by_schema"))

    later = [f"{one % 2};{one % 9};bar;{one}" for one in range(40)]
    later[20] = "1;2;bar|caf\u00e9;5,5"
    last = text(tmp_path / "2.csv", ("\n".join(later) + "\n").encode("latin-1"))
    assert "40 rows, no problem" in recd("data", "check", last, "--schema", kept)
    recd("data", "import", last, tmp_path / "later", "--schema", kept)
    values = pq.read_table(tmp_path / "said" / "vocabularies" / "tags.parquet")["value"].to_pylist()
    ids = {value: 1 + at for at, value in enumerate(values)}
    rows = rows_of(tmp_path / "later")
    wanted = [[ids["bar"]]] * 20 + [[ids["bar"], ids["caf\u00e9"]]] + [[ids["bar"]]] * 19
    assert rows["tags"].to_pylist() == wanted
    assert rows["price"].to_pylist()[19:22] == [19, 5.5, 21]
    told = recd("data", "import", last, tmp_path / "no", "--schema", kept, "--encoding", "ascii",
                fails=2)  # fmt: skip
    assert "holds bytes that are no ASCII" in told


def test_a_name_that_no_column_has_is_named(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "label,item\n1,2\n0,3\n")
    files = foreign_files([path])
    with pytest.raises(DataError, match=r"text\.thousands of the schema: no column .* 'itme'; did"):
        survey(files, form=TextForm(thousands=("itme",)))
    with pytest.raises(DataError, match=r"text\.lists of the schema: no column .* 'itme'; did"):
        survey(files, form=TextForm(lists={"itme": ""}))
    schema = text(tmp_path / "schema.yaml", "{label: label, text: {encodign: latin-1}}")
    assert "did you mean 'encoding'" in recd("data", "check", path, "--schema", schema, fails=2)


def test_commas_between_thousands(tmp_path: Path) -> None:
    """What can be nothing else is read so; what may be something else is a doubt, which the schema
    settles."""
    numbers = [one * 1_001 for one in range(300)]
    lines = [f'{one % 2}\t"{number:,}"\t{number:,}.5' for one, number in enumerate(numbers)]
    path = text(tmp_path / "a.tsv", "label\tviews\tprice\n" + "\n".join(lines) + "\n")
    found = proposed(path)
    assert found["schema"]["text"] == {"thousands": ["price", "views"]}
    assert sum("taken to separate thousands; if they are" in one for one in found["doubts"]) == 2
    schema = found["schema"] | {"dense": ["views", "price"], "sparse": []}
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    assert "no problem" in recd("data", "check", path, "--schema", file)
    recd("data", "import", path, tmp_path / "t", "--schema", file)
    assert rows_of(tmp_path / "t")["views"].to_pylist() == numbers
    assert rows_of(tmp_path / "t")["price"].to_pylist() == [one + 0.5 for one in numbers]
    wrong = text(path, path.read_text().replace('"299,299"', "299,29"))
    told = recd("data", "import", wrong, tmp_path / "no", "--schema", file, fails=2)
    assert "in '299,29' commas separate no thousands" in told

    lines = [f"{one % 2};{1 + one},{200 + one};{1 + one}" for one in range(300)]
    path = text(tmp_path / "b.csv", "label;views;count\n" + "\n".join(lines) + "\n")
    found = proposed(path)
    (doubt,) = (one for one in found["doubts"] if one.startswith("'views'"))
    assert doubt == (
        "'views': its commas are taken for decimal points; if they separate thousands, write "
        "`text: {thousands: [views]}` in the schema"
    )
    schema = found["schema"] | {"dense": ["views"], "sparse": []}
    for key, wanted in (("decimal_commas", 1.2), ("thousands", 1_200)):
        file = text(file, json.dumps(schema | {"text": {key: ["views"]}}))
        recd("data", "import", path, tmp_path / key, "--schema", file)
        assert rows_of(tmp_path / key)["views"][0].as_py() == pytest.approx(wanted)
    path = text(tmp_path / "c.tsv", path.read_text().replace(";", "\t"))
    (doubt,) = (one for one in proposed(path)["doubts"] if one.startswith("'views'"))
    assert "its commas are taken to separate ids; if they separate thousands" in doubt


def test_a_backslash_before_a_quote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r"""As Spark writes texts; blocks end at lines none the less, and C:\ is no such text."""
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 700)
    texts = ['say "hi", you', "plain", '{"a": [1, 2]}', '5" disk, small', 'ends in "']
    spelled = [one.replace('"', r"\"") for one in texts]
    lines = [f'{one % 2},"{spelled[one % 5]}",{one}' for one in range(300)]
    path = text(tmp_path / "spark.csv", "label,said,item\n" + "\n".join(lines) + "\n")
    files = foreign_files([path])
    assert files[0].escapes
    names = list(files[0].names)
    read_as = survey(files).read_as
    parts = [block.rows(names, read_as) for block in blocks(files, names)]
    assert len(parts) > 8
    rows = pa.concat_tables(parts)
    assert rows["said"].to_pylist() == texts * 60
    assert rows["item"].to_pylist() == [*range(300)]
    assert read_as.form(TextForm(), files[0], names) == TextForm(escapes=True)
    for odd in ('"C:\\",5,"D:\\"', '"a ""b\\""",5,x', '5\\" disk,3,4'):
        (file,) = foreign_files([text(tmp_path / "plain.csv", "a,b,c\n" + f"{odd}\n" * 20)])
        assert not file.escapes
        first = next(blocks([file], names := list(file.names))).rows(names, ColumnTypes())
        assert first["a"][0].as_py() in ("C:\\", 'a "b\\"', '5\\" disk')


def first_rows(path: Path, form: TextForm | None = None) -> dict[str, list[Any]]:
    files = foreign_files([path], form)
    names = list(files[0].names)
    read_as = survey(files, form=form).read_as
    rows: dict[str, list[Any]] = next(blocks(files, names)).rows(names, read_as).to_pydict()
    return rows


def test_decimals_in_a_column_of_thousands_are_no_whole_numbers(tmp_path: Path) -> None:
    path = text(tmp_path / "a.tsv", "y\tviews\n0\t 12,345 \n1\t-1,234.5\n0\t1234\n1\t\n")
    form = TextForm(thousands=("views",))
    assert first_rows(path, form)["views"] == [12_345, -1_234.5, 1_234, None]
    read_as = survey(foreign_files([path]), form=form).read_as
    for odd in ("0,005", "1234,567", "12,34", "1,2345"):
        files = foreign_files([text(path, f"y\tviews\n0\t12,345\n1\t{odd}\n")])
        with pytest.raises(DataError, match=f"in '{odd}' commas separate no thousands"):
            next(blocks(files, ["views"])).rows(["views"], read_as)


def test_backslashes_outside_of_quotes_stay(tmp_path: Path) -> None:
    """Where quotes are a part of fields nothing is quoted; where some are in quotes, others not."""
    song = text(tmp_path / "a.tsv", "y\tsaid\tsong\n" + '1\t"a \\"b\\" c"\t12" Mix\n' * 9)
    (file,) = foreign_files([song])
    assert not file.quotes
    assert not file.escapes
    assert first_rows(song)["said"][0] == '"a \\"b\\" c"'
    disk = text(tmp_path / "b.csv", "y,said,disk\n" + '1,"a \\"b\\", c",5\\" disk\n' * 9)
    assert first_rows(disk) == {"y": [1] * 9, "said": ['a "b", c'] * 9, "disk": ['5\\" disk'] * 9}
    said = text(tmp_path / "c.tsv", "y\tsaid\n" + '1\t"say \\"hi\\""\n' * 9)
    assert (
        first_rows(said)["said"][0] == '"say \\"hi\\""'
    )  # as tables have it that were made before
    assert first_rows(said, TextForm(escapes=True))["said"][0] == 'say "hi"'


def test_escapes_where_nothing_is_in_quotes_are_refused(tmp_path: Path) -> None:
    """A schema that says how quotes are read is not passed over where they are characters."""
    songs = "y\tsaid\tsong\n0\tplain\tplain\n" + '1\t"a \\"b\\" c"\t12" Mix\n' * 9
    song = text(tmp_path / "a.tsv", songs)
    told = "a.tsv:3: `text: {escapes: true}` of the schema says .* in this file quotes are part"
    with pytest.raises(DataError, match=told):
        foreign_files([song], TextForm(escapes=True))
    heights = text(tmp_path / "b.dat", "1::5\n" * 3 + '0::5"\n')
    with pytest.raises(DataError, match=r"b\.dat:4: "):
        foreign_files([heights], TextForm(escapes=True))
    plain = text(tmp_path / "c.tsv", "y\tsaid\n" + "1\tno quote\n" * 9)  # nothing to read so
    assert not foreign_files([plain], TextForm(escapes=True))[0].escapes


def test_doubling_again_changes_nothing() -> None:
    content = rb'a,"b \"c\", ",5\" d,"e\\","","f ""g"" \n"' + b'\n"h\n\\"i","j'
    wanted = rb'a,"b ""c"", ",5\" d,"e\\","","f ""g"" \n"' + b'\n"h\n""i","j'
    assert doubled(content, ",") == wanted == doubled(wanted, ",")
    for cut in range(len(content)):
        assert doubled(doubled(content[:cut], ",") + content[cut:], ",") == wanted


def test_commas_of_ids_part_them_by_a_schema_that_does_not_say_thousands(tmp_path: Path) -> None:
    path = text(tmp_path / "a.tsv", "y\tids\n" + "1\t101,005\n0\t102,117\n" * 9)
    assert first_rows(path)["ids"][0] == 101_005
    schema = text(
        tmp_path / "schema.yaml",
        "{label: y, session_id: null, timestamp: null, "
        "sparse: [{name: ids, ids: hash, num_ids: 99}]}",
    )
    recd("data", "import", path, tmp_path / "t", "--schema", schema)
    assert {len(one) for one in rows_of(tmp_path / "t")["ids"].to_pylist()} == {2}
    text(schema, schema.read_text()[:-1] + ", text: {thousands: [ids]}}")
    recd("data", "import", path, tmp_path / "u", "--schema", schema)
    assert {len(one) for one in rows_of(tmp_path / "u")["ids"].to_pylist()} == {1}


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
@pytest.mark.parametrize(
    "option", [["--header"], ["--no-header"], ["--delimiter", "~"], ["--names", "x,y"]]
)
def test_options_of_text_are_refused_of_other_files(
    tmp_path: Path, name: str, option: list[str]
) -> None:
    path = tmp_path / name
    pq.write_table(pa.table({"y": [0, 1], "x": [1.5, 2.5]}), tmp_path / "a.parquet")
    text(tmp_path / "a.jsonl", '{"y": 0, "x": 1.5}\n{"y": 1, "x": 2.5}\n')
    form = "{delimiter: '~', header: true, names: [x, y]}"
    schema = text(
        tmp_path / "schema.yaml",
        f"{{label: y, session_id: null, timestamp: null, dense: [x], text: {form}}}",
    )
    whole = ["--schema", schema]
    refused = f"{option[0]} would do nothing, because it is for text alone: take it out"
    for command in (["schema", path], ["import", path, tmp_path / "t", *whole]):
        assert refused in recd("data", *command, *option, fails=2)
    assert refused in recd("data", "check", path, *whole, *option, fails=1)
    counted = ["vocabulary", path, "--column", "y", "--save", tmp_path / "v.parquet"]
    assert refused in recd("data", *counted, *option, fails=2)
    assert not {one.name for one in tmp_path.iterdir()} & {"t", "v.parquet"}
    recd("data", "import", path, tmp_path / "t", *whole)  # those of a schema are of its text


def test_an_encoding_is_of_text_and_of_lines_of_json(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [0, 1]}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_bytes('{"y": 0, "x": "\xe9"}\n'.encode("latin-1"))
    latin = ["--encoding", "latin-1"]
    assert "--encoding would do" in recd("data", "schema", tmp_path / "a.parquet", *latin, fails=2)
    assert "latin-1" in recd("data", "schema", tmp_path / "a.jsonl", *latin)


def test_names_of_a_schema_are_of_text_without_a_header(tmp_path: Path) -> None:
    form = TextForm(names=("y", "item"))
    bare = text(tmp_path / "a.tsv", "1\t2\n0\t3\n")
    pq.write_table(pa.table({"item": [1, 3], "more": [2, 2], "y": [0, 1]}), tmp_path / "b.parquet")
    headed = text(tmp_path / "c.tsv", "item\ty\n1\t1\n2\t0\n")
    other = text(tmp_path / "d.tsv", "label\tid\n1\t2\n0\t3\n")
    wanted = {
        bare: ("y", "item"),
        tmp_path / "b.parquet": ("item", "more", "y"),
        headed: ("item", "y"),
        other: ("y", "item"),
    }
    for path, names in wanted.items():
        (file,) = foreign_files([path], form, given=TextForm())
        assert file.names == names
    with pytest.raises(DataError, match=r"--names would do nothing, because it is for text alone"):
        foreign_files([tmp_path / "b.parquet"], form)
    schema = text(
        tmp_path / "schema.yaml",
        "{label: y, session_id: null, timestamp: null, dense: [item], text: {names: [y, item]}}",
    )
    for path in wanted:
        assert "no problem" in recd("data", "check", path, "--schema", schema)
        recd("data", "import", path, tmp_path / f"t_{path.stem}", "--schema", schema)


@pytest.mark.parametrize(
    ("form", "ms"),
    [
        ("Mon Sep 24 03:35:21 +0000 2012", 1_348_457_721_000),  # Twitter
        ("Mon Sep 24 03:35:21 2012", 1_348_457_721_000),
        ("Mon, 24 Sep 2012 03:35:21 GMT", 1_348_457_721_000),
        ("24/Sep/2012:03:35:21 +0530", 1_348_437_921_000),  # Apache
        ("September 24, 2012 3:35 PM", 1_348_500_900_000),
        ("24-sep-2012", 1_348_444_800_000),
    ],
)
def test_dates_with_the_months_name(form: str, ms: int) -> None:
    assert text_dates(pa.array([form] * 3)) == ("dd mmm yyyy",)
    spot = Spot("a file", "at")
    assert texts_to_ms(pa.array([form] * 2), "dd mmm yyyy", spot).to_pylist() == [ms, ms]
    for odd in (form.replace("24", "31"), form.lower().replace("sep", "zep")):
        with pytest.raises(DataError, match="which is no date of `timestamp_unit: dd mmm yyyy`"):
            texts_to_ms(pa.array([form, odd]), "dd mmm yyyy", spot)


def test_twitters_times_are_proposed(tmp_path: Path) -> None:
    rows = [
        {"created_at": f"Mon Sep 24 03:{one % 60:02}:21 +0000 2012", "y": one % 2, "tag": one % 9}
        for one in range(200)
    ]
    path = text(tmp_path / "tweets.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    schema = proposed(path)["schema"]
    assert (schema["timestamp"], schema["timestamp_unit"]) == ("created_at", "dd mmm yyyy")
    file = text(tmp_path / "schema.yaml", json.dumps(schema))
    recd("data", "import", path, tmp_path / "t", "--schema", file)
    made = rows_of(tmp_path / "t")["created_at"].to_pylist()
    assert made == [1_348_455_621_000 + one % 60 * 60_000 for one in range(200)]


@pytest.mark.parametrize(
    ("what", "line", "ids"),
    [
        ("libsvm", "{y} 3:0.5 {n}:1", ["3", "{n}"]),
        ("libsvm", "{y} qid:7 3:0.5 {n}:1  # a query", ["3", "{n}"]),
        ("libffm", "{y} 0:3:0.5 1:{n}:1", ["0_3", "1_{n}"]),
    ],
)
def test_lines_of_libsvm_are_refused_with_a_cure_that_works(
    tmp_path: Path, what: str, line: str, ids: list[str]
) -> None:
    lines = [line.format(y=one % 2, n=10 + one % 7) for one in range(100)]
    path = text(tmp_path / "train.svm", "\n".join(lines) + "\n")
    told = recd("data", "schema", path, fails=2)
    assert f"is {what}, a label and" in told
    (command,) = re.findall(r"sed -E .*", told)
    if shutil.which("sed") is None:
        pytest.skip("sed, which the advice names, is not there to try it")
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, check=True)
    options = ("--names", "label,features")
    recd("data", "import", tmp_path / "train.tsv", tmp_path / "t", *options)
    files = foreign_files([tmp_path / "train.tsv"], TextForm(names=("label", "features")))
    (block,) = blocks(files, ["features"])
    pairs = block.rows(["features"], survey(files).read_as)["features"].to_pylist()
    assert [str(one["id"]) for one in pairs[3]] == [one.format(n=13) for one in ids]
    assert [one["weight"] for one in pairs[3]] == [0.5, 1]


ROWS_OF_TEXT = "label,item\n" + "".join(f"{one % 2},{10 + one % 7}\n" for one in range(20_000))


@pytest.mark.parametrize(
    ("name", "content", "says", "made"),
    [
        ("a.csv", "# of May\n" + ROWS_OF_TEXT, "take it out: tail", "a.rows.csv"),
        ("a.csv", "sep=,\n" + ROWS_OF_TEXT, "Take it out: tail", "a.rows.csv"),
        ("a.csv", ROWS_OF_TEXT.replace("\n", "\r"), "with newlines: tr", "a.unix.csv"),
        ("a.csv", ROWS_OF_TEXT * 2, "Take that out: awk", "a.rows.csv"),
        ("a.csv.gz", ROWS_OF_TEXT, "may be incomplete: gzip", "a.csv"),
        ("a.jsonl", "[0,10]\n[1,11]\n[0,12]\n", "Write them as CSV: jq", "a.rows.csv"),
    ],
)
def test_a_command_that_a_message_names_runs_in_another_folder(
    tmp_path: Path, name: str, content: str, says: str, made: str
) -> None:
    """Whatever the name of the folder where the file lies."""
    (tmp_path / "two words").mkdir()
    path = text(tmp_path / "two words" / name, content)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(content.encode())[:-30])
    told = recd("data", "schema", path, fails=2)
    rest = told.partition(says)[2]
    assert rest, told
    program = says.rpartition(" ")[2]
    if shutil.which(program) is None:
        assert f" '{path}'" in rest
        pytest.skip(f"{program}, which the advice names, is not there to try it")
    command = f"{program}{rest}".strip()
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)
    rows = (tmp_path / made).read_text().removeprefix("label,item\n")
    assert rows.startswith("0,10\n1,11\n0,12\n")


def test_the_recipe_for_impressions_makes_a_row_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/own-data.md: of MIND's `N1-1 N2-0` samples."""
    page = (DOCS / "own-data.md").read_text()
    (recipe,) = re.findall(r"```python\n# impressions\.py\n(.*?)```", page, re.DOTALL)
    assert len(recipe.splitlines()) <= 8
    monkeypatch.chdir(tmp_path)
    text(tmp_path / "behaviors.tsv", "1\tU7\tN5 N6\tN1-1 N2-0\n2\tU8\t\tN-3-0\n")
    exec(compile(recipe, "impressions.py", "exec"), {})
    assert (tmp_path / "rows.tsv").read_text() == (
        "1\tU7\tN5 N6\tN1\t1\n1\tU7\tN5 N6\tN2\t0\n2\tU8\t\tN-3\t0\n"
    )
