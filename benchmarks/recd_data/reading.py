"""The reader's rows/s, from files to preprocessed batches: RecD's way and the plain one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from itertools import islice

import pyarrow as pa

from benchmarks.harness import Figure, Limit, alternate, spread
from benchmarks.limits import decoding
from recd_dedup.dedup.converters import Exact
from recd_dsi.transforms import FirstX, SigridHash
from recd_plugins.data.batch import Batch
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.read_seconds import CONVERT, GATHER
from recd_plugins.data.reader.local_loader import LocalLoader
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.reader.order import SessionOrder
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Table
from recd_plugins.slots import Context, Loader, Preprocess
from recd_plugins.sparse.groups import Groups

__all__ = ["batches", "conversion", "reader", "steps"]

Steps = list[tuple[tuple[str, ...], Preprocess]]


def steps(schema: Schema) -> Steps:
    """Every id is hashed; sequences keep their first 50."""
    sequences = tuple(feature.name for feature in schema.sparse if feature.sequence)
    return [(schema.sparse_names, SigridHash(100_000)), (sequences, FirstX(50))]


def reader(
    wide: Table,
    by_time: Table,
    by_session: Table,
    left_out: Table,
    groups: Groups,
    batch_size: int,
    rounds: int,
) -> list[Figure]:
    """The figures of rows in the order of time, with ids of 8 bytes, as others write them (`wide`),
    and of 4; and of clustered rows, with all values in their files or with repeats `left_out`."""
    transforms = steps(by_time.schema)
    plain, recd = BatchTransform(transforms), BatchTransform(transforms, Exact(groups))
    schema = by_session.schema
    columns = [schema.label, *schema.dense, *schema.sparse_names]
    sides = {
        "plain": _epoch_of(_loader(wide, "split", batch_size, plain)),
        "narrow": _epoch_of(_loader(by_time, "split", batch_size, plain)),
        "clustered": _epoch_of(_loader(by_session, "whole", batch_size, plain)),
        "recd": _epoch_of(_loader(by_session, "whole", batch_size, recd)),
        "left_out": _epoch_of(_loader(left_out, "whole", batch_size, recd)),
        "decoding": decoding(by_session, columns),
        "decoding_left_out": decoding(left_out, columns),
    }
    measured = alternate(sides, rounds, of="reader")
    rates = {name: [one.result / one.wall for one in side] for name, side in measured.items()}
    median = {name: statistics.median(values) for name, values in rates.items()}

    def gain(side: str, over: str = "plain") -> list[float]:
        return [ours / theirs for ours, theirs in zip(rates[side], rates[over], strict=True)]

    limit, limit_left_out = (
        Limit(
            value=statistics.median(gain(side)),
            of=f"pyarrow decodes the clustered table{how}, on its threads; all that follows is "
            "left out",
        )
        for side, how in (("decoding", ""), ("decoding_left_out", " as it lies in its files"))
    )
    busy = {name: [one.cpu / one.result for one in side] for name, side in measured.items()}
    saved = [one / other for one, other in zip(busy["recd"], busy["left_out"], strict=True)]
    return [
        Figure(
            name="reader rows/s, clustered + IKJT + preprocessing",
            value=statistics.median(gain("recd")),
            unit="x",
            baseline=1.0,
            target=1.79,
            limit=limit,
            spread=spread(gain("recd")),
            note=f"{median['recd']:,.0f} rows/s; {median['plain']:,.0f} of time-ordered + KJT, ids "
            "of 8 bytes",
        ),
        Figure(
            name="reader rows/s, clustered + IKJT + preprocessing, ids of 4 bytes in both",
            value=statistics.median(gain("recd", "narrow")),
            unit="x",
            baseline=1.0,
            spread=spread(gain("recd", "narrow")),
            note=f"{median['recd']:,.0f} rows/s; {median['narrow']:,.0f}",
        ),
        Figure(
            name="reader rows/s, clustered + IKJT + preprocessing, repeats left out of files",
            value=statistics.median(gain("left_out")),
            unit="x",
            baseline=1.0,
            limit=limit_left_out,
            spread=spread(gain("left_out")),
            note=f"{median['left_out']:,.0f} rows/s",
        ),
        Figure(
            name="reader, processor time that repeats left out of files save",
            value=statistics.median(saved),
            unit="x less",
            baseline=1.0,
            spread=spread(saved),
            note="clustered + IKJT + preprocessing, with all lists in the files over without",
        ),
        Figure(
            name="reader rows/s, clustered + KJT + preprocessing",
            value=statistics.median(gain("clustered")),
            unit="x",
            baseline=1.0,
            spread=spread(gain("clustered")),
            note="O2 alone",
        ),
    ]


def conversion(
    by_session: Table, left_out: Table, groups: Groups, batch_size: int, rounds: int
) -> list[Figure]:
    """What a reader does between decoded columns and batches, on one thread."""
    sides = {
        f"{kind}, {name}": _gathering_of(
            _loader(table, "whole", batch_size, transform, prefetch=False)
        )
        for name, table in (("whole", by_session), ("left out", left_out))
        for kind, transform in (("KJT", None), ("IKJT", BatchTransform((), Exact(groups))))
    }
    threads = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        measured = alternate(sides, rounds, of="IKJT conversion in the reader")
    finally:
        pa.set_cpu_count(threads)
    took = {name: [one.result for one in side] for name, side in measured.items()}

    def figure(name: str, files: str) -> Figure:
        ours, plain = took[f"IKJT, {files}"], took[f"KJT, {files}"]
        shares = [one / other for one, other in zip(ours, plain, strict=True)]
        return Figure(
            name=f"IKJT conversion in the reader, time over gathering KJTs{name}",
            value=statistics.median(shares),
            unit="x",
            baseline=1.0,
            target=1.0,
            at_most=True,
            spread=spread(shares),
            note=f"{statistics.median(ours) * 1e3:,.2f} over {statistics.median(plain) * 1e3:,.2f} "
            "ms a batch: decoded columns of a window to batches, sessions whole, one thread",
        )

    return [figure("", "whole"), figure(", repeats left out of files", "left out")]


def _gathering_of(loader: LocalLoader) -> Callable[[], float]:
    """A call that reads an epoch and returns how long gathering and converting took, in seconds per
    batch."""

    def taken() -> float:
        seconds = loader.read_seconds
        return seconds[GATHER] + seconds.get(CONVERT, 0.0)

    def run() -> float:
        began = taken()
        count = sum(1 for _ in loader)
        return (taken() - began) / count

    return run


def batches(table: Table, batch_size: int, count: int) -> Iterator[Batch]:
    """The first batches of an epoch, sessions whole, every feature in the KJT."""
    yield from islice(_loader(table, "whole", batch_size, None), count)


def _loader(
    table: Table,
    sessions: SessionOrder,
    batch_size: int,
    transform: BatchTransform | None,
    *,
    prefetch: bool = True,
) -> LocalLoader:
    config = LocalReaderConfig(sessions=sessions, prefetch=prefetch)
    return build_local_reader(config, Context()).loader(
        table,
        rank=0,
        world_size=1,
        batch_size=batch_size,
        split="train",
        transform=transform,
    )


def _epoch_of(loader: Loader) -> Callable[[], int]:
    return lambda: sum(len(batch) for batch in loader)
