"""The report that a measure of the `stats` slot makes of a table: values, tables to read, figures
to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Draw", "StatsReport", "StatsTable"]

Draw = Callable[["Figure"], None]
"""Draws onto an empty figure and sets its size; whoever calls it saves the figure."""


@dataclass(frozen=True, kw_only=True)
class StatsTable:
    """A table as a person reads it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """A text per column in each."""
    notes: Sequence[str] = ()
    """Sentences below it: what was counted, and how."""


@dataclass(frozen=True, kw_only=True)
class StatsReport:
    """The findings of one measure."""

    values: Mapping[str, Any]
    """Everything found, as JSON takes it."""
    tables: Sequence[StatsTable] = ()
    """The same in short, for the console."""
    figures: Mapping[str, Draw] = field(default_factory=dict)
    """The same to look at: a word, which names the file, to what draws it."""
