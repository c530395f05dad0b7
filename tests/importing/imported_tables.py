"""`recd`, as tests of importing call it, and the rows of the tables that it made."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.table import Table


def recd(*words: object, fails: int = 0) -> str:
    """What a command printed that ended with the exit code `fails`."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == fails, result.output
    assert result.exception is None or fails
    return result.output


def rows_of(table: Path) -> pa.Table:
    opened = Table.open(table)
    return pa.concat_tables(opened.read(stripe) for stripe in opened.stripes)
