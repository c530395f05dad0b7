"""Columns that reveal a label: by names that say they are measured after it, or in the rows of a
sample, where such a column by itself determines the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.values import is_list
from recd_plugins.data.importing.proposing.column_entry import ColumnEntry, omitted
from recd_plugins.data.importing.proposing.column_names import (
    AFTER_FLAGS,
    BEFORE_WORDS,
    ID_WORDS,
    is_called,
    is_duration,
    words_of,
)
from recd_plugins.data.importing.proposing.label_columns import answer_in
from recd_plugins.data.importing.surveying.column_survey import ColumnSurvey
from recd_plugins.data.importing.surveying.survey import Survey

__all__ = ["answers_left_out", "describes", "unless_leak"]

FEWEST = 20
"""With fewer rows of each label, or fewer rows with a value, a sample shows nothing."""
MOST_AUC = 0.98
FEW_VALUES = 20
"""A text with more values than that names things, such as users, each with labels of its own."""
CHANCE = 1e-6
"""The chance, if labels had nothing to do with it, below which values stand beside one alone."""


def answers_left_out(entries: Sequence[ColumnEntry]) -> list[ColumnSurvey]:
    """The columns that are left out because they are the answer in texts."""
    return [one.column for one in entries if one.part == "out" and answer_in(one.column)]


def unless_leak(
    entry: ColumnEntry,
    label: ColumnEntry | None,
    left_out: Sequence[ColumnSurvey],
    survey: Survey,
) -> ColumnEntry:
    """The entry of a feature, left out if it is measured after the answer or tells it; `left_out`
    are the answers in texts."""
    column = entry.column
    if entry.part not in ("dense", "sparse"):
        return entry
    if label is not None and _is_after(column):
        return omitted(
            column, "is measured after the answer, by its name, which as a feature would tell it: "
            "name it under `dense` if it is known before"
        )  # fmt: skip
    rows = survey.sample.get(column.name)
    answers = [*left_out]
    if label is not None and label.column.two_valued:
        answers.insert(0, label.column)
        labels = survey.sample.get(label.column.name)
        single = column.is_number or (column.seems == "texts" and not column.is_list)
        single = single and not is_called(column, ID_WORDS) and rows is not None
        if single and labels is not None and tells(labels, rows):
            return omitted(
                column, f"alone tells {label.column.name!r} in the sample: name it under "
                f"`{entry.part}` if it is known before"
            )  # fmt: skip
    for answer in answers:
        beside = survey.sample.get(answer.name)
        if rows is None or beside is None:
            continue
        only = _filled_by(beside, rows)
        if only is not None and (not answer.two_valued or only == 1):
            return omitted(
                column, f"has values only where {answer.name!r} is {only}, so it tells the answer: "
                f"name it under `{entry.part}` if it is known before"
            )  # fmt: skip
    return entry


def _is_after(column: ColumnSurvey) -> bool:
    """Whether its name says what a user does once the answer is given."""
    words = words_of(column.name)
    if not column.is_number or not BEFORE_WORDS.isdisjoint(words):
        return False
    if column.two_valued and "_".join(words).removeprefix("is_") in AFTER_FLAGS:
        return True
    return is_duration(column)


def tells(label: pa.ChunkedArray, column: pa.ChunkedArray) -> bool:
    """Whether a column separates labels 0 and 1: by the order of its numbers, in either direction,
    or by which of its few texts stands beside them."""
    if len(label) != len(column):
        return False
    both = pc.and_(pc.is_valid(label), pc.is_valid(column))
    truth = _floats(label.filter(both)) == 1
    kind = column.type
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        numbers = _floats(column.filter(both))
    else:
        numbers = _share_of_each(_places(column.filter(both)), truth)
    finite = np.isfinite(numbers)
    truth, numbers = truth[finite], numbers[finite]
    clicks = int(truth.sum())
    others = len(truth) - clicks
    if min(clicks, others) < FEWEST:
        return False
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    auc = (ranks[truth].sum() - clicks * (clicks + 1) / 2) / (clicks * others)
    return bool(max(auc, 1 - auc) >= MOST_AUC)


def _share_of_each(
    places: np.ndarray[Any, np.dtype[np.int64]], truth: np.ndarray[Any, np.dtype[np.bool_]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[N] the share of ones beside each one's value; NaN if there are too many values, as those of
    few rows have a label of their own by chance."""
    counts = np.bincount(places, minlength=1)
    if len(counts) > min(FEW_VALUES, len(places) // FEWEST):
        return np.full(len(places), np.nan)
    shares: np.ndarray[Any, np.dtype[np.float64]] = (np.bincount(places, truth) / counts)[places]
    return shares


def _filled_by(answer: pa.ChunkedArray, column: pa.ChunkedArray) -> Any:
    """The only answer for which a column has values; None if there are others, or if that may be
    chance."""
    if len(answer) != len(column) or not column.null_count:
        return None
    known = answer.drop_null()
    beside = answer.filter(pc.is_valid(column))
    found = pc.unique(beside)
    if len(beside) < FEWEST or len(found) != 1 or not found[0].is_valid:
        return None
    share = pc.sum(pc.equal(known, found[0])).as_py() / len(known)
    return found[0].as_py() if share ** len(beside) < CHANCE else None


def describes(column: pa.ChunkedArray, item: pa.ChunkedArray) -> bool:
    """Whether a column has the same value wherever an item occurs, and not by chance."""
    if len(column) != len(item) or is_list(column.type) or is_list(item.type):
        return False
    items, values = (_places(one) for one in (item, column))
    pairs = np.unique(items * (int(values.max(initial=0)) + 1) + values)
    different = len(np.unique(items))
    again = len(items) - different
    if len(pairs) != different or again < FEWEST:
        return False
    shares = np.bincount(values) / len(values)
    return bool((shares**2).sum() ** again < CHANCE)


def _places(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[N] the place of each value among the different ones, including null."""
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    places: np.ndarray[Any, np.dtype[np.int64]] = coded.indices.to_numpy().astype(np.int64)
    return places


def _floats(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.float64]]:
    floats: np.ndarray[Any, np.dtype[np.float64]] = column.cast(pa.float64(), safe=False).to_numpy()
    return floats
