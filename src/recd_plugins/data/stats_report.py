"""The report that a measure of the `stats` slot makes of a table: values, tables to read, figures
to look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import called

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Draw", "StatsReport", "StatsTable", "broken_rules"]

Draw = Callable[["Figure"], None]
"""Draws onto an empty figure and sets its size; the caller saves the figure."""


@dataclass(frozen=True, kw_only=True)
class StatsTable:
    """A table as a person reads it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """A text per column in each."""
    notes: Sequence[str] = ()
    """Sentences below the table: what was counted, and how."""


@dataclass(frozen=True, kw_only=True)
class StatsReport:
    """The findings of one measure."""

    values: Mapping[str, Any]
    """Everything that was found, as JSON takes it."""
    tables: Sequence[StatsTable] = ()
    """The same in short, for the console."""
    figures: Mapping[str, Draw] = field(default_factory=dict)
    """The same as figures: the key is a word that names the file, the value a function that draws
    the figure."""


def broken_rules(report: StatsReport, *, finite: bool = True) -> Iterator[tuple[str, str]]:
    """The rules that a report breaks, each with what to do. Its numbers need not be `finite` if the
    printer can handle others."""
    values: object = report.values
    if not isinstance(values, Mapping):
        yield f"its values must be a mapping, not {called(values)}", "Return them by name."
    elif not _is_json(values, finite=finite):
        yield (
            "its values must be what JSON takes: texts, finite numbers, lists and mappings",
            "Convert arrays with .tolist() and numbers with float().",
        )
    tables: object = report.tables
    fix = "Return a list of StatsTable(title=..., columns=[...], rows=[[...]])."
    if not isinstance(tables, Sequence):
        yield f"its tables must be a list, not {called(tables)}", fix
        return
    for part in tables:
        if not isinstance(part, StatsTable):
            yield f"each of its tables must be a StatsTable, not {called(part)}", fix
        elif not (isinstance(part.title, str) and _are_texts(part.columns)):
            yield "the title and the columns of each of its tables must be texts", fix
        elif not _are_texts(part.notes):
            yield f"the notes of its table {part.title!r} must be a list of texts", fix
        elif not _is_list(part.rows) or not all(
            _are_texts(row) and len(row) == len(part.columns) for row in part.rows
        ):
            yield (
                f"each row of its table {part.title!r} must be a text for each column, of "
                f"which it has {len(part.columns)}",
                "Format numbers where the table is made.",
            )
    figures: object = report.figures
    if not isinstance(figures, Mapping):
        yield f"its figures must be a mapping, not {called(figures)}", "Return them by name."
        return
    for name, draw in figures.items():
        if not isinstance(name, str) or not name.isidentifier():
            yield (
                f"figure {name!r} must be a word, since it names a file",
                "Use letters, digits and underscores.",
            )
        if not callable(draw):
            yield (
                f"figure {name!r} must be a function that draws it, not {called(draw)}",
                "Write `lambda figure: figure.subplots().plot(...)`.",
            )


def _is_list(values: object) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str)


def _are_texts(values: object) -> bool:
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(text, str) for text in values)
    )


def _is_json(values: object, *, finite: bool) -> bool:
    try:
        json.dumps(values, allow_nan=not finite, sort_keys=True)
    except (TypeError, ValueError):
        return False
    return True
