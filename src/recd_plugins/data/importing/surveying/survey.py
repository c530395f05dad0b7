"""A survey of foreign files: what their columns seem to be, judged by a sample of all files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.importing.column_types import ColumnTypes
from recd_plugins.data.importing.foreign_file import ForeignFile, shell_files
from recd_plugins.data.importing.surveying.column_survey import ColumnSurvey, column_survey
from recd_plugins.data.importing.surveying.sample import Sample, sample
from recd_plugins.data.importing.surveying.sampled_types import all_match, comma_numbers, typed
from recd_plugins.data.importing.text.text_rows import GROUPED
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.errors import DataError, nearest

__all__ = ["NUMBER", "Survey", "survey"]

NUMBER = r"^\s*[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\s*$"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a sample shows of foreign files."""

    files: tuple[ForeignFile, ...]
    rows: int
    """About how many rows all files have."""
    sampled: int
    """How many rows were looked at."""
    exact_rows: bool
    columns: tuple[ColumnSurvey, ...]
    read_as: ColumnTypes
    form: TextForm
    """How text is read, according to options and a schema."""
    doubts: tuple[str, ...]
    """Questions that the sample does not settle."""
    several: Mapping[str, Sequence[pa.DataType]]
    """The types of columns that files write in types with nothing in common."""
    sample: Mapping[str, pa.ChunkedArray] = field(repr=False, compare=False)
    """The rows that were looked at, by column."""


def survey(
    files: Sequence[ForeignFile],
    wanted: Collection[str] = (),
    *,
    alone: bool = False,
    form: TextForm | None = None,
    ids: Collection[str] = (),
) -> Survey:
    """Look at a bounded sample of the files; see `sample`.

    `ids` are the columns that a schema has as ids. Those whose commas separate thousands are named
    in the form; in the others, commas separate ids, as they did when the schema was made.
    """
    form = form or TextForm()
    found = sample(files, wanted, alone=alone)
    if not found.rows:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        raise DataError(f"{files[0].path}{more}: holds no rows. Take it out, or download it again.")
    _check_known(form, {*found.columns, *wanted})
    _check_headers(found)
    columns, read_as = typed(found, files[0], form, ids)
    doubts = [*found.doubts]
    for name in columns:
        lacking = [file.path for file in found.files if name not in file.columns]
        if lacking and files[0].format != "jsonl":  # any line of JSON may lack any key
            doubts.append(
                f"{name!r} is not in {lacking[0]} ({len(lacking)} of {len(found.files)} files that "
                f"were looked at lack it): `recd data import --absent {name}`, or `absent` of the "
                "dataset, takes nulls for it there"
            )
    doubts += _comma_doubts(found, read_as, form)
    doubts += [
        f"{name!r} is taken for texts, since most are lists but some are not: if all are, write "
        f"`text: {{lists: {{{name}: {separator!r}}}}}` in the schema"
        for name, separator in sorted(read_as.whole.items())
        if name not in form.lists
    ]
    doubts += _nearly_numbers(columns) if files[0].format == "text" else ()
    twice = dict.fromkeys(name for file in files for name in file.renamed)
    doubts += [
        f"several columns are called {name!r}: all but the first got a number" for name in twice
    ]
    return Survey(
        files=tuple(files),
        rows=found.rows,
        sampled=found.sampled,
        exact_rows=found.exact_rows,
        columns=tuple(column_survey(name, column, found.rows) for name, column in columns.items()),
        read_as=read_as,
        form=form,
        doubts=tuple(doubts),
        several=found.several,
        sample=columns,
    )


def _check_known(form: TextForm, known: Collection[str]) -> None:
    for key in ("lists", "decimal_commas", "thousands"):
        for name in getattr(form, key):
            if name not in known:
                raise DataError(
                    f"text.{key} of the schema: no column is called {name!r}; "
                    f"{nearest(name, known)}"
                )


def _check_headers(found: Sample) -> None:
    """Raise `DataError` if rows repeat the header, as they do after files were concatenated."""
    file = found.files[0]
    own = [name for name in file.names if name in found.columns]
    if file.format != "text" or not file.header or len(own) < 2:
        return
    again = [pc.fill_null(pc.equal(found.columns[name], name), False) for name in own]
    if pc.any(reduce(pc.and_, again)).as_py():
        raise DataError(
            f"{file.path}: repeats its header among the rows. Take that out: awk 'NR == 1 "
            "{head = $0} NR == 1 || $0 != head' "
            + shell_files(file.path, f"{file.path.stem}.rows{file.path.suffix}")
        )


def _nearly_numbers(columns: Mapping[str, pa.ChunkedArray]) -> Iterator[str]:
    """A doubt for each text column in which all but a few values are numbers, for example because
    of a line of totals."""
    for name, column in columns.items():
        if not pa.types.is_string(column.type):
            continue
        different = pc.unique(column).drop_null()
        odd = different.filter(pc.invert(pc.match_substring_regex(different, NUMBER)))
        share = pc.mean(pc.is_in(column.drop_null(), value_set=odd)).as_py() or 0.0
        if 0 < len(odd) <= 3 and share <= 0.01 and len(different) > len(odd):
            yield (
                f"{name!r} is taken for texts, since {odd[0].as_py()[:40]!r} is not a number, "
                "while all but a few are: if its line is not a row, take it out"
            )


def _comma_doubts(found: Sample, read_as: ColumnTypes, form: TextForm) -> Iterator[str]:
    """What commas are taken for if the form does not say, and what else they may be."""
    for name in sorted(read_as.decimal_commas.difference(form.decimal_commas)):
        may_be = all_match(comma_numbers(found.columns[name]), GROUPED)
        thousands = (
            f"; if they separate thousands, write `text: {{thousands: [{name}]}}` in the schema"
        )
        yield f"{name!r}: its commas are taken for decimal points{thousands * may_be}"
    for name in sorted(read_as.thousands.difference(form.thousands)):
        yield (
            f"{name!r}: its commas are taken to separate thousands; if they are decimal points, "
            f"write `text: {{decimal_commas: [{name}]}}` in the schema"
        )
    for name in sorted(read_as.parted.keys() - form.lists.keys()):
        if read_as.parted[name] == "," and all_match(comma_numbers(found.columns[name]), GROUPED):
            cure = f"write `text: {{thousands: [{name}]}}` in the schema"
            if found.files[0].format == "jsonl":  # numbers in JSON have no commas
                cure = "write numbers without them, and without quotes"
            doubt = "its commas are taken to separate ids; if they separate thousands"
            yield f"{name!r}: {doubt}, {cure}"
