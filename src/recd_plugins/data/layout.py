"""The layout of a table on disk, and what reading some of its columns costs, known from the footers
only.

A stripe has the bytes of a column together, as a chunk. Chunks that lie within `hole` of each other
are read in one I/O, of at most `most` bytes, as Arrow's pre-buffering does; what lies between them
is read and thrown away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from recd_plugins.data.files.footers import footers_of
from recd_plugins.data.files.found import found_files
from recd_plugins.data.parquet.chunk_columns import column_of_each_chunk
from recd_plugins.data.parquet.coalesced_reads import coalesced_ios
from recd_plugins.data.parquet.pages import first_byte
from recd_plugins.errors import DataError, so_many
from recd_plugins.patterns import matching
from recd_plugins.storage.uri import Location, Uri

__all__ = ["ColumnBytes", "Reading", "Store", "TableLayout", "layout_of", "why_rewrite"]

HOLE, MOST = 8 << 10, 32 << 20
"""Arrow's own limits: the largest gap within an I/O, and the largest I/O."""
SMALL_STRIPE, FEW_STRIPES = 1_000, 8
"""A stripe with fewer rows costs more by itself than its rows do; this many such stripes are
tolerated."""


@dataclass(frozen=True)
class Store:
    """The cost of I/Os on a store, one after another: seconds = ios * latency + bytes / rate."""

    name: str
    latency: float
    """Seconds before its first byte."""
    rate: float
    """Bytes a second."""

    def seconds(self, ios: int, size: int) -> float:
        return ios * self.latency + size / self.rate


STORES = (
    Store("HDD", 8e-3, 150e6),
    Store("SSD", 1e-4, 500e6),
    Store("S3", 20e-3, 90e6),
)
"""A disk of 7,200 rpm, a SATA drive, and one connection to an object store: orders of magnitude for
comparing layouts, not a forecast for a machine."""


@dataclass(frozen=True)
class ColumnBytes:
    """A column of a table, over all stripes."""

    name: str
    kind: str
    """Its type in Arrow."""
    place: int
    """Its number among the file's columns, from 0."""
    compressed: int
    uncompressed: int
    codec: str


@dataclass(frozen=True)
class Reading:
    """The cost of reading some columns of all stripes."""

    columns: tuple[str, ...]
    ios: int
    wanted: int
    """Bytes of the chunks."""
    read: int
    """Bytes of the I/Os: the chunks and what lies between them."""

    @property
    def seconds(self) -> dict[str, float]:
        return {store.name: store.seconds(self.ios, self.read) for store in STORES}


@dataclass(frozen=True)
class TableLayout:
    """A table as its footers describe it."""

    path: str
    files: int
    stripes: int
    num_rows: int
    size: int
    """Bytes of the files."""
    columns: tuple[ColumnBytes, ...]
    """The columns, in the order of the first file."""
    chunks: tuple[tuple[tuple[str, int, int], ...], ...]
    """The column, first byte and size of each chunk, by stripe."""

    @property
    def rows_per_stripe(self) -> float:
        return self.num_rows / max(self.stripes, 1)

    def reading(self, columns: Collection[str], *, hole: int = HOLE) -> Reading:
        """The cost of reading these columns."""
        ios = wanted = read = 0
        for stripe in self.chunks:
            spans = [(first, size) for name, first, size in stripe if name in columns and size]
            wanted += sum(size for _, size in spans)
            for first, end in coalesced_ios(spans, hole=hole, most=MOST):
                ios += 1
                read += end - first
        names = tuple(one.name for one in self.columns if one.name in columns)
        return Reading(names, ios, wanted, read)

    def matching(self, patterns: Iterable[str]) -> tuple[str, ...]:
        """The columns that match one of these names or globs."""
        return tuple(matching(patterns, [one.name for one in self.columns]))


def why_rewrite(rows: int, stripes: int) -> str:
    """What stripes of few rows cost, and the remedy; empty if they are large enough, or few."""
    if stripes <= FEW_STRIPES or rows >= SMALL_STRIPE * stripes:
        return ""
    return (
        f"{stripes:,} stripes (row groups) of {so_many(rows / stripes, 'row')}: each is read and "
        "decoded separately, which takes most of the time. `recd data rewrite` makes larger ones"
    )


def layout_of(path: Location | Sequence[Location]) -> TableLayout:
    """The layout of any program's table, by the footers of its files."""
    files = found_files(path)
    first: pq.FileMetaData = None
    size = 0
    compressed, uncompressed = Counter[str](), Counter[str]()
    codecs: dict[str, str] = {}
    chunks: list[tuple[tuple[str, int, int], ...]] = []
    rows = 0
    for _, facts, (footer, *_) in footers_of(files):
        first = first or footer
        size += facts.size or 0
        rows += footer.num_rows
        names = column_of_each_chunk(footer.schema.to_arrow_schema())
        for group in range(footer.num_row_groups):
            described = footer.row_group(group)
            stripe = []
            for name, chunk in zip(names, map(described.column, range(len(names))), strict=True):
                compressed[name] += chunk.total_compressed_size
                uncompressed[name] += chunk.total_uncompressed_size
                codecs.setdefault(name, chunk.compression.lower())
                stripe.append((name, first_byte(chunk), chunk.total_compressed_size))
            chunks.append(tuple(stripe))
    schema = first.schema.to_arrow_schema()
    columns = tuple(
        ColumnBytes(
            name=field.name,
            kind=str(field.type),
            place=place,
            compressed=compressed[field.name],
            uncompressed=uncompressed[field.name],
            codec=codecs.get(field.name, "none"),
        )
        for place, field in enumerate(schema)
    )
    if not columns:
        raise DataError(
            f"{next(iter(files))}: has no columns. Name another table, or write it again."
        )
    return TableLayout(
        path=str(path if isinstance(path, Path | Uri) else path[0]),
        files=len(files),
        stripes=len(chunks),
        num_rows=rows,
        size=size,
        columns=columns,
        chunks=tuple(chunks),
    )
