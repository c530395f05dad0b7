"""Scattered columns of a table on an S3 server, 20 ms a request: as they lie, and laid first."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.dsi.layouts import list_table, only_file
from benchmarks.harness import Figure, alternate, dropped
from benchmarks.recd_data.quotient import quotient
from benchmarks.s3_endpoint import Proxy, s3_endpoint
from recd_plugins.data.parquet.opened_file import opened
from recd_plugins.data.rewrite import RewriteConfig, rewrite
from recd_plugins.storage.uri import Uri

__all__ = ["over_s3"]

LATENCY = 0.02


def over_s3(
    folder: Path, rounds: int, *, rows: int = 16_000, columns: int = 200, wanted: int = 20
) -> list[Figure]:
    """Rows a second of some columns: requested one by one, and of a table where they come first."""
    folder.mkdir(parents=True, exist_ok=True)
    source, target = folder / "flat", folder / "first"
    source.mkdir()
    stripe = rows // 2
    pq.write_table(
        list_table(rows, columns),
        source / "part.parquet",
        compression="zstd",
        use_dictionary=False,
        row_group_size=stripe,
    )
    names = [f"c{n}" for n in range(columns // wanted // 2, columns, columns // wanted)]
    rewrite(source, target, RewriteConfig(first=tuple(names), rows_per_stripe=stripe))
    with _store() as (proxy, bucket):
        for path in (source, target):
            (bucket / path.name).write_bytes(only_file(path).read_bytes())
        proxy.latency = LATENCY
        flat, first = bucket / "flat", bucket / "first"

        def one_by_one() -> int:
            with flat.opened() as file:
                return _read(pq.ParquetFile(file, pre_buffer=False), names)

        def at_a_time() -> int:
            with opened(flat) as file:
                return _read(file, names)

        def coalesced() -> int:
            with opened(first) as file:
                return _read(file, names)

        ways = {"one by one": one_by_one, "at a time": at_a_time, "first": coalesced}
        requests = {}
        for name, way in ways.items():
            proxy.requests.clear()
            if way() != rows:
                raise AssertionError("each way must read all rows")
            requests[name] = len(proxy.requests)
        measured = alternate(
            {name: dropped(way) for name, way in ways.items()}, rounds, of="over S3"
        )
    counted = f"{requests['one by one']}, {requests['at a time']} and {requests['first']} requests"
    return [
        quotient(
            "reordered and coalesced, over S3",
            measured["one by one"],
            measured["first"],
            target=3,
            unit="x rows/s",
            note=f"{wanted} of {columns} columns, {rows:,} rows in 2 stripes, 20 ms a request; the "
            f"other side requests columns one by one; {counted} (one by one; several at a time; "
            "reordered)",
        ),
        quotient(
            "reordered, over S3, several requests at a time on both sides",
            measured["at a time"],
            measured["first"],
            unit="x rows/s",
            note="the same reader on both layouts",
        ),
    ]


def _read(file: pq.ParquetFile, names: list[str]) -> int:
    groups = range(file.num_row_groups)
    return sum(file.read_row_group(n, columns=names, use_threads=False).num_rows for n in groups)


@contextmanager
def _store() -> Iterator[tuple[Proxy, Uri]]:
    logging.getLogger("werkzeug").disabled = True
    with s3_endpoint() as proxy:
        address = proxy.url.removeprefix("http://")
        bucket = Uri(
            f"s3://somebody:secret@tables/bench?endpoint_override={address}&scheme=http"
            "&allow_bucket_creation=true"
        )
        os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
        bucket.store.system.create_dir("tables")
        yield proxy, bucket
