"""Tables laid out for training: a map column or a column a feature, and the order of columns."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Figure, Limit, alternate, dropped
from benchmarks.recd_data.quotient import quotient
from recd_plugins.data.layout import layout_of
from recd_plugins.data.rewrite import RewriteConfig, flattened, rewrite

__all__ = ["flattening", "list_table", "only_file", "reordering", "striping"]

LISTS = pa.list_(pa.int64())


def flattening(
    folder: Path, rounds: int, *, rows: int = 20_000, features: int = 500, share: float = 0.1
) -> list[Figure]:
    """Reading a tenth of the features: out of a map column, and of columns of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    source, target = folder / "map.parquet", folder / "flat"
    pq.write_table(_map_table(rows, features), source, compression="zstd", row_group_size=rows // 4)
    rewrite(source, target, RewriteConfig(flatten=("features",), rows_per_stripe=rows // 4))
    wanted = [str(key) for key in range(0, features, round(1 / share))]

    def out_of_a_map() -> int:
        found = 0
        file = pq.ParquetFile(source)
        for group in range(file.num_row_groups):
            for chunk in file.read_row_group(group, columns=["features"])["features"].chunks:
                found += sum(len(one.values) for one in flattened(chunk, wanted))
        return found

    def of_columns() -> int:
        found = 0
        for path in sorted(target.glob("*.parquet")):
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                read = file.read_row_group(group, columns=[f"features_{key}" for key in wanted])
                found += sum(len(chunk.values) for one in read.columns for chunk in one.chunks)
        return found

    if out_of_a_map() != of_columns():
        raise AssertionError("both ways must read the same ids")
    measured = alternate(
        {"map": dropped(out_of_a_map), "flat": dropped(of_columns)}, rounds, of="flattening"
    )
    size = [source.stat().st_size, sum(one.stat().st_size for one in target.iterdir())]
    return [
        quotient(
            "10% of 500 features, flattened",
            measured["map"],
            measured["flat"],
            target=3,
            unit="x rows/s",
            note=f"{len(wanted)} of {features} features, {rows:,} rows in the page cache; files of "
            f"{size[0] / 1e6:,.0f} and {size[1] / 1e6:,.0f} MB",
        )
    ]


def reordering(
    folder: Path, *, rows: int = 4_000, columns: int = 200, wanted: int = 20
) -> list[Figure]:
    """I/Os and bytes of a reader that wants scattered columns, before and after they come first.

    Both are counted at the file, as Arrow reads it: a chunk each where nothing is coalesced, and by
    pre-buffering with its own limits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, target = folder / "scattered", folder / "first"
    source.mkdir()
    pq.write_table(
        list_table(rows, columns),
        source / "part.parquet",
        compression="zstd",
        use_dictionary=False,
        row_group_size=rows // 2,
    )
    names = [f"c{n}" for n in range(columns // wanted // 2, columns, columns // wanted)]
    rewrite(source, target, RewriteConfig(first=tuple(names), rows_per_stripe=rows // 2))
    before, after = (
        _counted(only_file(path), names, pre_buffer=coalesce)
        for path, coalesce in ((source, False), (target, True))
    )
    foretold = layout_of(target).reading(names)
    footer = pq.read_metadata(only_file(target))
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    least = sum(
        one.total_compressed_size for one in chunks if one.path_in_schema.split(".")[0] in names
    )
    return [
        Figure(
            name="reordered and coalesced, I/Os",
            value=before[0] / after[0],
            unit="x fewer",
            baseline=1.0,
            target=8,
            limit=Limit(value=before[0] / len(groups), of="one I/O a stripe"),
            note=f"{before[0]} and {after[0]} for {wanted} of {columns} columns in 2 stripes; "
            f"`recd data layout` foretells {foretold.ios}",
        ),
        Figure(
            name="reordered and coalesced, bytes",
            value=after[1] / before[1],
            unit="x",
            baseline=1.0,
            target=1.05,
            at_most=True,
            limit=Limit(value=least / before[1], of="the bytes of the wanted columns alone"),
            note=f"{before[1]:,} and {after[1]:,} bytes; `recd data layout` foretells "
            f"{foretold.read:,}",
        ),
    ]


def striping(
    folder: Path, rounds: int, *, rows: int = 20_000, columns: int = 40, wanted: int = 10
) -> Figure:
    """Reading columns that lie first, of stripes of half of the rows and of a twentieth."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "source.parquet"
    pq.write_table(list_table(rows, columns), source, compression="zstd", use_dictionary=False)
    names = [f"c{n}" for n in range(wanted)]
    sides = {"large": rows // 2, "small": rows // 20}
    tables = {name: folder / name for name in sides}
    readings, windows = {}, {}
    for name, stripe in sides.items():
        stripes = RewriteConfig(first=tuple(names), rows_per_stripe=stripe, stripes_per_file=20)
        rewrite(source, tables[name], stripes)
        readings[name] = layout_of(tables[name]).reading(names)
        file = pq.ParquetFile(only_file(tables[name]))
        windows[name] = 2 * file.read_row_group(0, columns=names).nbytes

    def read(table: Path) -> None:
        file = pq.ParquetFile(only_file(table), pre_buffer=True)
        for group in range(file.num_row_groups):
            file.read_row_group(group, columns=names)

    measured = alternate(
        {name: dropped(partial(read, table)) for name, table in tables.items()},
        rounds,
        of="striping",
    )
    large, small = readings["large"], readings["small"]
    seconds = ", ".join(
        f"{store} {small.seconds[store] / large.seconds[store]:.1f}x" for store in large.seconds
    )
    return quotient(
        "stripes ten times as large",
        measured["small"],
        measured["large"],
        unit="x rows/s",
        note=f"{wanted} of {columns} columns, {rows:,} rows in the page cache; {small.ios} and "
        f"{large.ios} I/Os, {small.read:,} and {large.read:,} bytes, by `recd data layout` "
        f"{seconds} faster; the price: a window of two stripes has {windows['small'] / 1e6:.2g} "
        f"and {windows['large'] / 1e6:.2g} MB of these columns in memory",
    )


class Counting(io.RawIOBase):
    """A file that counts what is read of it, but for the footer."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.ios = self.bytes = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size) or b""
        self.ios += 1
        self.bytes += len(found)
        return found

    def close(self) -> None:
        self._file.close()
        super().close()


def _counted(path: Path, names: list[str], *, pre_buffer: bool) -> tuple[int, int]:
    """I/Os and bytes of reading these columns, stripe by stripe."""
    counting = Counting(path)
    file = pq.ParquetFile(pa.PythonFile(counting, mode="r"), pre_buffer=pre_buffer)
    counting.ios = counting.bytes = 0
    for group in range(file.num_row_groups):
        file.read_row_group(group, columns=names, use_threads=False)
    return counting.ios, counting.bytes


def only_file(folder: Path) -> Path:
    """The file of a table of one."""
    (file,) = folder.glob("*.parquet")
    return file


def _map_table(rows: int, features: int) -> pa.Table:
    """Each row has three in ten of the features, in lists of 0 to 7 ids."""
    draw = np.random.default_rng(0)
    has = draw.random((rows, features)) < 0.3
    keys = np.nonzero(has)[1]
    lengths = draw.integers(0, 8, len(keys))
    ids = pa.array(draw.integers(0, 1_000_000, lengths.sum()))
    items = pa.ListArray.from_arrays(pa.array(_bounds(lengths), pa.int32()), ids)
    offsets = pa.array(_bounds(has.sum(1)), pa.int32())
    return pa.table({"features": pa.MapArray.from_arrays(offsets, pa.array(keys), items)})


def list_table(rows: int, columns: int) -> pa.Table:
    """Lists of 0 to 19 ids in each column."""
    draw = np.random.default_rng(0)
    made = {}
    for n in range(columns):
        lengths = draw.integers(0, 20, rows)
        ids = pa.array(draw.integers(0, 1_000_000, lengths.sum()))
        made[f"c{n}"] = pa.ListArray.from_arrays(pa.array(_bounds(lengths), pa.int32()), ids)
    return pa.table(made)


def _bounds(lengths: Any) -> Any:
    return np.concatenate([[0], lengths.cumsum()])
