"""A schema that a survey suggests, as commented YAML, for a person to read through and correct."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from recd_plugins.config.yaml_text import to_yaml
from recd_plugins.data.importing.proposing.column_entry import (
    ColumnEntry,
    Part,
    empty_share,
    entries_of,
    omitted,
)
from recd_plugins.data.importing.proposing.column_names import (
    SESSION_WORDS,
    USER_WORDS,
    WEIGHT_WORDS,
    is_called,
    is_request,
)
from recd_plugins.data.importing.proposing.feature_columns import (
    feature_entry,
    names_of_weights,
    share_tables,
    unless_weights,
)
from recd_plugins.data.importing.proposing.label_columns import (
    is_sole,
    label_entry,
    labels_among,
    unless_grades,
    unless_label,
    without_label,
)
from recd_plugins.data.importing.proposing.leaks import answers_left_out, unless_leak
from recd_plugins.data.importing.proposing.time_columns import time_among, time_entry
from recd_plugins.data.importing.schema_file import options_of_form
from recd_plugins.data.importing.surveying.column_survey import ColumnSurvey
from recd_plugins.data.importing.surveying.survey import Survey
from recd_plugins.errors import on_one_line, so_many

__all__ = ["Proposal", "propose"]

LEAVES_OUT: tuple[Part, ...] = ("session", "time", "weight")
"""Parts of which each row has a value: rows without one are left out."""
MOST_LEFT_OUT = 0.1
"""If a larger share of the rows would be left out, a person must decide."""
NO_FEATURE = "no column is a feature as it is: the columns that are left out have the reasons"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A schema, and what there is to say about it."""

    text: str
    """The schema, as commented YAML."""
    doubts: tuple[str, ...]
    """The doubts that a person should look at, each with its column."""
    to_settle: tuple[str, ...]
    """The doubts for which a wrong guess would train wrongly: no import relies on them unless a
    person has accepted them."""

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
            *([] if any(entries_of(entries, "label")) else [without_label(entries)]),
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
    time = time_among(columns)
    named = [
        one
        for one in columns
        if one.may_name
        and not one.dates
        and one.name not in survey.several  # an integer and the text of it are two sessions
        and one is not time
    ]
    sessions = [one for one in named if is_called(one, SESSION_WORDS)]
    requests = [one for one in named if is_request(one)]
    session = next(iter([*sessions, *requests]), None)
    weight = next((one for one in columns if is_called(one, WEIGHT_WORDS) and one.is_number), None)
    taken = [one for one in (time, session, weight) if one is not None]
    labels = labels_among([one for one in columns if one not in taken])
    entries = []
    for column in columns:
        if column is time:
            entries.append(time_entry(column))
        elif column is session:
            entries.append(ColumnEntry(column=column, part="session"))
            if (user := _whose_sessions(column, named)) is not None:
                entries[-1].value = [user.name, column.name]
                entries[-1].doubts.append(
                    f"has far fewer different values than {user.name}, so it is taken to number "
                    "the sessions of each"
                )
            if column in requests:
                entries[-1].doubts.append(
                    "taken for the session, as its name says that its rows were shown together"
                )
            if column.unique:
                entries[-1].doubts.append("another value in almost each row: no session repeats")
        elif column is weight:
            entries.append(ColumnEntry(column=column, part="weight"))
            entries[-1].settle("taken by its name for what a sample counts in the loss")
        elif labels and column is labels[0]:
            entries.append(label_entry(column, sole=is_sole(column, columns)))
        elif column in labels:
            entries.append(
                omitted(
                    column, "looks like another label, which as a feature would tell the answer; "
                    "name it under `labels` to train on it too"
                )
            )  # fmt: skip
        else:
            entries.append(feature_entry(column, survey))
    for entry in entries:
        column = entry.column
        if entry.part in LEAVES_OUT and column.nulls > MOST_LEFT_OUT * column.rows:
            entry.settle(
                f"{empty_share(column)} of its rows are empty, and would be left out: write null "
                "in its place, or say under `nulls` what stands for its nulls"
            )
    label, answers = next(entries_of(entries, "label"), None), answers_left_out(entries)
    entries = [unless_leak(one, label, answers, survey) for one in entries]
    if not labels:
        entries = [unless_grades(unless_label(one)) for one in entries]
    weights = names_of_weights(entries)
    entries = [unless_weights(one, weights) for one in entries]
    share_tables(entries)
    return entries


def _whose_sessions(session: ColumnSurvey, named: Sequence[ColumnSurvey]) -> ColumnSurvey | None:
    """The column of users each of whom has sessions of these values, as a first and a second one;
    None where they may be sessions by themselves. Such sessions are at least as many as users; in
    a sample, or where some are shared, at least half as many."""
    users = [one for one in named if one is not session and is_called(one, USER_WORDS)]
    most = max(users, key=lambda one: one.distinct, default=None)
    return most if most is not None and most.distinct > 2 * session.distinct else None


def _lines(survey: Survey, entries: Sequence[ColumnEntry]) -> Iterator[str]:
    """The schema as YAML, with what there is to say about it as comments."""
    yield from _about_files(survey)
    yield ""
    used = [entry.column.name for entry in entries if entry.part != "out"]
    if text := options_of_form(survey.read_as.form(survey.form, survey.files[0], used)):
        yield f"text: {_flow(text)}  # how later files are read, too"
    yield from _single(entries, "session", "session_id", "no session: if samples of one user share "
                       "much, name its column, or several: [user, day]")  # fmt: skip
    yield from _single(entries, "time", "timestamp", "no time: `--split-by time` needs one")
    for entry in entries_of(entries, "time"):
        if entry.column.seems != "times":
            yield f"timestamp_unit: {entry.value}"
    yield from _label_lines(entries)
    for entry in entries_of(entries, "weight"):
        yield from _doubts(entry)
        yield f"sample_weight: {_flow(entry.column.name)}  # {_about(entry.column)}"
    yield from _feature_lines(entries)
    yield from _left_out(entries)
    nulls = {
        entry.column.name: "drop"
        for entry in entries
        if entry.part in LEAVES_OUT and entry.column.nulls
    }
    if nulls:
        yield ""
        yield "# doubt: rows without these are left out"
        yield f"nulls: {_flow(nulls)}"


def _about_files(survey: Survey) -> Iterator[str]:
    """What was looked at, and what is doubtful of the files as a whole."""
    files, first = survey.files, survey.files[0]
    named = f"{first.path}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    about = "" if survey.exact_rows else "about "
    yield f"# {on_one_line(f'{named}: {first}')}"
    yield (
        f"# {about}{so_many(survey.rows, 'row')}, {survey.sampled:,} of which were looked at; "
        f"{so_many(len(survey.columns), 'column')}"
    )
    yield "# Read this: each `doubt` is a guess that a person should settle."
    for doubt in survey.doubts:
        yield f"# doubt: {on_one_line(doubt)}"
    if first.format == "text" and not first.header and first.names[0] == "column_1":
        yield "# doubt: the first line was taken for a row; `--names` gives the columns names"


def _feature_lines(entries: Sequence[ColumnEntry]) -> Iterator[str]:
    """The keys `dense` and `sparse`."""
    plain = list(entries_of(entries, "dense"))
    if plain:
        yield "dense:"
        for entry in plain:
            yield from _doubts(entry, "  ")
            value = entry.value["name"] if set(entry.value) == {"name"} else entry.value
            yield f"  - {_flow(value)}  # {_about(entry.column)}"
    sparse = list(entries_of(entries, "sparse"))
    if sparse:
        yield "sparse:"
        for entry in sparse:
            yield from _doubts(entry, "  ")
            yield f"  - {_flow(entry.value)}  # {_about(entry.column)}"


def _left_out(entries: Sequence[ColumnEntry]) -> Iterator[str]:
    out = list(entries_of(entries, "out"))
    if out:
        yield ""
        yield "# Left out:"
        for entry in out:
            yield f"# - {_flow(entry.column.name)}: {on_one_line('; '.join(entry.doubts))}"


def _single(entries: Sequence[ColumnEntry], part: Part, key: str, without: str) -> Iterator[str]:
    entry = next(entries_of(entries, part), None)
    if entry is None:
        yield f"{key}: null  # {without}"
        return
    yield from _doubts(entry)
    named = entry.value if part == "session" and entry.value else entry.column.name
    yield f"{key}: {_flow(named)}  # {_about(entry.column)}"


def _label_lines(entries: Sequence[ColumnEntry]) -> Iterator[str]:
    entry = next(entries_of(entries, "label"), None)
    if entry is None:
        yield f"# doubt: {without_label(entries)}"
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
        yield f"{indent}# doubt: {on_one_line(doubt)}"


def _flow(value: Any) -> str:
    text = to_yaml(value, flow=True, width=10_000)
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
        parts.append(f"{empty_share(column)} empty")
    if column.examples and not column.two_valued:
        parts.append(f"as {', '.join(column.examples)}")
    return "; ".join(parts).replace("\n", " ")


def _bound(value: Any) -> str:
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat(" ") if isinstance(value, datetime.datetime) else value.isoformat()
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
