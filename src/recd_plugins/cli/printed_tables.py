"""Prints tables of figures: whole, where it is no terminal that shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_table"]

WIDEST = 10_000
"""The most columns of text that a table may ask for."""


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table. A terminal has lines of its own width; a file or a pipe takes any, and whoever
    reads it needs all digits, though COLUMNS of the shell may be few."""
    if console is None:
        from rich.console import Console

        console = Console()
    width = console.width
    if not console.is_terminal:
        options = console.options.update(width=WIDEST)
        width = max(width, console.measure(table, options=options).maximum)
    before, console.width = console.width, width
    console.print(table)
    console.width = before
