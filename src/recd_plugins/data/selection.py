"""The rows of a table that a run takes: those that an expression chooses, and those of a share of
the sessions.

Which rows go into which batch is computed from the number of rows of each stripe, so that number
must be known before the first batch. A stripe's statistics may show that all of its rows are kept,
or none; for other stripes the columns of the selection are read once, and the numbers are kept in a
file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recd_plugins.data.conform.rows import conform, source_columns
from recd_plugins.data.conform.values import missing, without_views
from recd_plugins.data.expression import Expression, Known, Verdict, expression
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.data.parquet.footer import arrow_schema
from recd_plugins.data.parquet.opened_file import opened
from recd_plugins.data.stripes import Stripe, read_stripe
from recd_plugins.errors import DataError, RegistryError, so_many
from recd_plugins.storage.uri import Location
from recd_plugins.storage.whole_file import write_whole

if TYPE_CHECKING:
    from recd_plugins.data.schema import Schema

__all__ = ["Selection", "kept_rows", "known_of", "mixed"]

THREADS = 8
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rows of a table are taken."""

    where: str | None = None
    """An expression on columns of the files."""
    where_option: str = "dataset.where"
    """The option with the expression, for errors."""
    sessions_share: float = 1.0
    """The share of the sessions, by a hash: those of a smaller share are among those of a larger
    one."""
    schema: Schema
    """The schema of the table, for the columns of its session and time."""
    source: ForeignSchema | None = None
    """The columns of the files if they are foreign; else None."""

    def __post_init__(self) -> None:
        if self.sessions_share < 1 and self.schema.session_id is None:
            raise RegistryError(
                "takes a part of the sessions, but the table has no session column: its schema's "
                "session_id is null. Name the column there, or take sessions_share out.",
                "dataset.sessions_share",
            )

    @property
    def rule(self) -> Expression | None:
        return None if self.where is None else expression(self.where, self.where_option)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the files that it needs."""
        asked = () if self.rule is None else self.rule.columns
        return tuple(dict.fromkeys((*asked, *self._session_columns)))

    def mask(self, rows: pa.Table, where: str) -> Mask:
        """[N] which of these rows of a file are taken; `where` names them in errors."""
        kept = np.ones(rows.num_rows, np.bool_)
        if self.rule is not None:
            kept &= self.rule.mask(rows, self._units)
        if self.sessions_share < 1:
            kept &= self._in_share(rows, where)
        return kept

    def verdict(self, known: Mapping[str, Known], arrow: pa.Schema) -> Verdict:
        """Whether some of a stripe's rows are taken, and whether all are, by what is known of its
        columns."""
        found = Verdict(some=True, every=True)
        if self.rule is not None:
            found = self.rule.verdict(known, arrow, self._units)
        return found._replace(every=found.every and self.sessions_share >= 1)

    def check(self, arrow: pa.Schema, table: str) -> None:
        """Raises `RegistryError` if a file lacks a column that it needs."""
        if self.rule is not None:
            self.rule.check(arrow, self._units, table)

    @property
    def identity(self) -> str:
        """Differs if other rows are taken."""
        rule = self.rule
        source = self.source.to_json() if self.source and self.sessions_share < 1 else ""
        parts = [rule and rule.text, self.sessions_share, source, sorted(self._units.items())]
        return json.dumps(parts)

    @property
    def _units(self) -> Mapping[str, str]:
        if self.source is not None:
            time, unit = self.source.timestamp, self.source.timestamp_unit
            return {} if time is None else {time: unit}
        return {} if self.schema.timestamp is None else {self.schema.timestamp: "ms"}

    @property
    def _session_columns(self) -> tuple[str, ...]:
        session = self.schema.session_id
        if self.sessions_share >= 1 or session is None:
            return ()
        return (session,) if self.source is None else source_columns(self.source, [session])

    def _in_share(self, rows: pa.Table, where: str) -> Mask:
        name = self.schema.session_id
        assert name is not None
        kept: Mask | None = None
        if self.source is not None:
            drops = [one for one in self._session_columns if one in self.source.drops]
            if drops:  # these rows are dropped, and counted as dropped, later
                rows = without_views(rows)
                lacking = [missing(rows[one].combine_chunks()) for one in drops]
                kept = np.logical_or.reduce(lacking)
                rows = rows.filter(pa.array(~kept))
            rows = conform(rows, self.source, where, columns=[name])
        column = rows[name]
        if not pa.types.is_integer(column.type) or column.null_count:
            raise DataError(
                f"{where}: column {name!r} is {column.type} with "
                f"{so_many(column.null_count, 'null')}, but sessions_share takes only whole "
                "numbers. Give the table a dataset.schema."
            )
        sessions = column.combine_chunks().to_numpy().astype(np.int64)
        below = min(int(self.sessions_share * 2**64), 2**64 - 1)
        taken = np.asarray(mixed(sessions.view(np.uint64)) < np.uint64(below))
        if kept is None:
            return taken
        kept[~kept] = taken
        return kept


def kept_rows(
    stripes: Sequence[Stripe],
    selection: Selection,
    cache: Path | None,
    facts: Mapping[Location, FileFacts],
) -> tuple[Stripe, ...]:
    """The stripes with the number of rows that each keeps, without those that keep none.

    `cache` is a folder in which the numbers are kept, by what they were counted from; `facts` are
    those of the files.
    """
    files: dict[Location, list[Stripe]] = {}
    for stripe in stripes:
        files.setdefault(stripe.file, []).append(stripe)
    name = hashlib.sha256(
        repr((selection.identity, _identities(files, facts))).encode()
    ).hexdigest()[:16]
    known = None if cache is None else cache / f"rows-{name}.json"
    counts = _remembered(known, stripes)
    if counts is None:
        with ThreadPoolExecutor(min(THREADS, len(files) or 1)) as pool:
            each = pool.map(lambda one: _counted(files[one], selection, facts.get(one)), files)
            found = {stripe: rows for some in each for stripe, rows in some.items()}
        counts = [found[stripe] for stripe in stripes]
        _remember(known, counts)
    return tuple(
        stripe
        if rows == stripe.num_rows
        else stripe._replace(num_rows=rows, stored=stripe.num_rows)
        for stripe, rows in zip(stripes, counts, strict=True)
        if rows
    )


def _counted(
    stripes: Sequence[Stripe], selection: Selection, facts: FileFacts | None
) -> dict[Stripe, int]:
    """The number of rows that each stripe of one file keeps."""
    found = {}
    with opened(stripes[0].file, facts) as file:
        arrow = arrow_schema(file.metadata, stripes[0].file, facts)
        selection.check(arrow, str(stripes[0].file))
        own = {*file.schema_arrow.names}
        partitions = {name: one for name, one in file.partitions.items() if name not in own}
        for stripe in stripes:
            known = known_of(file.metadata, stripe.group, selection.columns)
            for name, value in partitions.items():
                nulls = 0 if value.is_valid else stripe.num_rows
                known[name] = Known(value.as_py(), value.as_py(), nulls, stripe.num_rows)
            verdict = selection.verdict(known, arrow)
            if verdict.every or not verdict.some:
                found[stripe] = stripe.num_rows * verdict.every
                continue
            rows = read_stripe(file, stripe, selection.columns, threads=False)
            found[stripe] = int(selection.mask(rows, str(stripe)).sum())
    return found


def known_of(footer: pq.FileMetaData, group: int, columns: Sequence[str]) -> dict[str, Known]:
    """What the statistics of a stripe say about some columns."""
    described, found = footer.row_group(group), {}
    chunks = [described.column(index) for index in range(described.num_columns)]
    names = Counter(chunk.path_in_schema for chunk in chunks)
    for chunk in chunks:
        if names[chunk.path_in_schema] > 1:
            continue  # `a.b` may be a column, or b of a struct a
        stats = chunk.statistics if chunk.path_in_schema in columns else None
        if stats is None:
            continue
        low = high = None
        if stats.has_min_max:
            with contextlib.suppress(ValueError, OverflowError):  # as of nanoseconds
                low, high = stats.min, stats.max
        nulls = stats.null_count if stats.has_null_count else None
        found[chunk.path_in_schema] = Known(low, high, nulls, described.num_rows)
    return found


def _identities(
    files: Mapping[Location, Sequence[Stripe]], facts: Mapping[Location, FileFacts]
) -> list[tuple[object, ...]]:
    """The identities of files: each changes when its file does."""
    found: list[tuple[object, ...]] = []
    for file in files:
        known = facts.get(file)
        if known is None or not known.digest:
            stat = file.stat()
            found.append((str(file), stat.st_size, stat.st_mtime_ns))
        else:
            found.append((str(file), known.size, known.digest, known.partition_texts))
    return found


def _remembered(file: Path | None, stripes: Sequence[Stripe]) -> list[int] | None:
    if file is None or not file.is_file():
        return None
    with contextlib.suppress(OSError, ValueError):  # it is counted again
        counts = json.loads(file.read_text())
        if isinstance(counts, list) and len(counts) == len(stripes):
            within = zip(counts, stripes, strict=True)
            if all(isinstance(n, int) and 0 <= n <= one.num_rows for n, one in within):
                return counts
    return None


def _remember(file: Path | None, counts: Sequence[int]) -> None:
    """Write the numbers whole or not at all; if nothing can be written, they are counted again."""
    if file is None:
        return
    with contextlib.suppress(OSError):
        write_whole(file, json.dumps(list(counts)))


def mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """fmix64, MurmurHash3's finalizer: each bit of a number changes half of the others."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(33))
