"""Value tests on the command line: whose measures `recd data stats` asks, and what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from recd_plugins.cli.main import app
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.testing.batches import random_table

SCHEMA = Schema(sparse=(SparseFeature(name="item", num_ids=9),))

PLUGIN = """
from dataclasses import dataclass
from recd_plugins import hookimpl
from recd_plugins.config import Config
from recd_plugins.data.stats_report import StatsReport, StatsTable
from recd_plugins.errors import DataError
from recd_plugins.slots import StatsRecord

@dataclass(frozen=True, kw_only=True)
class CountConfig(Config):
    '''Counts.'''
    every: int = 1
    '''Rows to a count.'''

class Count:
    def __init__(self, config, context):
        self.every = config.every

    def measure(self, table, progress):
        if self.every == 0:
            raise DataError(f"{table.path}: cannot be counted.")
        progress("counting", 1, 1)
        count = table.num_rows // self.every
        return StatsReport(
            values={"count": count},
            tables=[StatsTable(title="a count", columns=["what", "count"],
                               rows=[["rows", f"{count:,}"]], notes=["Rounded down."])],
            figures={"bar": lambda figure: figure.add_subplot().bar(["rows"], [count])},
        )

@hookimpl
def recd_stats():
    return [StatsRecord(name="count", summary="Counts.", config=CountConfig, build=Count)]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a table of 90 rows, and two plugins of one measure each."""
    random_table(tmp_path / "table", SCHEMA, 90)
    (tmp_path / "count_rows.py").write_text(PLUGIN)
    (tmp_path / "count_more.py").write_text(PLUGIN.replace('"count"', '"more"'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("count_rows", "count_more"):  # of another test's folder
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def stats(
    *arguments: str,
    table: str = "table",
    plugins: Sequence[str] = ("./count_rows.py", "./count_more.py"),
    **slots: Any,
) -> Result:
    Path("registry.yaml").write_text(json.dumps({"plugins": list(plugins), **slots}))
    return CliRunner().invoke(app, ["data", "stats", table, *arguments])


def found(result: Result) -> Mapping[str, Any]:
    assert result.exit_code == 0, (result.output, result.exception)
    values: Mapping[str, Any] = json.loads(result.stdout)
    return values


def message(result: Result) -> str:
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("error: ")
    return result.stderr


def test_json_is_one_object_of_all_that_the_plugins_measure(folder: Path) -> None:
    assert found(stats("--json")) == {
        "path": "table",
        "stats": {"count": {"count": 90}, "more": {"more": 90}},
        "figures": [],
    }


def test_the_registry_chooses_and_may_choose_one_twice(folder: Path) -> None:
    chosen = [{"use": "count", "every": 7}, "count"]
    assert found(stats("--json", stats=chosen))["stats"] == {
        "count": {"count": 12},
        "count-2": {"count": 90},
    }


def test_the_console_shows_tables_and_notes(folder: Path) -> None:
    result = stats(stats=["count"])
    assert result.exit_code == 0
    for text in ("a count", "rows", "90", "Rounded down."):
        assert text in result.stdout
    assert "more" not in result.stdout


def test_figures_are_png_files_named_after_measure_and_figure(folder: Path) -> None:
    result = found(stats("--json", "--figures", "out/figures"))
    assert result["figures"] == ["out/figures/count-bar.png", "out/figures/more-bar.png"]
    for path in result["figures"]:
        assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_without_a_measure_all_that_are_installed_are_asked_unless_none_is_meant(
    folder: Path,
) -> None:
    assert "sessions" in found(stats("--json", plugins=[]))["stats"]
    for plugins in ([], ["recd_dlrm"]):
        told = message(stats(plugins=plugins, stats=[]))
        assert "no enabled plugin fills the slot 'stats'" in told
        assert "recd_dedup" in told


def test_a_bare_table_needs_neither_registry_nor_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {
        "session": [f"s{one // 4}" for one in range(800)],
        "user_id": [f"u{one // 4 % 90}" for one in range(800)],
        "item_id": [one % 50 for one in range(800)],
        "at": [1_700_000_000 + one for one in range(800)],
    }
    pq.write_table(pa.table(rows), "t.parquet")

    def measured(*more: str) -> Any:
        result = CliRunner().invoke(app, ["data", "stats", "t.parquet", "--json", *more])
        assert ("no schema says what the columns mean" in result.stderr) == (not more)
        return found(result)["stats"]["sessions"]

    bare = measured()
    assert bare["samples_per_session"]["table"]["mean"] == 4
    assert {one["name"]: one["exact"] for one in bare["features"]} == {
        "user_id": 0.75,
        "item_id": 0,
    }
    labels = [{"name": "item_id", "kind": "regression"}]
    schema = {"session_id": "session", "timestamp": None, "labels": labels}
    schema |= {"sparse": [{"name": "user_id", "num_ids": 99, "ids": "vocabulary", "kind": "user"}]}
    Path("schema.yaml").write_text(json.dumps(schema))
    (user,) = measured("--schema", "schema.yaml")["features"]
    assert user == bare["features"][0]
    assert {one.name for one in tmp_path.iterdir()} == {"t.parquet", "schema.yaml"}


def test_a_bare_table_of_ids_alone_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"item_id": [[1, 2], [3]] * 400}), "t.parquet")
    failed = CliRunner().invoke(app, ["data", "stats", "t.parquet"]).stderr
    assert "t.parquet: beside ids it has no column of numbers" in failed
    assert "among column item_id. Repetition is measured within sessions" in failed


def test_mistakes_give_one_message(folder: Path) -> None:
    assert "nothing: there is no such table" in message(stats(table="nothing"))
    assert "registry.yaml:1: stats[0].evry: unknown option 'evry'; did you mean 'every'?" in (
        message(stats(stats=[{"use": "count", "evry": 1}]))
    )
    assert "table: cannot be counted." in message(stats(stats=[{"use": "count", "every": 0}]))
    Path("odd").mkdir()
    pq.write_table(pa.table({"item": [1]}), "odd/a.parquet")
    Path("odd/b.parquet").mkdir()
    assert "odd/b.parquet: is an empty folder by the name of a file" in stats(table="odd").stderr
    Path("lost").symlink_to("gone")
    assert "lost: is a link to gone, where nothing is. Check the link." in message(
        stats(table="lost")
    )


def test_a_table_of_another_program_has_the_schema_of_the_registry(tmp_path: Path) -> None:
    """In `data stats` as in `data show`; one whose footers have a schema keeps it."""
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"y": [0, 1], "word": ["a", None]}), foreign)
    random_table(tmp_path / "ours", SCHEMA, 10)
    (tmp_path / "counts.py").write_text(PLUGIN)
    (tmp_path / "registry.yaml").write_text(f"""
plugins: [{tmp_path / "counts.py"}]
dataset:
  use: parquet
  train: {foreign}
  test: {foreign}
  schema:
    label: y
    session_id: null
    timestamp: null
    sparse: [{{name: word, num_ids: 7, ids: hash}}]
""")
    arguments = ["-r", str(tmp_path / "registry.yaml"), "--json"]

    def found(command: str, table: Path) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["data", command, str(table), *arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    shown = found("show", tmp_path / "*.parquet")
    assert shown["rows"] == 2
    assert [one["name"] for one in shown["schema"]["sparse"]] == ["word"]
    assert found("stats", foreign)["stats"]
    assert [one["name"] for one in found("show", tmp_path / "ours")["schema"]["sparse"]] == ["item"]
