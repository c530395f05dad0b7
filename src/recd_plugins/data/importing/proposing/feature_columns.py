"""What a column is as a feature: ids or numbers, or why it is neither; and which features share a
table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.values import MOST_EXACT, identifies, is_list
from recd_plugins.data.importing.proposing.column_entry import (
    ColumnEntry,
    empty_share,
    entries_of,
    omitted,
)
from recd_plugins.data.importing.proposing.column_names import (
    COUNT_WORDS,
    ID_WORDS,
    TIME_WORDS,
    USER_WORDS,
    is_called,
    is_index,
    is_split,
    named_after,
    words_of,
)
from recd_plugins.data.importing.proposing.label_columns import MOST_EVENTS, answer_in, have_labels
from recd_plugins.data.importing.proposing.time_columns import are_times, is_date, is_since
from recd_plugins.data.importing.proposing.whole_numbers import NumberKind, kind_of
from recd_plugins.data.importing.struct_fields import is_variant
from recd_plugins.data.importing.surveying.column_survey import ColumnSurvey
from recd_plugins.data.importing.surveying.few_types import is_text
from recd_plugins.data.importing.surveying.filled_lists import LARGEST
from recd_plugins.data.importing.surveying.survey import Survey
from recd_plugins.data.schema import SparseFeature
from recd_plugins.errors import listed

__all__ = ["feature_entry", "names_of_weights", "share_tables", "unless_weights"]

AMOUNT = r"^\s*[-+]?(\d*\.\d+|\p{Sc}\s?[-+]?\d[\d.,]*|\d[\d.,]*\s?(\p{Sc}|%))\s*$"
"""As $12.50, 12,50 \u20ac, 3.5% or 3.5."""
PRINTED = (
    r"(?is)^\s*(\{.*:.*\}|\[\s*\{.*\}\s*\]|\[\s*\]|\(.*,.*\)"
    r"|[\w.]*(tensor|array|counter|dict)\w*\(.*\))\s*$"
)
"""As {'a': 5}, [{'id': 3}], (1.5, 3.2) or tensor([0.5])."""
CATEGORY = r"[Cc](at|ate)?_?\d+"
SPREAD = 0.02
"""The share of the rows by which the range of a sample's numbers of rows may differ from them."""
MOST_VOCABULARY = 5_000_000
"""With more values than this, ids are hashed: a vocabulary of them takes memory and a pass."""
PAIR = ("id", "weight")
"""The names of an id and its weight that leave nothing to ask."""
FEWEST_ELEMENTS = 100
"""With fewer values than this, nothing tells ids from counts."""
NEARLY = 0.9
"""If at least this share of rows have texts of their own, these may be keys."""
ALIKE = 0.5
"""If at least this share of values is common, two columns are taken to name the same things."""


def feature_entry(column: ColumnSurvey, survey: Survey) -> ColumnEntry:
    """The entry of a column that may be a feature: under `dense` or `sparse`, or left out."""
    if unfit := _no_feature(column, survey):
        return unfit
    if column.is_list and column.seems in ("integers", "numbers", "booleans"):
        return _of_lists(column, survey)
    if column.seems == "numbers" and not column.whole:
        return _dense(column)
    if unfit := _no_ids(column):
        return unfit
    if column.seems == "booleans":
        return _dense(column)
    if _numbers_rows(column, survey):
        return omitted(column, "another number in each row, as many as rows: the number of the row")
    kind = NumberKind(ids=True)
    if column.seems in ("integers", "numbers") and not column.is_list:
        kind = _kind(column)
    if not kind.ids:
        entry = _dense(column)
        doubt = "whole numbers: counts, or ids of something? Taken for counts"
        if not kind.sure:
            entry.settle(f"{doubt}{f', though {kind.why}' if kind.why else ''}")
        elif column.low is not None and column.low >= 0 and column.whole and column.distinct > 2:
            entry.doubts.append(doubt)
        return entry
    if column.unique and not column.is_list and column.ascending:
        return omitted(column, "another number in each row, ascending: the number of the row")
    entry = _sparse(column, survey)
    if _are_amounts(column):
        entry.doubts.append(
            f"amounts, as {column.examples[0]}, taken for ids: write them as numbers if they are "
            "to count"
        )
    if kind.why:
        entry.doubts.append(f"whole numbers, taken for ids: {kind.why}. Counts go under `dense`")
    return entry


def _numbers_rows(column: ColumnSurvey, survey: Survey) -> bool:
    """Whether its values are whole numbers that all differ, over a range of as many as there are
    rows, in any order."""
    if not (column.is_number and column.whole and column.unique and column.distinct == column.rows):
        return False
    spread = column.high - column.low + 1
    return bool(abs(spread - survey.rows) <= (SPREAD if survey.exact_rows else 0.1) * survey.rows)


def _no_feature(column: ColumnSurvey, survey: Survey) -> ColumnEntry | None:
    """Why a column is left out whatever its values would be taken for; None if it is not."""
    if is_variant(column.type):
        return omitted(
            column, "a variant, whose values are of any type: write a column of each field that is "
            "a feature (in Spark: variant_get(NAME, '$.FIELD', 'string'))"
        )  # fmt: skip
    if column.seems == "unknown" and not pa.types.is_null(column.type):
        return omitted(column, f"is {str(column.type)[:80]}, which is no feature as it is")
    kinds = survey.several.get(column.name, ())
    if not all(identifies(one.value_type if is_list(one) else one) for one in kinds):
        differ = " in some files and ".join(map(str, kinds))
        return omitted(column, f"is {differ} in others, and ids are integers or texts")
    if column.seems == "scored ids" and (pair := _pair(column)):
        first, second = pair
        if not (ID_WORDS | TIME_WORDS).isdisjoint([*words_of(second)[-1:], second.lower()]):
            why = f"lists of `{first}` with `{second}`, which is no weight: write a list of each"
            return omitted(column, why)
    if not column.values and column.seems != "scored ids":
        return omitted(column, "no value in the sample")
    if is_index(column, survey.files[0].names):
        return omitted(column, "the index of a data frame, which numbers its rows")
    if is_split(column) and column.distinct <= MOST_EVENTS and not column.is_list:
        return omitted(
            column, "says which rows are for a test: `recd data import --split-by` parts rows"
        )
    if column.seems == "texts" and (answer := answer_in(column)):
        return omitted(column, answer)
    if column.is_list and column.seems == "texts" and have_labels(column):
        why = (
            "elements end in -0 and -1, as labels do: write a row for each, the label as a column "
            "(docs/own-data.md has the lines)"
        )
        return omitted(column, why)
    if column.seems == "times" or column.dates or is_since(column):
        return omitted(
            column, "is a time beside the one above; make hours or days from it to use it"
        )
    if is_date(column):
        return omitted(
            column, "is a date beside the time above; make hours or days from it to use it"
        )
    if are_times(column):
        return omitted(column, "lists of times, which are no ids")
    if _is_wide(column):
        return omitted(column, "integers of more than 64 bits: write them as texts")
    if column.distinct == 1 and not column.is_list and column.nulls:
        shown = f"{column.examples[0]}; {empty_share(column)} empty"
        return omitted(column, f"the same value in every row of the sample that has one ({shown})")
    if column.distinct == 1 and not column.is_list:
        return omitted(column, f"the same value in every row of the sample ({column.examples[0]})")
    return None


def _pair(column: ColumnSurvey) -> tuple[str, str] | None:
    """What the two parts of its scored ids are called; None of maps, whose parts have no names."""
    if pa.types.is_map(column.type):
        return None
    first, second = column.type.value_type
    return first.name, second.name


def _is_wide(column: ColumnSurvey) -> bool:
    """Whether its decimals are integers that only floats come near."""
    kind = column.type.value_type if is_list(column.type) else column.type
    if not pa.types.is_decimal(kind) or kind.scale > 0 or column.high is None:
        return False
    return bool(column.high >= 2**64 or column.low < -(2**63))


def _no_ids(column: ColumnSurvey) -> ColumnEntry | None:
    """Why a column whose values would be ids or counts is left out; None if it is not."""
    named = is_called(column, ID_WORDS)
    if column.seems == "numbers" and named and column.high is not None and column.high > MOST_EXACT:
        return omitted(
            column, "ids in floats beyond 2^53, where several are one: write them as integers"
        )
    user = is_called(column, USER_WORDS)
    if (
        column.seems == "texts"
        and not column.is_list
        and column.unique
        and is_called(column, TIME_WORDS)
    ):
        shown = f"is called a time, but {column.examples[0]} is none that is read"
        return omitted(column, f"{shown}: write it as ISO 8601, or in seconds since 1970")
    if parts := _controls(column):
        return omitted(
            column,
            f"has features within it, separated by {parts}: write a column of each feature, or "
            "`id:weight`s with | between them",
        )
    if column.seems == "texts" and not column.is_list and column.unique and not user:
        return omitted(column, "another text in each row: a key, or prose")
    if _are_printed(column):
        shown = column.examples[0]
        return omitted(
            column, f"objects or lists as a program printed them, as {shown}, whose parts would be "
            "ids: write a column of each, or lists of ids"
        )  # fmt: skip
    if _is_prose(column):
        return omitted(column, "long texts: prose?")
    return None


def _is_as_long(ids: ColumnSurvey, column: ColumnSurvey) -> bool:
    """Whether a column has lists of what may be ids, as long as the numbers of another one."""
    named = ids.seems == "texts" or (ids.whole and not ids.two_valued)
    return named and ids.is_list and ids.width is None and ids.lengths == column.lengths


def _of_lists(column: ColumnSurvey, survey: Survey) -> ColumnEntry:
    """Lists of numbers: vectors, or ids."""
    may_be_ids = column.whole and not column.two_valued and column.seems != "booleans"
    if column.width is None:
        if not may_be_ids and column.seems != "integers":
            why = f"lists of {column.seems} that differ in length are no feature as they are"
            if ids := [one.name for one in survey.columns if _is_as_long(one, column)]:
                why += (
                    f"; they are as long as those of {listed(ids)}: if they are the weights of "
                    f"these ids, write `weights: {column.name}` in their entry"
                )
            return omitted(column, why)
        entry = _sparse(column, survey)
        if column.seems == "numbers":
            entry.doubts.append("whole numbers, in lists that differ in length: taken for ids")
        return entry
    if not may_be_ids:
        return _dense(column)
    if column.seems == "numbers":
        entry = _dense(column)
        entry.settle(
            "whole numbers in lists of one length: a vector, or ids? Taken for a vector; ids go "
            "under `sparse`"
        )
        return entry
    entry = _sparse(column, survey)
    named = column.fills is not None or is_called(column, ID_WORDS)
    if not named and column.values >= FEWEST_ELEMENTS and not _kind(column).ids:
        entry.settle(
            "whole numbers in lists of one length: ids, or a vector of counts? Taken for ids; a "
            f"vector goes under `dense`, with `width: {column.width}`"
        )
    return entry


def _controls(column: ColumnSurvey) -> str:
    """The control characters that separate parts of its texts, as in Ali-CCP."""
    seen = column.seen
    if seen is None or not pa.types.is_string(seen.type) or column.is_list:
        return ""
    found = [one for one in range(1, 4) if pc.any(pc.match_substring(seen, chr(one))).as_py()]
    return " and ".join(f"^{chr(64 + one)}" for one in found)


def _are_amounts(column: ColumnSurvey) -> bool:
    """Whether its texts are numbers, some with a fraction, a currency sign or %."""
    seen = column.seen
    if seen is None or column.is_list or not is_text(seen.type):
        return False
    amounts = pc.match_substring_regex(seen, AMOUNT)
    whole = pc.match_substring_regex(seen, r"^\s*[-+]?\d+\s*$")
    return bool(pc.all(pc.or_(amounts, whole)).as_py()) and bool(pc.any(amounts).as_py())


def _are_printed(column: ColumnSurvey) -> bool:
    """Whether its texts are objects, tensors or pairs as programs print them."""
    seen = column.seen
    if seen is None or column.is_list or not is_text(seen.type):
        return False
    return bool(pc.all(pc.match_substring_regex(seen, PRINTED)).as_py())


def _is_prose(column: ColumnSurvey) -> bool:
    return (
        column.seems == "texts"
        and not column.is_list
        and sum(map(len, column.examples)) > 24 * len(column.examples)
        and any(one.count(" ") >= 2 and one.endswith("...'") for one in column.examples)
        and column.distinct > 0.5 * column.values
    )


def _kind(column: ColumnSurvey) -> NumberKind:
    """Whether whole numbers name things or count them: by the column's name, or by their values."""
    if column.low is not None and max(-column.low, column.high) > MOST_EXACT:
        return NumberKind(ids=column.seems == "integers")
    if is_called(column, ID_WORDS):
        return NumberKind(ids=True)
    if column.two_valued or is_called(column, COUNT_WORDS) or column.seen is None:
        return NumberKind(ids=False)
    if re.fullmatch(CATEGORY, column.name) and column.distinct > 2:
        return NumberKind(
            ids=True, why=f"it is called {column.name}, as categories without a name are"
        )
    if column.counts is None:
        return NumberKind(ids=False)
    values = column.seen.to_numpy(zero_copy_only=False).astype(np.int64)
    return kind_of(values, column.counts, ascending=column.ascending)


def _dense(column: ColumnSurvey) -> ColumnEntry:
    value: dict[str, Any] = {"name": column.name}
    entry = ColumnEntry(column=column, part="dense", value=value)
    if column.is_list:
        value["width"] = column.width
    if column.nulls or column.gaps:
        value["nulls"] = {"value": 0}
    if column.nulls:
        entry.doubts.append(f"{empty_share(column)} of its rows are empty: 0 stands for them")
    if column.gaps:
        entry.doubts.append(f"{column.gaps:,} of the numbers of its lists lack: 0 stands for them")
    if column.low is not None and max(abs(column.low), abs(column.high)) > 1_000:
        value["scale"] = "log"
        entry.doubts.append(f"values up to {column.high:,.10g}: their logarithm is taken")
    return entry


def _sparse(column: ColumnSurvey, survey: Survey) -> ColumnEntry:
    value: dict[str, Any] = {"name": column.name}
    entry = ColumnEntry(column=column, part="sparse", value=value)
    whole = survey.exact_rows and survey.sampled == survey.rows
    fits = (
        column.seems == "integers"
        and whole
        and column.low is not None
        and column.low >= 0
        and column.high < 4 * column.estimate + 1_000
    )
    if column.seems == "scored ids":
        value |= {"num_ids": 100_000, "ids": "hash", "scored": True}
        entry.doubts.append("ids with weights: their number was not counted")
        if (pair := _pair(column)) and pair != PAIR:
            entry.doubts.append(
                f"`{pair[1]}` is taken for the weight of each `{pair[0]}`: if it is none, write a "
                "list of each"
            )
    elif fits:
        value["num_ids"] = int(column.high) + 1
    elif column.most <= MOST_VOCABULARY and not _is_binary(column):
        value |= {"num_ids": _rounded(1.1 * column.most + 10), "ids": "vocabulary"}
    elif column.most <= MOST_VOCABULARY:
        value |= {"num_ids": _rounded(10.0 * column.most), "ids": "hash"}
    else:
        value |= {"num_ids": _rounded(2.0 * column.estimate), "ids": "hash"}
    if column.fills is not None:
        large = isinstance(column.fills, int) and column.fills >= 2**63
        value["missing"] = [str(column.fills) if large else column.fills]
        entry.doubts.append(
            f"{column.fills!r} is taken for what fills its lists up, and left out of them"
        )
    if column.seems == "integers" and not column.is_list:
        for none in {-1, *LARGEST} & {column.low, column.high}:
            entry.doubts.append(f"{none}, which may mean that there is none, has an id of its own")
    if column.unique and column.distinct > 1_000:
        entry.doubts.append("another value in almost each row: their number is a guess")
    if _is_nearly_a_key(column):
        entry.doubts.append(
            "nearly another text in each row: leave it out, if it is a key, as of requests that "
            "came twice"
        )
    if is_called(column, USER_WORDS):
        value["kind"] = "user"
    if column.is_list:
        value["sequence"] = True
    if "." in column.name:  # PyTorch names a module after the table
        value["table"] = column.name.replace(".", "_")
    return entry


def _is_nearly_a_key(column: ColumnSurvey) -> bool:
    """Whether few rows of a sample have a text that another row has."""
    if column.seems != "texts" or column.is_list or column.unique:
        return False
    return column.values >= 1_000 and column.distinct >= NEARLY * column.values


def _is_binary(column: ColumnSurvey) -> bool:
    """Whether its values are bytes, which a vocabulary cannot hold."""
    return column.seems == "texts" and column.seen is not None and not is_text(column.seen.type)


def _rounded(number: float) -> int:
    """The number, rounded up to two figures."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return math.ceil(number / unit) * unit


def names_of_weights(entries: Sequence[ColumnEntry]) -> dict[str, str]:
    """The columns with the weights of scored features in a table, each with its feature."""
    scored = [one.column.name for one in entries_of(entries, "sparse") if one.value.get("scored")]
    return {SparseFeature(name=name, num_ids=1).weights_name: name for name in scored}


def unless_weights(entry: ColumnEntry, weights: Mapping[str, str]) -> ColumnEntry:
    """The entry, unless `names_of_weights` has its column's name."""
    feature = weights.get(entry.column.name)
    if feature is None or entry.part in ("session", "time", "out"):  # a table finds another name
        return entry
    why = f"a table has the weights of {feature!r} under this name: rename one of the two"
    return omitted(entry.column, why)


def share_tables(entries: Sequence[ColumnEntry]) -> None:
    """A list whose elements are another feature's values is a history of it: one table for both."""
    sparse = list(entries_of(entries, "sparse"))
    for entry in (one for one in sparse if one.column.is_list):
        shares = [
            (_common(entry.column, other.column), other)
            for other in sparse
            if not other.column.is_list and other.column.seems == entry.column.seems
        ]
        share, other = max(shares, key=lambda one: one[0], default=(0.0, entry))
        if share >= ALIKE:
            entry.value["table"] = other.value.get("table", other.column.name)
            sizes = max(entry.value["num_ids"], other.value["num_ids"])
            entry.value["num_ids"] = other.value["num_ids"] = sizes
            if entry.value.get("ids") != other.value.get("ids"):
                for one in (entry, other):
                    one.value["ids"] = "vocabulary"
            for doubt in entry.to_settle:
                entry.doubts.remove(doubt)
            entry.to_settle.clear()
            entry.doubts.append(
                f"its elements are values of {other.column.name!r}, so both share a table: is it a "
                "history of it?"
            )
    tables: dict[str, list[ColumnEntry]] = {}
    for entry in sparse:  # a table may have several histories
        tables.setdefault(entry.value.get("table", entry.column.name), []).append(entry)
    for alike in tables.values():
        most = max(one.value["num_ids"] for one in alike)
        differ = len({one.value.get("ids") for one in alike}) > 1
        for one in alike:
            one.value["num_ids"] = most
            if differ:
                one.value["ids"] = "vocabulary"


def _common(lists: ColumnSurvey, single: ColumnSurvey) -> float:
    """The share of all values that both have; 0 if there are few. Where both are named after the
    same things, as `clicked_items` and `item_id` are, the share of the single values: histories go
    back to more than is shown now."""
    if lists.seen is None or single.seen is None or min(lists.distinct, single.distinct) < 20:
        return 0.0
    try:
        elements = lists.seen.cast(single.seen.type)
        common = pc.sum(pc.is_in(elements, value_set=single.seen)).as_py() or 0
    except pa.ArrowException:  # bytes that are not text, or numbers that are too large
        return 0.0
    if (things := named_after(lists.name)) and things == named_after(single.name):
        return float(common / single.distinct)
    return float(common / (lists.distinct + single.distinct - common))
