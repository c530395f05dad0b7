"""Value tests: what a stranger's log answers that no log may is told with its name, and by whom."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import recd_plugins as rp
from recd_plugins.cli.main import app
from recd_plugins.errors import PluginError

PLUGIN = """
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recd_plugins.api import Config, LogRecord, hookimpl
from recd_plugins.api.data import MESSAGES, Cuts, Placed


@dataclass(frozen=True, kw_only=True)
class StrangeConfig(Config):
    '''A log that is wrong somewhere.'''
    wrong: str = ""
    '''Where.'''


def messages(**columns):
    rows = {"session_id": [1, 2], "timestamp": [5, 6], "message": [b"", b""], **columns}
    return pa.RecordBatch.from_pydict(rows)


NULLS = messages(session_id=pa.array([1, None], pa.int64()))
READ = {
    "no_iterator": lambda: None,
    "a_table": lambda: [pa.Table.from_batches([messages()])],
    "other_columns": lambda: [pa.RecordBatch.from_arrays(messages().columns, ["id", "at", "text"])],
    "nulls": lambda: [NULLS],
}


CUTS = {
    "before": {"before": None},
    "past": {"past": {"p": "9"}},
    "behind": {"behind": "writer 1"},
    "latest": {"latest": "now"},
    "ended": {"ended": None},
}
BETWEEN = {
    "between": [("p", 0, messages())],
    "no_messages": [Placed("p", 0, None)],
    "no_place": [Placed("p", None, messages())],
}


class Strange:
    name = "strange"
    def __init__(self, config, context):
        self.wrong = config.wrong
        self.shards = {"no_shards": 0, "text_shards": "3"}.get(self.wrong, 2)
        self.route = "sessions" if self.wrong == "route" else "session"

    def append(self, messages): ...
    def flush(self): ...
    def close(self): ...

    def read(self, shard):
        if self.wrong == "loud":
            print("reading")
        if self.wrong == "raises":
            raise KeyError("offsets")
        if self.wrong in READ:
            return READ[self.wrong]()
        return [pa.RecordBatch.from_pylist([], schema=MESSAGES)]

    def fingerprint(self):
        return None if self.wrong == "fingerprint" else self.wrong

    def cuts(self, begins, first, second):
        if self.wrong == "cuts":
            return None
        right = {"before": {"p": 0}, "past": {"p": np.int64(9)}, "behind": (), "latest": second}
        return Cuts(**{"ended": True, **right, **CUTS.get(self.wrong, {})})

    def between(self, shard, *places):
        return BETWEEN.get(self.wrong, [])


class Bare:
    def __init__(self, config, context):
        self.shards = 2


@hookimpl
def recd_log():
    yield LogRecord(name="strange", summary="Wrong.", config=StrangeConfig, build=Strange)
    yield LogRecord(name="bare", summary="Wrong.", config=Config, build=Bare)
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file: Path = tmp_path_factory.mktemp("plugins") / "strange_log.py"
    file.write_text(PLUGIN)
    yield str(file)
    sys.path.remove(str(file.parent))


def message(plugin: str, folder: Path, log: Any, **dataset: Any) -> str:
    """The error of tables that are made of this log."""
    schema = {"sparse": [{"name": "item", "num_ids": 9}]}
    registry: Mapping[str, Any] = {
        "plugins": ["recd_dedup", plugin],
        "folder": str(folder),
        "log": log,
        "dataset": {"use": "logged", "schema": schema, **dataset},
    }
    with pytest.raises(PluginError) as caught:
        rp.load(registry).prepare()
    return str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("no_shards", "its `shards` is 0. Let it be how many log shards there are."),
        ("text_shards", "its `shards` is '3'."),
        ("route", "its `route` is 'sessions'. Let it be one of session, message."),
        ("fingerprint", "its `fingerprint` returned None. Return a text that changes with what"),
        ("no_iterator", "its `read` returned None. Yield them, each a RecordBatch."),
        ("a_table", "its `read` yielded a Table."),
        ("other_columns", "its `read` yielded the columns id: int64, at: int64, text: binary."),
        ("nulls", "its `read` yielded 1 messages without 'session_id'. Give each one."),
    ],
)
def test_what_no_log_may_answer_is_told(plugin: str, tmp_path: Path, wrong: str, says: str) -> None:
    said = message(plugin, tmp_path, {"use": "strange", "wrong": wrong})
    assert said.startswith(f"log: Strange: {says}")
    assert said.endswith("docs/slots.md says more.")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("cuts", "its `cuts` returned None. Return Cuts."),
        ("before", "its `cuts` returned Cuts whose `before` is None. Let it be a number by"),
        ("past", "its `cuts` returned Cuts whose `past` is {'p': '9'}."),
        ("behind", "its `cuts` returned Cuts whose `behind` is 'writer 1'. Let it be a tuple of"),
        ("latest", "its `cuts` returned Cuts whose `latest` is 'now'. Let it be a time in ms, or"),
        ("ended", "its `cuts` returned Cuts whose `ended` is None."),
        ("between", "its `between` yielded a tuple."),
        ("no_messages", "its `between` yielded Placed of a str, a int, None."),
        ("no_place", "its `between` yielded Placed of a str, None, a RecordBatch."),
    ],
)
def test_so_is_what_no_growing_log_may_answer(
    plugin: str, tmp_path: Path, wrong: str, says: str
) -> None:
    said = message(
        plugin, tmp_path, {"use": "strange", "wrong": wrong}, use="growing_log", origin=0
    )
    assert said.startswith(f"log: Strange: {says}")
    assert said.endswith("docs/slots.md says more.")


def test_an_error_of_a_log_is_not_its_datasets(plugin: str, tmp_path: Path) -> None:
    said = message(plugin, tmp_path, {"use": "strange", "wrong": "raises"})
    assert said.startswith("dataset: dataset 'logged' of ")
    raised = f"plugin {plugin!r} raised KeyError in Strange.read (strange_log.py:"
    assert f", when it wrote its tables: {raised}" in said
    assert said.endswith("): 'offsets'. Run recd with --debug for its traceback.")


def test_what_a_log_prints_is_no_part_of_what_a_command_prints(plugin: str, tmp_path: Path) -> None:
    registry = {
        "plugins": ["recd_dedup", plugin],
        "folder": str(tmp_path),
        "log": {"use": "strange", "wrong": "loud"},
        "dataset": {"use": "logged", "schema": {"sparse": [{"name": "item", "num_ids": 9}]}},
    }
    (tmp_path / "registry.yaml").write_text(json.dumps(registry))
    options = ["--registry", str(tmp_path / "registry.yaml"), "--json"]
    result = CliRunner().invoke(app, ["data", "prepare", *options])
    assert "reading" in result.stderr
    assert "reading" not in result.stdout


def test_a_log_that_nobody_can_read_is_told_when_built(plugin: str, tmp_path: Path) -> None:
    said = message(plugin, tmp_path, "bare")
    assert said.startswith(f"log: log 'bare' of {plugin} built a Bare, which is no LogStore: it ")
    assert "it lacks route, read, fingerprint." in said
