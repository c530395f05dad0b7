"""Which columns are labels, of which kind, and which would reveal the answer as labels do: grades,
events, ids with labels."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.importing.proposing.column_entry import ColumnEntry, omitted
from recd_plugins.data.importing.proposing.column_names import (
    EVENT_WORDS,
    EVENTS,
    GRADE_WORDS,
    ID_WORDS,
    LABEL_WORDS,
    NO_LABEL_WORDS,
    TARGETS,
    UNNAMED,
    is_called,
    is_split,
    names_label,
)
from recd_plugins.data.importing.proposing.time_columns import are_times
from recd_plugins.data.importing.surveying.column_survey import ColumnSurvey

__all__ = [
    "MOST_EVENTS",
    "answer_in",
    "have_labels",
    "is_sole",
    "label_entry",
    "labels_among",
    "unless_grades",
    "unless_label",
    "without_label",
]

NO_LABEL = (
    "no column looks like a label: name it; or, where each row is a click, have `recd data import "
    "--negatives 4` make it"
)
SESSIONS = (
    ". Each row seems to be a whole session, its events in lists: write a row of each event "
    "(docs/own-data.md has the lines)"
)
MOST_EVENTS = 20
DEFAULT = "label"
"""The label of a schema in which no column looks like one."""


def labels_among(columns: Sequence[ColumnSurvey]) -> list[ColumnSurvey]:
    """The columns that look like a target, best first."""
    scores = []
    for place, column in enumerate(columns):
        score = 0.0
        if column.is_number and column.values and not is_split(column):
            if column.two_valued or _is_signed(column):
                telling = is_called(column, LABEL_WORDS) and not is_called(column, NO_LABEL_WORDS)
                score = 1.0 + 3.0 * telling + 1.5 * (place == 0)
            elif is_called(column, LABEL_WORDS) and column.distinct < 50:
                score = 2.0
            elif column.name.lower() in (LABEL_WORDS if _is_share(column) else TARGETS):
                score = 1.2
            elif is_called(column, GRADE_WORDS) and column.distinct <= 50:
                score = 3.0
        if score > 1.0 or (score and not is_called(column, ID_WORDS)):
            scores.append((-score, place, column))
    scores.sort(key=lambda one: one[:2])
    found = [column for _, _, column in scores]
    # Among columns of 0 and 1 without a telling name, only the best is a label; the others may be
    # features.
    return [
        one for one in found
        if one is found[0] or is_called(one, LABEL_WORDS) or is_called(one, GRADE_WORDS)
    ]  # fmt: skip


def _is_signed(column: ColumnSurvey) -> bool:
    """Whether it is -1 or 1, like the answers of KDD Cups."""
    return column.distinct == 2 and (column.low, column.high) == (-1, 1)


def _is_share(column: ColumnSurvey) -> bool:
    return column.low is not None and column.low >= 0 and column.high <= 1


def is_sole(column: ColumnSurvey, columns: Sequence[ColumnSurvey]) -> bool:
    """Whether a column of a file without names is a likely label: the first one, or the only one of
    0 and 1."""
    unnamed = column.name.startswith(UNNAMED)
    flags = [one for one in columns if one.two_valued and not one.is_list]
    return unnamed and (column is columns[0] or flags == [column])


def label_entry(column: ColumnSurvey, *, sole: bool) -> ColumnEntry:
    entry = ColumnEntry(column=column, part="label", value={"name": column.name, "kind": "click"})
    if column.two_valued:
        if not is_called(column, LABEL_WORDS):
            (entry.doubts.append if sole else entry.settle)(
                "taken for the label, because it is 0 or 1"
            )
    elif column.distinct == 1 and column.low in (0, 1):
        entry.settle(f"is {column.low} in every row of the sample: it teaches nothing")
        if column.nulls:
            entry.value["nulls"] = "drop"
            entry.doubts.append(
                "rows without it are left out: if that means 0, write nulls: {value: 0}"
            )
            return entry
    elif _is_share(column) and not column.whole:
        entry.doubts.append("numbers of 0 to 1: taken for how likely it is")
    elif column.whole and column.low is not None and column.low >= 0 and column.high < 50:
        entry.value = {"name": column.name, "kind": "graded", "grades": int(column.high) + 1}
        entry.doubts.append(
            f"grades of {int(column.low)} to {int(column.high)} in the sample: `grades` is the "
            "highest that there can be, and 1"
        )
    else:
        entry.value = {"name": column.name, "kind": "regression"}
        number = "is not 0 or 1, so it is trained as a number (squared error)."
        if column.distinct == 2 and column.low == -1:
            entry.settle(f"{number} If -1 means no, write 0 for it")
        else:
            entry.doubts.append(number)
    if column.nulls:
        entry.value["nulls"] = "drop"
        entry.doubts.append("rows without a label are left out")
    return entry


def answer_in(column: ColumnSurvey) -> str:
    """Why texts would reveal the answer; empty if they would not."""
    shown = ", ".join(column.examples)
    if column.is_list or column.seen is None or column.distinct > MOST_EVENTS:
        return ""
    if _are_labels(column):
        return f"looks like a label in texts ({shown}): write 1 and 0, and name it as the label"
    if not pa.types.is_string(column.seen.type):
        return ""
    words = {one.strip().lower().removesuffix("s") for one in column.seen.to_pylist()}
    events = len(words) > 1 and words <= EVENTS
    parts = {part for word in words for part in re.split(r"[\W_]+", word)}
    if not events and (not is_called(column, EVENT_WORDS) or EVENTS.isdisjoint(parts)):
        return ""
    return (
        f"is what users did ({shown}), which as a feature would tell the answer: write a label of "
        "it, 1 where it is what you predict"
    )


def _are_labels(column: ColumnSurvey) -> bool:
    """Whether texts are called a label, and are two at most."""
    return (
        not column.is_list
        and column.seen is not None
        and column.distinct <= 2
        and names_label(column.name)
    )


def have_labels(column: ColumnSurvey) -> bool:
    """Whether texts are ids with labels, like N35729-0 and N55689-1."""
    if column.seen is None or not pa.types.is_string(column.seen.type):
        return False
    ends = pc.utf8_slice_codeunits(column.seen, -2).unique().to_pylist()
    return {*ends} == {"-0", "-1"}


def without_label(entries: Sequence[ColumnEntry]) -> str:
    """What to do without a label; and which columns may be one, by their values."""
    for one in entries:
        if _are_labels(one.column):
            return f"{one.column.name!r} {answer_in(one.column)}"
    grades = [repr(one.column.name) for one in entries if _are_grades(one.column)]
    may_be = f". {' or '.join(grades[:3])} may be grades" if grades else ""
    whole = any(are_times(one.column) for one in entries)
    return f"{NO_LABEL}{may_be}{SESSIONS if whole else ''}"


def unless_label(entry: ColumnEntry) -> ColumnEntry:
    """The entry of a feature, left out if it is called `label` and cannot be one as it is: it would
    tell the answer, and the schema has that name for the label already."""
    if entry.part not in ("dense", "sparse") or entry.column.name != DEFAULT:
        return entry
    return omitted(
        entry.column, "is called a label, but does not hold one number a row: write one there, as "
        "1 for yes and 0 for no; or give it another name, if it is known before the answer"
    )  # fmt: skip


def unless_grades(entry: ColumnEntry) -> ColumnEntry:
    """The entry of a feature, left out if it may be the label that was not found."""
    if entry.part not in ("dense", "sparse") or not _are_grades(entry.column):
        return entry
    return omitted(
        entry.column, "may be grades, which as a feature would tell the answer: name it as the "
        f"label, or under `{entry.part}` if it is known before"
    )  # fmt: skip


def _are_grades(column: ColumnSurvey) -> bool:
    """Whether its numbers look like ratings, in a file without names."""
    if not column.is_number or column.seen is None or not column.name.startswith(UNNAMED):
        return False
    low, high = (0, 0) if column.low is None else (column.low, column.high)
    halves = bool(np.all(np.mod(column.seen.to_numpy(zero_copy_only=False) * 2.0, 1) == 0))
    return halves and 0 <= low <= 1 and high in (5, 10) and 4 <= column.distinct <= 11
