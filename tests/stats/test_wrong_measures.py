"""Value tests on the command line: what a measure does that no measure may is told with its name,
and what others found is printed all the same."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from recd_plugins.cli.doctor import _registry
from recd_plugins.cli.main import app
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.batches import random_table

SCHEMA = Schema(sparse=(SparseFeature(name="item", num_ids=9),))

PLUGIN = """
import errno
from dataclasses import dataclass

import numpy as np

from recd_plugins import hookimpl
from recd_plugins.api import Config, StatsRecord
from recd_plugins.api.data import StatsReport, StatsTable


@dataclass(frozen=True, kw_only=True)
class NeedyConfig(Config):
    '''It must be told.'''
    column: str
    '''A column.'''


def right(table, **changed):
    shown = StatsTable(title="rows [/of] a table", columns=["count"], rows=[[str(table.num_rows)]])
    return StatsReport(**{"values": {"count": table.num_rows}, "tables": [shown], **changed})


def row(text):
    return [StatsTable(title="rows", columns=["count"], rows=[text])]


def wrong(**changed):
    return StatsTable(**{"title": "rows", "columns": ["count"], "rows": [["3"]], **changed})


def draws_nothing(figure):
    pass


def draws_loudly(figure):
    print("drawing")
    figure.subplots().plot([1, 2])


def raises(*_):
    raise KeyError("rows")


def fills_the_disk(table, progress):
    raise OSError(errno.ENOSPC, "No space left on device")


def appends(table, progress):
    with open(table.files[0], "ab") as file:
        file.write(b"!")
    return right(table)


def prints(table, progress):
    print("half of it")
    return right(table, values={"mean": float("nan"), "each": [1.0, float("inf")]})


MEASURES = {
    "right": lambda table, progress: right(table),
    "prints": prints,
    "of_nothing": lambda table, progress: None,
    "raises": raises,
    "of_arrays": lambda table, progress: right(table, values={"count": np.ones(2)}),
    "of_a_list": lambda table, progress: right(table, values=[3]),
    "of_numbers": lambda table, progress: right(table, tables=row([3])),
    "wider": lambda table, progress: right(table, tables=row(["3", "4"])),
    "no_title": lambda table, progress: right(table, tables=[wrong(title=None)]),
    "no_columns": lambda table, progress: right(table, tables=[wrong(columns=None)]),
    "no_rows": lambda table, progress: right(table, tables=[wrong(rows=None)]),
    "one_note": lambda table, progress: right(table, tables=[wrong(notes="counted")]),
    "draws_loudly": lambda table, progress: right(table, figures={"bar": draws_loudly}),
    "of_texts": lambda table, progress: right(table, tables=["rows"]),
    "no_word": lambda table, progress: right(table, figures={"../bar": draws_nothing}),
    "no_function": lambda table, progress: right(table, figures={"bar": 3}),
    "draws_nothing": lambda table, progress: right(table, figures={"bar": draws_nothing}),
    "draws_badly": lambda table, progress: right(table, figures={"bar": raises}),
    "appends": appends,
    "fills_the_disk": fills_the_disk,
}


class Measure:
    def __init__(self, measure):
        self.measure = measure


@hookimpl
def recd_stats():
    for name, one in MEASURES.items():
        build = lambda config, context, one=one: Measure(one)
        yield StatsRecord(name=name, summary="One.", config=Config, build=build)
"""

NEEDY = """
@hookimpl
def recd_stats():
    build = lambda config, context: Measure(MEASURES["right"])
    yield StatsRecord(name="needy", summary="One.", config=NeedyConfig, build=build)
    yield StatsRecord(
        name="lacking", summary="One.", config=Config, build=build, needs=("import:no_such_one",)
    )
    yield StatsRecord(name="right", summary="One.", config=Config, build=build)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a table of 90 rows, and a plugin with a measure for each mistake."""
    random_table(tmp_path / "table", SCHEMA, 90)
    (tmp_path / "wrong_measures.py").write_text(PLUGIN)
    (tmp_path / "needy_measures.py").write_text(PLUGIN.partition("@hookimpl")[0] + NEEDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("wrong_measures", "needy_measures", "loud_measures", "silent_measures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def measured(*names: str, options: tuple[str, ...] = (), plugin: str = "wrong_measures") -> Result:
    chosen: dict[str, Any] = {"stats": [*names]} if names else {}
    Path("registry.yaml").write_text(json.dumps({"plugins": [f"./{plugin}.py"], **chosen}))
    return CliRunner().invoke(app, ["data", "stats", "table", *options])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("of_nothing", "its `measure` returned None, whose type must be StatsReport."),
        ("raises", "raised KeyError in raises (wrong_measures.py:"),
        ("raises", ") when it measured: 'rows'. Run recd with --debug for its traceback."),
        ("of_arrays", "its values must be what JSON takes: texts, finite numbers, lists and mapp"),
        ("of_a_list", "its values must be a mapping, not a list. Return them by name."),
        ("of_numbers", "each row of its table 'rows' must be a text for each column, of which it"),
        (
            "wider",
            "each row of its table 'rows' must be a text for each column, of which it has",
        ),
        ("no_title", "the title and the columns of each of its tables must be texts. Return a"),
        ("no_columns", "the title and the columns of each of its tables must be texts. Return a"),
        ("no_rows", "each row of its table 'rows' must be a text for each column, of which it"),
        ("one_note", "the notes of its table 'rows' must be a list of texts. Return a list"),
        ("of_texts", "each of its tables must be a StatsTable, not the str 'rows'."),
        ("no_word", "figure '../bar' must be a word, since it names a file. Use letters, digits"),
        ("no_function", "figure 'bar' must be a function that draws it, not the int 3."),
        ("draws_nothing", "figure 'bar' draws nothing onto the figure that it is given. Use figu"),
        ("draws_badly", "raised KeyError in raises (wrong_measures.py:"),
        ("draws_badly", ") when it drew figure 'bar': 'rows'."),
        ("appends", "its `measure` changed file table/"),
    ],
)
def test_a_measure_that_breaks_a_rule_is_named(folder: Path, name: str, says: str) -> None:
    """What was found before it is printed."""
    result = measured("right", name, options=("--figures", "figures"))
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith(f"error: stats[1]: stats '{name}' of ./wrong_measures.py")
    assert says in result.stderr
    assert "rows [/of] a table" in result.stdout
    assert not [*folder.glob("figures/*")]


def test_a_disk_that_a_measure_fills_is_named(folder: Path) -> None:
    result = measured("fills_the_disk")
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("error: data: No space left on device. Name another path")


def test_what_a_measure_prints_is_not_what_is_found(folder: Path) -> None:
    result = measured("prints", options=("--json",))
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    assert found["stats"] == {"prints": {"mean": None, "each": [1.0, None]}}
    assert "half of it" in result.stderr


def test_what_a_plugin_prints_is_no_part_of_what_a_command_says(folder: Path) -> None:
    """As it is imported, as its hook is called, and as it draws."""
    loud = PLUGIN.replace("def recd_stats():", "def recd_stats():\n    print('hooked')")
    Path("loud_measures.py").write_text(f"print('imported'){loud}")
    options = ("--json", "--figures", "figures")
    result = measured("draws_loudly", options=options, plugin="loud_measures")
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(result.stdout)
    assert (found["stats"], len(found["figures"])) == ({"draws_loudly": {"count": 90}}, 1)
    for said in ("imported", "hooked", "drawing"):
        assert said in result.stderr


def test_a_hook_that_returns_nothing_is_named(folder: Path) -> None:
    """Where nobody chose its records, too: others would measure in their place, without a word."""
    silent = PLUGIN.partition("@hookimpl")[0] + "@hookimpl\ndef recd_stats():\n    [1]\n"
    Path("silent_measures.py").write_text(silent)
    result = measured(plugin="silent_measures")
    says = "The hook recd_stats of ./silent_measures.py returned None: let it return its records."
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: registry.yaml: {says}")
    with pytest.raises(RegistryError, match=re.escape(says)):
        _registry(Path("registry.yaml"))  # as `recd doctor` asks


def test_measures_that_nobody_chose_may_lack_something(folder: Path) -> None:
    with pytest.warns(NoticeWarning) as warned:
        result = measured(plugin="needy_measures", options=("--json",))
    assert json.loads(result.stdout)["stats"] == {"right": {"count": 90}}
    first, second = sorted(str(one.message) for one in warned)
    assert "stats: lacking is left out: " in first
    assert "needs the package 'no_such_one', which is not installed." in first
    assert first.endswith("Choose it in registry.yaml, `stats: [{use: lacking, ...}]`.")
    assert "stats: needy is left out: " in second
    assert "column" in second


def test_measures_that_were_chosen_may_not(folder: Path) -> None:
    result = measured("lacking", plugin="needy_measures")
    assert result.exit_code == 2
    assert "needs the package 'no_such_one', which is not installed" in result.stderr
