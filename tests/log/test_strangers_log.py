"""Value tests: what a stranger's log answers that no log may is told with its name, and by whom."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import recd_plugins as rp
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
        return Cuts(before={"p": 0}, past={"p": 9}, behind=(), latest=second, ended=True)

    def between(self, shard, *places):
        return [("p", 0, messages())] if self.wrong == "between" else []


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


@pytest.mark.parametrize("wrong", ["cuts", "between"])
def test_so_is_what_no_growing_log_may_answer(plugin: str, tmp_path: Path, wrong: str) -> None:
    said = message(
        plugin, tmp_path, {"use": "strange", "wrong": wrong}, use="growing_log", origin=0
    )
    assert said.startswith(f"log: Strange: its `{wrong}` ")


def test_an_error_of_a_log_is_not_its_datasets(plugin: str, tmp_path: Path) -> None:
    said = message(plugin, tmp_path, {"use": "strange", "wrong": "raises"})
    assert said.startswith("dataset: dataset 'logged' of ")
    raised = f"plugin {plugin!r} raised KeyError in Strange.read (strange_log.py:"
    assert f", when it wrote its tables: {raised}" in said
    assert said.endswith("): 'offsets'. Run with --debug for its traceback.")


def test_a_log_that_nobody_can_read_is_told_when_built(plugin: str, tmp_path: Path) -> None:
    said = message(plugin, tmp_path, "bare")
    assert said.startswith(f"log: log 'bare' of {plugin} built a Bare, which is no LogStore: it ")
    assert "it lacks route, read, fingerprint." in said
