"""The cost of an import of a CSV, compared with only reading the file by pyarrow.

    python -m benchmarks.honesty.imports [--quick] [--json]

Each side runs in a process of its own, in turn. Reading is `pyarrow.csv.open_csv` over the whole
file. Importing is what `recd data import` does with a schema of hashed ids, from the first look at
the file to the last byte of the table.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.harness import ALLOCATOR, Figure, Report, main, spread

__all__ = ["figures", "write_csv"]

MIB = {False: 1536, True: 100}
"""The size of the file in MiB; the key says whether the run is quick."""
ROUNDS = {False: 3, True: 2}
SEED = 0
CHUNK = 200_000

READ = """
import pyarrow.csv
rows = sum(batch.num_rows for batch in pyarrow.csv.open_csv(source))
"""
IMPORT = """
from recd_plugins.config import parse
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_import import TableImport
found = survey(foreign_files([Path(source)]))
schema = parse(ForeignSchema, json.loads(sys.argv[3]), "schema")
made = TableImport(found.files, Path(sys.argv[2]), schema, found.read_as).run()
rows = sum(made.rows.values())
"""
TIMED = """
import json, sys, time
from pathlib import Path
import numpy, pyarrow, pyarrow.csv, pyarrow.parquet
from benchmarks.peak_memory import peak_memory
{imports}
source = sys.argv[1]
began, worked = time.perf_counter(), time.process_time()
{body}
seconds, cpu = time.perf_counter() - began, time.process_time() - worked
print(json.dumps({{"seconds": seconds, "cpu": cpu, "peak": peak_memory(), "rows": rows}}))
"""
NUMBERS = 6
SCHEMA: dict[str, Any] = {
    "session_id": "session",
    "timestamp": "time",
    "label": "click",
    "dense": [f"number_{i}" for i in range(NUMBERS)],
    "sparse": [
        {"name": "user", "num_ids": 2_000_000, "ids": "hash", "kind": "user"},
        {"name": "item", "num_ids": 1_000_000, "ids": "hash"},
        {"name": "brand", "num_ids": 10_000, "ids": "hash"},
        {"name": "category", "num_ids": 10_000, "ids": "hash"},
        {"name": "city", "num_ids": 1_000},
    ],
}


def write_csv(path: Path, size: int) -> int:
    """Write a log of clicks of about `size` bytes, with integers, texts and numbers. Returns the
    number of its rows."""
    draw = np.random.default_rng(SEED)
    rows = 0
    with path.open("wb") as file:
        while file.tell() < size:
            at = rows + np.arange(CHUNK)
            items = draw.zipf(1.3, CHUNK) % 1_000_000
            columns: dict[str, Any] = {
                "session": at // 6,
                "time": 1_700_000_000_000 + at * 37,
                "click": draw.integers(0, 2, CHUNK),
                "user": draw.integers(0, 2_000_000, CHUNK),
                "item": items,
                "brand": [f"brand {one}" for one in items % 5_000],
                "category": [f"{one:08x}" for one in items % 997],
                "city": draw.integers(0, 500, CHUNK),
            }
            for number in range(NUMBERS):
                columns[f"number_{number}"] = np.round(draw.gamma(2, 3, CHUNK), 3)
            header = pyarrow.csv.WriteOptions(include_header=not rows)
            pyarrow.csv.write_csv(pa.table(columns), file, header)
            rows += CHUNK
    return rows


def run(body: str, *arguments: str, imports: str = "") -> dict[str, float]:
    """The seconds and memory of a side, in a process of its own with the system's usual
    allocator."""
    program = TIMED.format(body=body, imports=imports)
    usual = {name: value for name, value in os.environ.items() if name not in ALLOCATOR}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=usual,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(quick: bool) -> list[Figure]:
    """The seconds and peak memory of an import, compared with pyarrow's reading."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "clicks.csv"
        rows = write_csv(source, MIB[quick] << 20)
        reads, imports = [], []
        for number in range(ROUNDS[quick] + 1):
            table = Path(folder) / f"table-{number}"
            read = run(READ, str(source))
            made = run(
                IMPORT,
                str(source),
                str(table),
                json.dumps(SCHEMA),
                imports="import recd_plugins.data.conform.hashing, recd_plugins.data.table",
            )
            assert read["rows"] == made["rows"] == rows
            subprocess.run(["rm", "-r", str(table)], check=True)
            print(f"round {number}: {read}, {made}", file=sys.stderr, flush=True)
            if number:  # the first one fills the page cache
                reads.append(read)
                imports.append(made)

    def middle(sides: list[dict[str, float]], what: str) -> float:
        return statistics.median(one[what] for one in sides)

    ratios = [one["seconds"] / read["seconds"] for one, read in zip(imports, reads, strict=True)]
    took = (
        f"{middle(imports, 'seconds'):.1f} s for {middle(reads, 'seconds'):.1f} s, of all cores "
        f"{middle(imports, 'cpu'):.1f} s for {middle(reads, 'cpu'):.1f} s"
    )
    about = f"{rows:,} rows of 14 columns, {MIB[quick]:,} MiB; both sides in turn"
    return [
        Figure(
            name="import of a CSV, time over pyarrow's reading of it",
            value=statistics.median(ratios),
            unit="x",
            target=2.0,
            at_most=True,
            spread=spread(ratios),
            note=f"{took}; {about}",
        ),
        Figure(
            name="import of a CSV, peak memory",
            value=max(one["peak"] for one in imports) / 2**30,
            unit="GiB",
            target=1.5e9 / 2**30,
            at_most=True,
            note=about,
        ),
    ]


def measure(quick: bool) -> Report:
    return Report(figures=figures(quick), seed=SEED)


if __name__ == "__main__":
    main("honesty.imports", measure)
