"""What a proposal says of one column: its part in the schema, its entry there, and the doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from recd_plugins.data.importing.surveying.column_survey import ColumnSurvey

__all__ = ["ColumnEntry", "Part", "empty_share", "entries_of", "omitted"]

Part = Literal["session", "time", "label", "weight", "dense", "sparse", "out"]


@dataclass(kw_only=True)
class ColumnEntry:
    """The entry that is proposed for one column."""

    column: ColumnSurvey
    part: Part
    value: Any = None
    """The value of its entry."""
    doubts: list[str] = field(default_factory=list)
    to_settle: list[str] = field(default_factory=list)
    """The doubts for which a wrong guess would train wrongly."""

    def settle(self, doubt: str) -> None:
        """Add a doubt that a person must settle."""
        self.doubts.append(doubt)
        self.to_settle.append(doubt)


def omitted(column: ColumnSurvey, why: str) -> ColumnEntry:
    return ColumnEntry(column=column, part="out", doubts=[why])


def entries_of(entries: Sequence[ColumnEntry], part: Part) -> Iterator[ColumnEntry]:
    return (entry for entry in entries if entry.part == part)


def empty_share(column: ColumnSurvey) -> str:
    share = column.nulls / max(column.rows, 1)
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"
