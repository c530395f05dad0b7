"""Rung 1 (values, on files): keys with slashes are columns like others, and what a message about
lines of JSON has one do can be done."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path

import pytest
from strangers_files import text
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.importing.surveying import sample as samples
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.table import Table


def lines(path: Path, rows: list[dict[str, object]]) -> Path:
    return text(path, "".join(json.dumps(row) + "\n" for row in rows))


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert result.exit_code, result.output
    return result.output if result.exit_code == 1 else result.stderr


@pytest.mark.parametrize("key", ["x", "a/b", "/a", "a/"])
@pytest.mark.parametrize("within", [False, True])
def test_a_key_of_several_types_is_left_out(tmp_path: Path, key: str, within: bool) -> None:
    odd = [{"n": one, key: one if one % 2 else "a"} for one in range(40)]
    rows = [{"label": at % 2, **({"u/v": one} if within else one)} for at, one in enumerate(odd)]
    found = survey(foreign_files([lines(tmp_path / "a.jsonl", rows)]))
    left, name = ("u/v.n", f"u/v.{key}") if within else ("n", key)
    assert [column.name for column in found.columns] == ["label", left]
    assert found.doubts == (f"{name!r} has several types, so it is left out",)


@pytest.mark.parametrize("where", ["a/b", "u.a/b"])
def test_a_key_with_a_slash_is_widened(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any other column whose sample shows integers alone."""
    monkeypatch.setattr(samples, "FIRST_BYTES", 1_000)
    monkeypatch.setattr(samples, "SPOT_BYTES", 100)
    values = [2.5 if one == 777 else 3 for one in range(2_000)]
    rows = [
        {"label": at % 2, **({"u": {"a/b": one}} if "." in where else {"a/b": one})}
        for at, one in enumerate(values)
    ]
    path = lines(tmp_path / "a.jsonl", rows)
    options = {"session_id": None, "timestamp": None, "label": "label", "dense": [where]}
    schema = text(tmp_path / "s.yaml", json.dumps(options))
    made = CliRunner().invoke(
        app, ["data", "import", str(path), str(tmp_path / "t"), "--schema", str(schema)]
    )
    assert made.exit_code == 0, made.output
    assert f"{where}: read as numbers with fractions" in made.stderr
    table = Table.open(tmp_path / "t")
    assert table.read(table.stripes[0])[where].to_pylist()[776:778] == [3.0, 2.5]


def test_commas_in_texts_of_json_part_thousands_in_no_schema(tmp_path: Path) -> None:
    rows = [{"label": at % 2, "price": f"{12 + at % 7},{100 + at}"} for at in range(300)]
    (doubt,) = survey(foreign_files([lines(tmp_path / "a.jsonl", rows)])).doubts
    assert doubt.endswith(
        "if they separate thousands, write numbers without them, and without quotes"
    )


def test_names_are_given_to_columns_of_text_alone(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"label": 1, "item": 3}])
    says = refused("schema", path, "--names", "a,b")
    assert "is lines of JSON, whose columns are called label, item there" in says
    assert "--names would do nothing, because it is for text alone: take it out" in says


def test_a_split_by_a_key_that_no_line_has_is_named_as_the_splits(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"label": at % 2, "user": at} for at in range(30)])
    options = {"session_id": None, "timestamp": None, "label": "label", "dense": ["user"]}
    schema = text(tmp_path / "s.yaml", json.dumps(options))
    says = refused("import", path, tmp_path / "t", "--schema", schema, "--split-by", "hash:usr")
    assert "--split-by hash:usr: no line has a key 'usr'; did you mean 'user'?" in says
    assert "schema" not in says


def test_a_line_that_is_cut_is_to_be_mended_and_no_others(tmp_path: Path) -> None:
    path = text(tmp_path / "a.jsonl", '{"label": 1}\n' * 9 + '{"label": 1, "ite')
    says = refused("schema", path)
    assert "a.jsonl:10: is no JSON object on one line" in says
    assert "Correct this line, or take it out." in says
    path = text(tmp_path / "b.json", json.dumps({"label": 1}, indent=1))
    assert f"Write one object per line (jq -c . {path})." in refused("schema", path)


def test_what_reads_a_packed_file_unpacks_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    for content, program in (
        (json.dumps({"label": 1}, indent=1), "-c ."),
        (json.dumps([{"label": 1}]), "-c '.[]'"),
    ):
        path.write_bytes(gzip.compress(content.encode()))
        assert f"(gzip -dc {path} | jq {program})" in refused("schema", path)


def test_a_check_whose_lines_cannot_be_read_says_so_once(tmp_path: Path) -> None:
    rows = '{"label": 1, "x": 1}\n' * 30 + '{"label": 1, "x": 1, "x": 2}\n'
    path = text(tmp_path / "a.jsonl", rows)
    options = {"session_id": None, "timestamp": None, "label": "label", "dense": ["x"]}
    schema = text(tmp_path / "s.yaml", json.dumps(options))
    says = refused("check", path, "--schema", schema)
    assert "1 problem" in says
    assert "was specified twice" in says


@pytest.mark.parametrize("key", ["it's", 'a"b', "a/b", "\u00e4"])
def test_a_command_of_jq_quotes_a_key(tmp_path: Path, key: str) -> None:
    rows = [
        {"label": at % 2, key: {f"item_{(at * 7 + one) % 300}": 1 for one in range(3)}}
        for at in range(300)
    ]
    (doubt,) = survey(foreign_files([lines(tmp_path / "a.jsonl", rows)])).doubts
    words = shlex.split(doubt.partition("a feature: ")[2])
    assert words[:2] == ["jq", "-c"]
    assert words[2].startswith(f".[{json.dumps(key)}] |= (")
    assert words[3:] == ["FILE"]
