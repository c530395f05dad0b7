"""A vocabulary of columns of foreign files, made in one pass, without an import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recd_plugins.data.conform.rows import dropping_columns, only, rows_left
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.vocabulary import Counted, VocabularyCounts, counted
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.column_types import ColumnTypes, Misfit, wider
from recd_plugins.data.importing.reading import Block, mapped
from recd_plugins.data.importing.surveying.survey import Survey
from recd_plugins.data.progress import Progress, silent
from recd_plugins.errors import DataError, nearest
from recd_plugins.storage.uri import Location

__all__ = ["WrittenVocabulary", "write_vocabulary"]


@dataclass(frozen=True, kw_only=True)
class WrittenVocabulary:
    """A vocabulary that was written."""

    num_ids: int
    """All ids, including those that other values share: a feature's `num_ids`."""
    values: int
    """The number of different values in the columns."""
    own: int
    """The number of values with their own id."""


def write_vocabulary(
    found: Survey,
    columns: Sequence[str],
    to: Location,
    *,
    most: int,
    least_count: int = 1,
    others: int = 1,
    schema: ForeignSchema | None = None,
    progress: Progress = silent,
) -> WrittenVocabulary:
    """Count the values of some columns together, and write a vocabulary of at most `most` ids.

    Each row of a column holds an id or a list of ids. Nulls, NaN and what the schema has as
    `missing` are not counted, nor are rows that it drops for a null in a column that was surveyed
    too; and a file may lack a column. If a column holds values that do not fit the type that it was
    taken for, it is read as a wider type, as in an import.
    """
    known = {column.name for column in found.columns}
    known.update(name for file in found.files for name in file.columns)
    for name in columns:
        if name not in known:
            raise DataError(f"--column: the files have no {name!r}; {nearest(name, known)}")
    if most <= others:
        raise DataError(
            f"--most: {most:,} ids are too few where {others:,} are for the other values. Raise "
            "it, or lower --others."
        )

    read_as = found.read_as.naming(columns, found.files[0])
    while True:
        try:
            counts = _counts(found, columns, read_as, schema, progress)
            break
        except Misfit as error:
            kind = wider(read_as, error, columns, found.files[0])
            if kind is None:
                raise
            read_as = read_as.having(error.column, kind)
    if not counts.num_values:
        raise DataError(
            f"{', '.join(columns)}: holds no value, so there is no vocabulary. Name another "
            "column by --column, or more files."
        )
    num_ids = counts.save(to, most=most, least_count=least_count, others=others)
    return WrittenVocabulary(num_ids=num_ids, values=counts.num_values, own=num_ids - others)


def _counts(
    found: Survey,
    columns: Sequence[str],
    read_as: ColumnTypes,
    schema: ForeignSchema | None,
    progress: Progress,
) -> VocabularyCounts:
    """How often each value occurs."""
    surveyed = {column.name for column in found.columns}
    drops = () if schema is None else dropping_columns(schema)
    read = list(dict.fromkeys([*columns, *(name for name in drops if name in surveyed)]))

    def missing(name: str) -> Sequence[int | str]:
        return () if schema is None else schema.feature(name).missing

    def count(block: Block) -> list[Counted]:
        rows, where = block.rows(read, read_as), str(block.file.path)
        if schema is not None:
            rows = only(rows, rows_left(rows, schema))
        # One column may hold an integer per row, and another lists of texts.
        return [
            counted(rows[name].chunks, Spot(where, name), missing(name))
            for name in columns
            if rows[name].num_chunks
        ]

    counts = VocabularyCounts(", ".join(columns))
    passed = mapped(
        count, found.files, read, progress=progress, what="counting values", absent=read
    )
    for _, parts in passed:
        for part in parts:
            counts.add(part)
    return counts
