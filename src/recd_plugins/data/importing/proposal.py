"""A schema that a survey suggests, as commented YAML: a person reads it through and mends it."""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from recd_plugins.data.conform.dates import date_digits
from recd_plugins.data.importing.leaks import filled_by, tells
from recd_plugins.data.importing.schema_file import options_of_form
from recd_plugins.data.importing.survey import ColumnSurvey, Survey
from recd_plugins.data.importing.whole_numbers import Kind, kind_of

__all__ = ["Proposal", "propose"]

Part = Literal["session", "time", "label", "weight", "dense", "sparse", "out"]

LABEL_WORDS = frozenset(
    [
        "label",
        "labels",
        "target",
        "click",
        "clicks",
        "clicked",
        "clk",
        "conversion",
        "converted",
        "purchase",
        "purchased",
        "bought",
        "like",
        "liked",
        "y",
        "response",
        "is_click",
        "install",
    ]
)
TARGETS = frozenset(["label", "target", "y", "response"])
"""The names that a label has, whatever numbers it holds."""
NO_LABEL_WORDS = frozenset(["verified"])
"""Those of a column that is known before: verified_purchase of a review."""
GRADE_WORDS = frozenset(["rating", "ratings", "stars", "grade", "relevance", "overall"])
SESSION_WORDS = frozenset(["session", "sess", "sessionid", "visit", "visitid", "sid"])
TIME_WORDS = frozenset(
    ["time", "timestamp", "ts", "date", "datetime", "hour", "day", "created", "eventtime"]
)
WEIGHT_WORDS = frozenset(["weight", "weights"])
USER_WORDS = frozenset(
    [
        "user",
        "users",
        "uid",
        "userid",
        "customer",
        "member",
        "visitor",
        "visitorid",
        "account",
        "device",
        "reviewer",
    ]
)
ID_WORDS = frozenset(
    [
        "id",
        "ids",
        "item",
        "items",
        "user",
        "users",
        "uid",
        "userid",
        "itemid",
        "visitorid",
        "product",
        "sku",
        "category",
        "categories",
        "cat",
        "brand",
        "shop",
        "city",
        "country",
        "region",
        "zip",
        "type",
        "code",
        "ad",
        "ads",
        "campaign",
        "site",
        "domain",
        "app",
        "device",
        "model",
        "publisher",
        "genre",
        "genres",
        "tag",
        "tags",
        "keyword",
        "keywords",
        "history",
        "hist",
        "slot",
        "channel",
        "os",
        "browser",
        "hash",
        "gender",
        "sex",
        "occupation",
        "platform",
        "tab",
        "zipcode",
        "postcode",
        "cluster",
        "bucket",
        "segment",
        "cate",
        "language",
        "lang",
        "carrier",
        "weekday",
        "currency",
        "operator",
        "hourmin",
        "hhmm",
    ]
)
COUNT_WORDS = frozenset(
    [
        "count",
        "counts",
        "cnt",
        "num",
        "total",
        "sum",
        "avg",
        "mean",
        "median",
        "price",
        "amount",
        "cost",
        "income",
        "salary",
        "balance",
        "budget",
        "qty",
        "quantity",
        "age",
        "duration",
        "length",
        "width",
        "height",
        "size",
        "score",
        "vote",
        "votes",
        "views",
        "impressions",
        "followers",
        "pct",
        "percent",
        "ratio",
        "rate",
        "seconds",
        "secs",
        "minutes",
        "ms",
        "year",
        "depth",
        "position",
        "rank",
    ]
)
"""Names of what is counted or measured, whatever its numbers look like."""

NO_LABEL = (
    "no column looks like a label: name it; or, where each row is a click, have `recd data import "
    "--negatives 4` make it"
)

SESSIONS = (
    ". Each row seems to be a whole session, its events in lists: write a row of each event "
    "(docs/own-data.md has the lines)"
)
NO_FEATURE = "no column is a feature as it is: what is left out says why"

EVENT_WORDS = frozenset(["event", "action", "behavior", "behaviour", "interaction"])
EVENTS = LABEL_WORDS | {
    "view", "pv", "impression", "cart", "addtocart", "buy", "order", "transaction", "fav", "play",
    "listen", "skip", "dislike", "unlike",
}  # fmt: skip
"""What a log says that a user did."""
MOST_EVENTS = 20
AFTER_FLAGS = frozenset(
    [
        "follow", "share", "comment", "forward", "hate", "favorite", "long_view", "profile_enter",
    ]
)  # fmt: skip
"""What a user does with what was shown, beside `is_` or alone, as 0 or 1."""
AFTER_TIMES = frozenset(
    [
        "play_time", "watch_time", "watching_time", "watching_times", "stay_time", "dwell_time",
        "playtime", "dwell",
    ]
)  # fmt: skip
"""How long a user stayed with what was shown."""
BEFORE_WORDS = frozenset(
    ["avg", "average", "mean", "median", "total", "sum", "count", "cnt", "num", "hist", "history",
     "last", "prev", "previous", "past", "rate"]
)  # fmt: skip
"""Those of what is known of earlier rows."""
SPLITS = frozenset(["is_test", "is_train", "split", "fold"])
UNNAMED = "column_"
"""What the columns of a file without a header are called here."""
CATEGORY = r"[Cc](at|ate)?_?\d+"
MOST_EXACT = 2**53
"""Beyond it a float does not hold each integer: such numbers count nothing."""

UNITS = ((1e8, 2e10, "s"), (1e11, 2e13, "ms"), (1e14, 2e16, "us"), (1e17, 9.3e18, "ns"))
"""Which numbers are a time since 1970, from about 1973 to 2600, by what they count."""
MOST_VOCABULARY = 5_000_000
"""Beyond so many values ids are hashed: a vocabulary of theirs takes memory and a pass."""
ALIKE = 0.5
"""The share of common values from which on two columns are taken for the same things."""


@dataclass(kw_only=True)
class ColumnEntry:
    """The entry that is proposed for one column."""

    column: ColumnSurvey
    part: Part
    value: Any = None
    """The value that its entry has."""
    doubts: list[str] = field(default_factory=list)
    to_settle: list[str] = field(default_factory=list)
    """Those of the doubts that would train wrongly if the guess is wrong."""

    def settle(self, doubt: str) -> None:
        """Add a doubt that a person must settle."""
        self.doubts.append(doubt)
        self.to_settle.append(doubt)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A schema and what there is to say about it."""

    text: str
    """The schema, as commented YAML."""
    doubts: tuple[str, ...]
    """The doubts that a person should look at, each with its column."""
    to_settle: tuple[str, ...] = ()
    """Those of them that would train wrongly if the guess is wrong: no import goes by them that a
    person did not accept."""

    @property
    def schema(self) -> dict[str, Any]:
        """The schema, as options."""
        options: dict[str, Any] = yaml.safe_load(self.text)
        return options


def propose(survey: Survey) -> Proposal:
    """The role that each column seems to have, and the schema that follows."""
    entries = _parted(survey)
    features = any(one.part in ("dense", "sparse") for one in entries)
    empty = () if features else (NO_FEATURE,)
    return Proposal(
        text="\n".join(_lines(survey, entries)) + "\n",
        doubts=(
            *survey.doubts,
            *([] if any(_of(entries, "label")) else [_no_label(entries)]),
            *empty,
            *(f"{one.column.name}: {doubt}" for one in entries for doubt in one.doubts),
        ),
        to_settle=(
            *empty,
            *(f"{one.column.name}: {doubt}" for one in entries for doubt in one.to_settle),
        ),
    )


def _parted(survey: Survey) -> list[ColumnEntry]:
    """Each column's part."""
    columns = list(survey.columns)
    time = _time(columns)
    sessions = (one for one in columns if _is(one, SESSION_WORDS) and _names(one) and not one.dates)
    session = next((one for one in sessions if one is not time), None)
    weight = next((one for one in columns if _is(one, WEIGHT_WORDS) and _number(one)), None)
    taken = [one for one in (time, session, weight) if one is not None]
    labels = _labels([one for one in columns if one not in taken])
    entries = []
    for column in columns:
        if column is time:
            entries.append(_time_entry(column))
        elif column is session:
            entries.append(ColumnEntry(column=column, part="session"))
            if column.unique:
                entries[-1].doubts.append("another value in almost each row: no session repeats")
        elif column is weight:
            entries.append(ColumnEntry(column=column, part="weight"))
            entries[-1].settle("taken by its name for what a sample counts in the loss")
        elif labels and column is labels[0]:
            entries.append(_label_entry(column, sole=_is_sole(column, columns)))
        elif column in labels:
            entries.append(
                _out(column, "looks like another label, which as a feature would tell the answer; "
                     "name it under `labels` to train on it too")
            )  # fmt: skip
        else:
            entries.append(_feature(column, survey))
    entries = [_unless_leak(one, entries, survey) for one in entries]
    if not labels:
        entries = [_unless_grades(one) for one in entries]
    _share_tables(entries)
    return entries


def _unless_leak(entry: ColumnEntry, entries: Sequence[ColumnEntry], survey: Survey) -> ColumnEntry:
    """The entry of a feature, left out if it is measured after the answer or tells it."""
    column = entry.column
    if entry.part not in ("dense", "sparse"):
        return entry
    label = next(_of(entries, "label"), None)
    if label is not None and _is_after(column):
        return _out(
            column, "is measured after the answer, by its name, which as a feature would tell it: "
            "name it under `dense` if it is known before"
        )  # fmt: skip
    rows = survey.sample.get(column.name)
    answers = [one.column for one in entries if one.part == "out" and _answer(one.column)]
    if label is not None and label.column.two_valued:
        answers.insert(0, label.column)
        labels = survey.sample.get(label.column.name)
        single = _number(column) and not _is(column, ID_WORDS) and rows is not None
        if single and labels is not None and tells(labels, rows):
            return _out(
                column, f"alone tells {label.column.name!r} in the sample: name it under "
                f"`{entry.part}` if it is known before"
            )  # fmt: skip
    for answer in answers:
        beside = survey.sample.get(answer.name)
        if rows is None or beside is None:
            continue
        only = filled_by(beside, rows)
        if only is not None and (not answer.two_valued or only == 1):
            return _out(
                column, f"has values only where {answer.name!r} is {only}, so it tells the answer: "
                f"name it under `{entry.part}` if it is known before"
            )  # fmt: skip
    return entry


def _is_after(column: ColumnSurvey) -> bool:
    """Whether its name is of what a user does once the answer is given."""
    words = _words(column.name)
    if not _number(column) or not BEFORE_WORDS.isdisjoint(words):
        return False
    if column.two_valued and "_".join(words).removeprefix("is_") in AFTER_FLAGS:
        return True
    return _is_stay(column)


def _is_stay(column: ColumnSurvey) -> bool:
    """Whether its name is of how long something took, which is no time of day."""
    words = _words(column.name)
    pairs = {"_".join(pair) for pair in itertools.pairwise(words)}
    return not AFTER_TIMES.isdisjoint([*words, *pairs])


def _share_tables(entries: Sequence[ColumnEntry]) -> None:
    """A list whose elements are another feature's values is a history of it: one table for both."""
    sparse = list(_of(entries, "sparse"))
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
            entry.doubts.append(
                f"its elements are values of {other.column.name!r}, so both share a table: is it a "
                "history of it?"
            )


def _common(lists: ColumnSurvey, single: ColumnSurvey) -> float:
    """The share of the values that either has which both have; 0 of few."""
    if lists.seen is None or single.seen is None or min(lists.distinct, single.distinct) < 20:
        return 0.0
    try:
        elements = lists.seen.cast(single.seen.type)
        common = pc.sum(pc.is_in(elements, value_set=single.seen)).as_py() or 0
    except pa.ArrowException:  # bytes that are no text, or numbers that are larger
        return 0.0
    return float(common / (lists.distinct + single.distinct - common))


def _out(column: ColumnSurvey, why: str) -> ColumnEntry:
    return ColumnEntry(column=column, part="out", doubts=[why])


def _words(name: str) -> list[str]:
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)
    return [part.lower() for part in parts]


def _is(column: ColumnSurvey, words: frozenset[str]) -> bool:
    return not words.isdisjoint([*_words(column.name), column.name.lower()])


def _names(column: ColumnSurvey) -> bool:
    """Whether its values may name something."""
    return not column.is_list and column.seems in ("integers", "texts")


def _number(column: ColumnSurvey) -> bool:
    return not column.is_list and column.seems in ("integers", "numbers", "booleans")


def _unit(column: ColumnSurvey) -> str | None:
    """The unit that a number counts, or that a text has, if it is a time."""
    if column.seems == "times":
        return "ms"
    if column.dates:
        return column.dates[0]
    if not _number(column) or column.low is None or column.two_valued:
        return None
    return next((unit for low, high, unit in UNITS if low <= column.high < high), None)


def _time(columns: Sequence[ColumnSurvey]) -> ColumnSurvey | None:
    """The column of the time: by type, by name and range, or by name alone."""
    typed = [one for one in columns if (one.seems == "times" and not one.is_list) or one.dates]
    named = [
        one for one in columns
        if _is(one, TIME_WORDS) and _number(one) and one.distinct > 2 and not _is_stay(one)
    ]  # fmt: skip
    ranged = [one for one in named if _unit(one)]
    since = [one for one in columns if _is_since(one)]
    named_so = [*(one for one in typed if _is(one, TIME_WORDS)), *ranged]
    # The finest: the day that a folder names is coarser than a time.
    finest = sorted(named_so, key=lambda one: -one.distinct)
    return next(iter((*finest, *typed, *since, *named)), None)


def _is_since(column: ColumnSurvey) -> bool:
    """Whether its numbers are times since 1990, before 2100 and near each other, whatever its name,
    if that names nothing."""
    unit = _unit(column) if _number(column) and not _is(column, ID_WORDS) else None
    if unit is None:
        return False
    if unit == "ns" and not _ends_in_zeros(column):
        return False  # ids that hold a time, as those of posts, are as large
    second = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    near = column.low > 0.8 * column.high
    return bool(near and 6.3e8 * second < column.low and column.high < 4.1e9 * second)


def _ends_in_zeros(column: ColumnSurvey) -> bool:
    """Whether all of its integers are multiples of a thousand."""
    seen = pa.array([]) if column.seen is None else column.seen
    return pa.types.is_integer(seen.type) and not np.mod(seen.to_numpy(), 1_000).any()


def _time_entry(column: ColumnSurvey) -> ColumnEntry:
    entry = ColumnEntry(column=column, part="time", value=_unit(column))
    if column.whole and column.seen is not None:
        digits = date_digits(column.seen)
        if digits is not None:
            entry.value = digits
            entry.doubts.append("dates written as digits, in UTC?")
            return entry
    if len(column.dates) > 1:
        entry.doubts.append(
            f"dates as {' or as '.join(column.dates)}? Each fits them all: the first is taken"
        )
    if entry.value is None:
        entry.value = "s"
        entry.doubts.append(
            f"its numbers ({column.low:g} to {column.high:g}) are no time since 1970: their order "
            "alone is right"
        )
    elif not _is(column, TIME_WORDS):
        entry.doubts.append("taken for the time, by what its values are")
    return entry


def _labels(columns: Sequence[ColumnSurvey]) -> list[ColumnSurvey]:
    """The columns that look like a target, best first."""
    scores = []
    for place, column in enumerate(columns):
        score = 0.0
        if _number(column) and column.values and not _is_split(column):
            if column.two_valued or _is_signed(column):
                telling = _is(column, LABEL_WORDS) and not _is(column, NO_LABEL_WORDS)
                score = 1.0 + 3.0 * telling + 1.5 * (place == 0)
            elif _is(column, LABEL_WORDS) and column.distinct < 50:
                score = 2.0
            elif column.name.lower() in (LABEL_WORDS if _is_share(column) else TARGETS):
                score = 1.2
            elif _is(column, GRADE_WORDS) and column.distinct <= 50:
                score = 3.0
        if score > 1.0 or (score and not _is(column, ID_WORDS)):
            scores.append((-score, place, column))
    scores.sort(key=lambda one: one[:2])
    found = [column for _, _, column in scores]
    # Of columns of 0 and 1 without a telling name the best alone is a label; the others may be
    # features.
    return [
        one for one in found
        if one is found[0] or _is(one, LABEL_WORDS) or _is(one, GRADE_WORDS)
    ]  # fmt: skip


def _is_signed(column: ColumnSurvey) -> bool:
    """Whether it is -1 or 1, as the answers of KDD Cups."""
    return column.distinct == 2 and (column.low, column.high) == (-1, 1)


def _is_split(column: ColumnSurvey) -> bool:
    return "_".join(_words(column.name)) in SPLITS


def _is_share(column: ColumnSurvey) -> bool:
    return column.low is not None and column.low >= 0 and column.high <= 1


def _is_sole(column: ColumnSurvey, columns: Sequence[ColumnSurvey]) -> bool:
    """Whether a column of a file without names is where a label is: first, or alone 0 or 1."""
    unnamed = column.name.startswith(UNNAMED)
    flags = [one for one in columns if one.two_valued and not one.is_list]
    return unnamed and (column is columns[0] or flags == [column])


def _label_entry(column: ColumnSurvey, *, sole: bool) -> ColumnEntry:
    entry = ColumnEntry(column=column, part="label", value={"name": column.name, "kind": "click"})
    if column.two_valued:
        if not _is(column, LABEL_WORDS):
            (entry.doubts.append if sole else entry.settle)("taken for the label, for it is 0 or 1")
    elif column.distinct == 1 and column.low in (0, 1):
        entry.settle(f"is {column.low} in every row of the sample: nothing to learn from")
        if column.nulls:
            entry.value["nulls"] = "drop"
            entry.doubts.append(
                "rows without it are left out: if that means 0, say nulls: {value: 0}"
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


def _feature(column: ColumnSurvey, survey: Survey) -> ColumnEntry:
    if column.seems == "unknown" and not pa.types.is_null(column.type):
        return _out(column, f"is {str(column.type)[:80]}, which is no feature as it is")
    if not column.values and column.seems != "scored ids":
        return _out(column, "no value in the sample")
    if _is_split(column) and column.distinct <= MOST_EVENTS and not column.is_list:
        return _out(
            column, "says which rows are for a test: `recd data import --split-by` parts rows"
        )
    if column.seems == "texts" and (answer := _answer(column)):
        return _out(column, answer)
    if column.is_list and column.seems == "texts" and _have_labels(column):
        why = (
            "elements end in -0 and -1, as labels do: write a row for each, the label as a column "
            "(docs/own-data.md has the lines)"
        )
        return _out(column, why)
    if column.seems == "times" or column.dates or _is_since(column):
        return _out(column, "is a time beside the one above; make hours or days of it to use it")
    if _is_date(column):
        return _out(column, "is a date beside the time above; make hours or days of it to use it")
    if _are_times(column):
        return _out(column, "lists of times, which are no ids")
    if column.distinct == 1 and not column.is_list and column.nulls:
        shown = f"{column.examples[0]}; {_share(column)} empty"
        return _out(column, f"the same value in every row of the sample that has one ({shown})")
    if column.distinct == 1 and not column.is_list:
        return _out(column, f"the same value in every row of the sample ({column.examples[0]})")
    if column.is_list and column.seems == "numbers":
        if column.width is None:
            return _out(column, "lists of numbers that differ in length are no feature as they are")
        return _dense(column)
    if column.seems == "numbers" and not column.whole:
        return _dense(column)
    named = _is(column, ID_WORDS)
    if column.seems == "numbers" and named and column.high is not None and column.high > MOST_EXACT:
        return _out(
            column, "ids in floats beyond 2^53, where several are one: write them as integers"
        )
    user = _is(column, USER_WORDS)
    if column.seems == "texts" and not column.is_list and column.unique and _is(column, TIME_WORDS):
        shown = f"is called a time, but {column.examples[0]} is none that is read"
        return _out(column, f"{shown}: write it as ISO 8601, or in seconds since 1970")
    if parts := _controls(column):
        return _out(
            column, f"has features within it, parted by {parts}: write a column of each feature, "
            "or `id:weight`s with | between them"
        )  # fmt: skip
    if column.seems == "texts" and not column.is_list and column.unique and not user:
        return _out(column, "another text in each row: a key, or prose")
    if _is_prose(column):
        return _out(column, "long texts: prose?")
    if column.seems == "booleans":
        return _dense(column)
    kind = Kind(ids=True)
    if column.seems in ("integers", "numbers") and not column.is_list:
        kind = _kind(column)
    if not kind.ids:
        entry = _dense(column)
        doubt = "whole numbers: counts, or ids of something? Taken for counts"
        if not kind.sure:
            entry.settle(doubt)
        elif column.low is not None and column.low >= 0 and column.whole and column.distinct > 2:
            entry.doubts.append(doubt)
        return entry
    if column.unique and not column.is_list and column.ascending:
        return _out(column, "another number in each row, ascending: the number of the row")
    entry = _sparse(column, survey)
    if kind.why:
        entry.doubts.append(f"whole numbers, taken for ids: {kind.why}. Counts go under `dense`")
    return entry


def _answer(column: ColumnSurvey) -> str:
    """Why texts would tell the answer, if they may."""
    shown = ", ".join(column.examples)
    if column.is_list or column.seen is None or column.distinct > MOST_EVENTS:
        return ""
    if column.distinct <= 2 and _is(column, LABEL_WORDS) and not _is(column, NO_LABEL_WORDS):
        return f"looks like a label in texts ({shown}): write 1 and 0, and name it as the label"
    if not pa.types.is_string(column.seen.type):
        return ""
    words = {one.strip().lower().removesuffix("s") for one in column.seen.to_pylist()}
    events = len(words) > 1 and words <= EVENTS
    parts = {part for word in words for part in re.split(r"[\W_]+", word)}
    if not events and (not _is(column, EVENT_WORDS) or EVENTS.isdisjoint(parts)):
        return ""
    return (
        f"is what users did ({shown}), which as a feature would tell the answer: write a label of "
        "it, 1 where it is what you predict"
    )


def _is_date(column: ColumnSurvey) -> bool:
    """Whether its numbers are the digits of dates, and its name is that of a time."""
    if not (_number(column) and column.whole and _is(column, TIME_WORDS)) or column.seen is None:
        return False
    return date_digits(column.seen) is not None


def _are_times(column: ColumnSurvey) -> bool:
    """Whether it has lists of times, by name, or by name and range, since 1970."""
    if not column.is_list or column.seems != "integers":
        return False
    if not {"timestamp", "timestamps", "times"}.isdisjoint(_words(column.name)):
        return True
    if not _is(column, TIME_WORDS):
        return False
    low = 0 if column.low is None else column.low
    return any(first <= low and column.high < last for first, last, _ in UNITS if low)


def _have_labels(column: ColumnSurvey) -> bool:
    """Whether texts are ids with labels, as N35729-0 and N55689-1."""
    if column.seen is None or not pa.types.is_string(column.seen.type):
        return False
    ends = pc.utf8_slice_codeunits(column.seen, -2).unique().to_pylist()
    return {*ends} == {"-0", "-1"}


def _controls(column: ColumnSurvey) -> str:
    """The control characters that part what its texts hold, as those of Ali-CCP do."""
    seen = column.seen
    if seen is None or not pa.types.is_string(seen.type) or column.is_list:
        return ""
    found = [one for one in range(1, 4) if pc.any(pc.match_substring(seen, chr(one))).as_py()]
    return " and ".join(f"^{chr(64 + one)}" for one in found)


def _is_prose(column: ColumnSurvey) -> bool:
    return (
        column.seems == "texts"
        and not column.is_list
        and sum(map(len, column.examples)) > 24 * len(column.examples)
        and any(one.count(" ") >= 2 and one.endswith("...'") for one in column.examples)
        and column.distinct > 0.5 * column.values
    )


def _kind(column: ColumnSurvey) -> Kind:
    """Whether whole numbers name things or count them: by the column's name, or by their values."""
    if column.low is not None and max(-column.low, column.high) > MOST_EXACT:
        return Kind(ids=column.seems == "integers")
    if _is(column, ID_WORDS):
        return Kind(ids=True)
    if column.two_valued or _is(column, COUNT_WORDS) or column.seen is None:
        return Kind(ids=False)
    if re.fullmatch(CATEGORY, column.name) and column.distinct > 2:
        return Kind(ids=True, why=f"it is called {column.name}, as categories without a name are")
    if column.counts is None:
        return Kind(ids=False)
    values = column.seen.to_numpy(zero_copy_only=False).astype(np.int64)
    return kind_of(values, column.counts, ascending=column.ascending)


def _dense(column: ColumnSurvey) -> ColumnEntry:
    value: dict[str, Any] = {"name": column.name}
    entry = ColumnEntry(column=column, part="dense", value=value)
    if column.is_list:
        value["width"] = column.width
    if column.nulls:
        value["nulls"] = {"value": 0}
        entry.doubts.append(f"{_share(column)} of its rows are empty: 0 stands for them")
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
        entry.doubts.append("ids with weights: how many there are was not counted")
    elif fits:
        value["num_ids"] = int(column.high) + 1
    elif column.most <= MOST_VOCABULARY and not _is_binary(column):
        value |= {"num_ids": _rounded(1.1 * column.most + 10), "ids": "vocabulary"}
    else:
        value |= {"num_ids": _rounded(2.0 * column.estimate), "ids": "hash"}
    if column.seems == "integers" and column.low == -1:
        entry.doubts.append("-1, which may say that there is none, has an id of its own")
    if column.unique and column.distinct > 1_000:
        entry.doubts.append("almost another value in each row: how many there are is a guess")
    if _is(column, USER_WORDS):
        value["kind"] = "user"
    if column.is_list:
        value["sequence"] = True
    if "." in column.name:  # PyTorch names a module after the table
        value["table"] = column.name.replace(".", "_")
    return entry


def _is_binary(column: ColumnSurvey) -> bool:
    """Whether its values are bytes, which a vocabulary cannot spell."""
    kind = column.type.value_type if column.is_list else column.type
    types = pa.types
    spelled = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return column.seems == "texts" and not spelled


def _rounded(number: float) -> int:
    """Up to two figures."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return math.ceil(number / unit) * unit


def _share(column: ColumnSurvey) -> str:
    share = column.nulls / max(column.rows, 1)
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def _lines(survey: Survey, entries: Sequence[ColumnEntry]) -> Iterator[str]:
    files, first = survey.files, survey.files[0]
    named = f"{first.path}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    about = "" if survey.exact_rows else "about "
    yield f"# {named}: {first}"
    yield (
        f"# {about}{survey.rows:,} rows, {survey.sampled:,} of which were looked at; "
        f"{len(survey.columns)} columns"
    )
    yield "# Read this through: each `doubt` is a guess that a person should settle."
    for doubt in survey.doubts:
        yield f"# doubt: {doubt}"
    if first.format == "text" and not first.header and first.names[0] == "column_1":
        yield "# doubt: the first line was taken for a row; `--names` gives the columns names"
    yield ""
    used = [entry.column.name for entry in entries if entry.part != "out"]
    if text := options_of_form(survey.read_as.form(survey.form, first, used)):
        yield f"text: {_flow(text)}  # how files that come later are read, too"
    yield from _single(entries, "session", "session_id", "no session: if samples of one user share "
                       "much, name its column, or several: [user, day]")  # fmt: skip
    yield from _single(entries, "time", "timestamp", "no time: `--split-by time` needs one")
    for entry in _of(entries, "time"):
        if entry.column.seems != "times":
            yield f"timestamp_unit: {entry.value}"
    yield from _label_lines(entries)
    for entry in _of(entries, "weight"):
        yield from _doubts(entry)
        yield f"sample_weight: {_flow(entry.column.name)}  # {_about(entry.column)}"
    plain = list(_of(entries, "dense"))
    if plain:
        yield "dense:"
        for entry in plain:
            yield from _doubts(entry, "  ")
            value = entry.value["name"] if set(entry.value) == {"name"} else entry.value
            yield f"  - {_flow(value)}  # {_about(entry.column)}"
    sparse = list(_of(entries, "sparse"))
    if sparse:
        yield "sparse:"
        for entry in sparse:
            yield from _doubts(entry, "  ")
            yield f"  - {_flow(entry.value)}  # {_about(entry.column)}"
    out = list(_of(entries, "out"))
    if out:
        yield ""
        yield "# Left out:"
        for entry in out:
            yield f"# - {_flow(entry.column.name)}: {'; '.join(entry.doubts)}"
    nulls = {
        entry.column.name: "drop"
        for entry in entries
        if entry.part in ("session", "time", "weight") and entry.column.nulls
    }
    if nulls:
        yield ""
        yield "# doubt: rows without these are left out"
        yield f"nulls: {_flow(nulls)}"


def _of(entries: Sequence[ColumnEntry], part: Part) -> Iterator[ColumnEntry]:
    return (entry for entry in entries if entry.part == part)


def _single(entries: Sequence[ColumnEntry], part: Part, key: str, without: str) -> Iterator[str]:
    entry = next(_of(entries, part), None)
    if entry is None:
        yield f"{key}: null  # {without}"
        return
    yield from _doubts(entry)
    yield f"{key}: {_flow(entry.column.name)}  # {_about(entry.column)}"


def _no_label(entries: Sequence[ColumnEntry]) -> str:
    """What to do without a label; and which columns may be one, by their values."""
    grades = [repr(one.column.name) for one in entries if _are_grades(one.column)]
    may_be = f". {' or '.join(grades[:3])} may be grades" if grades else ""
    whole = any(_are_times(one.column) for one in entries)
    return f"{NO_LABEL}{may_be}{SESSIONS if whole else ''}"


def _unless_grades(entry: ColumnEntry) -> ColumnEntry:
    """The entry of a feature, left out if it may be the label that was not found."""
    if entry.part not in ("dense", "sparse") or not _are_grades(entry.column):
        return entry
    return _out(
        entry.column, "may be grades, which as a feature would tell the answer: name it as the "
        f"label, or under `{entry.part}` if it is known before"
    )  # fmt: skip


def _are_grades(column: ColumnSurvey) -> bool:
    """Whether its numbers are as those of ratings, in a file without names."""
    if not _number(column) or column.seen is None or not column.name.startswith(UNNAMED):
        return False
    low, high = (0, 0) if column.low is None else (column.low, column.high)
    halves = bool(np.all(np.mod(column.seen.to_numpy(zero_copy_only=False) * 2.0, 1) == 0))
    return halves and 0 <= low <= 1 and high in (5, 10) and 4 <= column.distinct <= 11


def _label_lines(entries: Sequence[ColumnEntry]) -> Iterator[str]:
    entry = next(_of(entries, "label"), None)
    if entry is None:
        yield f"# doubt: {_no_label(entries)}"
        yield "label: label"
        return
    yield from _doubts(entry)
    if set(entry.value) == {"name", "kind"} and entry.value["kind"] == "click":
        yield f"label: {_flow(entry.column.name)}  # {_about(entry.column)}"
    else:
        yield "labels:"
        yield f"  - {_flow(entry.value)}  # {_about(entry.column)}"


def _doubts(entry: ColumnEntry, indent: str = "") -> Iterator[str]:
    for doubt in entry.doubts:
        yield f"{indent}# doubt: {doubt}"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10_000, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _about(column: ColumnSurvey) -> str:
    """A column in a line."""
    parts = [f"lists of {column.seems}" if column.is_list else column.seems]
    if column.lengths is not None:
        low, mean, high = column.lengths
        parts[0] += f" of {low} to {high} elements, {mean:.1f} on average"
    if column.two_valued and column.mean is not None:
        parts.append(f"{column.mean:.1%} are 1")
    elif column.low is not None:
        parts.append(f"{_bound(column.low)} to {_bound(column.high)}")
    if column.seems in ("integers", "texts") and not column.two_valued:
        exact = column.estimate == column.distinct and column.rows == column.values
        parts.append(f"{'' if exact else 'about '}{column.estimate:,} different")
    if column.nulls:
        parts.append(f"{_share(column)} empty")
    if column.examples and not column.two_valued:
        parts.append(f"as {', '.join(column.examples)}")
    return "; ".join(parts).replace("\n", " ")


def _bound(value: Any) -> str:
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat(" ") if isinstance(value, datetime.datetime) else value.isoformat()
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
