"""Ladder: a printed table as text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from recd_plugins.cli.printed_tables import print_table


def printed(*, terminal: bool, width: int = 40) -> str:
    table = Table("what", "first run", "second run", title="steps of two runs, and what they took")
    table.add_row("all collectives, MiB a rank", "1,234,567.891", "48.10 to 10,644.25")
    shown = io.StringIO()
    print_table(table, Console(file=shown, force_terminal=terminal, width=width, no_color=True))
    return shown.getvalue()


def test_a_pipe_gets_all_digits_however_narrow_the_shell_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (row,) = (line for line in printed(terminal=False).splitlines() if "collectives" in line)
    for figure in ("all collectives, MiB a rank", "1,234,567.891", "48.10 to 10,644.25"):
        assert figure in row
    assert "1,234,567.891" not in printed(terminal=True, width=20)  # a terminal is as wide as it is
    monkeypatch.setenv("COLUMNS", "20")
    with io.StringIO() as shown:
        table = Table("figure")
        table.add_row("0.123456789 to 9.876543210")
        print_table(table, Console(file=shown))
        assert "0.123456789 to 9.876543210" in shown.getvalue()
