"""`recd`, as tests of importing call it, and the rows of the tables that it made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.table import Table


def recd(*words: object, fails: int = 0) -> str:
    """What a command printed that ended with the exit code `fails`."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == fails, result.output
    assert result.exception is None or fails
    return result.output


def rows_of(table: Path) -> pa.Table:
    return _rows(Table.open(table))


def rows_both_ways(table: Path, schema: dict[str, Any], to: Path) -> list[dict[str, Any]]:
    """The rows that an import makes, which are those that training reads in place."""
    file = schema_file(schema, to)
    assert "no problem" in recd("data", "check", table, "--schema", file)
    recd("data", "import", table, to, "--schema", file)
    made: list[dict[str, Any]] = rows_of(to).to_pylist()
    assert made == _rows(Table.open(table, load_schema(file))).to_pylist()
    return made


def schema_file(schema: dict[str, Any], beside: Path) -> Path:
    """A schema without sessions and times, unless it has some, as a file."""
    file = beside.with_suffix(".yaml")
    file.write_text(json.dumps({"session_id": None, "timestamp": None, **schema}))
    return file


def _rows(opened: Table) -> pa.Table:
    return pa.concat_tables(opened.read(stripe) for stripe in opened.stripes)
