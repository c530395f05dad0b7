"""A vocabulary of columns of foreign files, counted in one pass, without an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.vocabulary import Counted, VocabularyCounts, counted
from recd_plugins.data.importing.column_types import ColumnTypes, Misfit, wider
from recd_plugins.data.importing.reading import Block, mapped
from recd_plugins.data.importing.survey import Survey
from recd_plugins.data.table import Progress, silent
from recd_plugins.errors import DataError, nearest
from recd_plugins.storage.uri import Location

__all__ = ["Written", "write_vocabulary"]


@dataclass(frozen=True, kw_only=True)
class Written:
    """A vocabulary that was written."""

    num_ids: int
    """Ids in all, those that the others share among them: a feature's `num_ids`."""
    values: int
    """Different values that the columns hold."""
    own: int
    """The number of values that have an id of their own."""


def write_vocabulary(
    found: Survey,
    columns: Sequence[str],
    to: Location,
    *,
    most: int,
    least_count: int = 1,
    others: int = 1,
    missing: Mapping[str, Sequence[int | str]] | None = None,
    progress: Progress = silent,
) -> Written:
    """Count the values of some columns together, and write the `most` frequent to a file.

    Columns hold an id each row, or a list of them; nulls, NaN and what is `missing` by a schema are
    no values, and a file that lacks one has none of it. A column that holds other values than it
    was taken for is read as a wider type, as an import does.
    """
    known = {column.name for column in found.columns}
    known.update(name for file in found.files for name in file.columns)
    for name in columns:
        if name not in known:
            raise DataError(f"--column: the files have no {name!r}; {nearest(name, known)}")
    if most <= others:
        raise DataError(
            f"--most: {most:,} ids are too few where {others:,} are for the other values. Give it "
            "more, or --others fewer."
        )

    read_as = found.read_as.naming(columns, found.files[0])
    while True:
        try:
            counts = _counts(found, columns, read_as, missing or {}, progress)
            break
        except Misfit as error:
            kind = wider(read_as, error, columns, found.files[0])
            if kind is None:
                raise
            read_as = read_as.having(error.column, kind)
    if not counts.num_values:
        raise DataError(f"{', '.join(columns)}: holds no value, so there is no vocabulary.")
    num_ids = counts.save(to, most=most, least_count=least_count, others=others)
    return Written(num_ids=num_ids, values=counts.num_values, own=num_ids - others)


def _counts(
    found: Survey,
    columns: Sequence[str],
    read_as: ColumnTypes,
    missing: Mapping[str, Sequence[int | str]],
    progress: Progress,
) -> VocabularyCounts:
    """The number of times that each value occurs."""

    def count(block: Block) -> list[Counted]:
        rows, where = block.rows(columns, read_as), str(block.file.path)
        # Columns of one table may be an integer each and lists of text.
        return [
            counted(rows[name].chunks, Spot(where, name), missing.get(name, ()))
            for name in columns
            if rows[name].num_chunks
        ]

    counts = VocabularyCounts(", ".join(columns))
    passed = mapped(
        count, found.files, columns, progress=progress, what="counting values", absent=columns
    )
    for _, parts in passed:
        for part in parts:
            counts.add(part)
    return counts
