"""Ladder: values and properties. Rows that are there more than once, by a sample of them."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.importing.checking.repeated_rows import MOST, RepeatedRows


def sampled(rows: pa.Table, block: int = 5_000) -> RepeatedRows:
    found = RepeatedRows(rows.num_columns)
    for start in range(0, rows.num_rows, block):
        found.add(found.drawn(rows.slice(start, block), rows.column_names))
    return found


def test_few_rows_are_all_counted_whatever_their_types() -> None:
    """A plain count of the whole rows is the reference; the first 150 of 200 are there again."""
    days = [dt.date(2024, 1, 1) + dt.timedelta(days=one // 2) for one in range(200)]
    rows = pa.table(
        {
            "hour": pa.array([one % 24 for one in range(200)], pa.uint64()),
            "day": pa.array(days),
            "ns": pa.array([10**18 + one for one in range(200)], pa.timestamp("ns", "UTC")),
            "price": pa.array([Decimal(one) / 4 for one in range(200)], pa.decimal128(9, 2)),
            "rate": pa.array([None, 0.5, float("nan"), -0.0] * 50, pa.float32()),
            "brand": pa.array(["a", None, "bé", ""] * 50).dictionary_encode(),
            "seen": pa.array([[one], [], None, [one, None]][one % 4] for one in range(200)),
            "place": pa.array([{"city": f"c{one}", "at": [0.5]} for one in range(200)]),
            "uuid": pa.array([one.to_bytes(16, "big") for one in range(200)], pa.binary(16)),
            "clicked": pa.array([True, False] * 100),
        }
    )
    twice = pa.concat_tables([rows, rows.slice(0, 150)])
    assert sampled(rows).share() == 0
    assert sampled(twice, block=70).share() == pytest.approx(150 / 350)
    assert sampled(twice).times() == 1
    assert sampled(pa.concat_tables([rows] * 3)).times() == 3


@pytest.mark.parametrize("names", [["time", "user"], ["user"], ["text"]])
def test_of_many_rows_a_sample_tells_the_share_in_bounded_memory(names: list[str]) -> None:
    """A tenth of the rows is there again, at another place in other blocks. The sample has 4,096
    different rows or more, so that three standard deviations are 1.5 points."""
    drawn = np.random.default_rng(3)
    users = drawn.permutation(100_000)
    rows = pa.table(
        {"time": drawn.integers(0, 50, 100_000), "user": users, "text": [f"u{u}" for u in users]}
    ).select(names)
    found = sampled(pa.concat_tables([rows, rows.slice(40_000, 10_000)]))
    plain = Counter(zip(*rows.to_pydict().values(), strict=True))
    assert len(plain) == 100_000
    assert MOST / 2.5 < len(found._counts) <= MOST
    assert found.share() == pytest.approx(10_000 / 110_000, abs=0.015)
    assert found.times() == 1


def test_the_same_few_rows_again_and_again_cost_no_more() -> None:
    """Too few different ones to say anything: in a table of two columns they are no mistake."""
    rows = pa.table({"label": [0, 1] * 50_000, "shop": [0, 1, 2, 3] * 25_000})
    found = sampled(rows)
    assert found._seen <= 2 * MOST
    assert (found.share(), found.times()) == (0, 1)


def test_rows_of_few_columns_repeat_by_themselves() -> None:
    """Each of them many times, and none of it is a mistake."""
    drawn = np.random.default_rng(4)
    rows = pa.table({name: drawn.integers(0, 50, 100_000) for name in ("shop", "day")})
    assert min(Counter(zip(*rows.to_pydict().values(), strict=True)).values()) > 10
    assert sampled(rows).share() == pytest.approx(1 - 2_500 / 100_000, abs=0.01)
    assert sampled(rows).times() == 1


def write(path: Path, first: int, rows: int) -> None:
    numbers = np.arange(first, first + rows)
    table = {"label": numbers % 2, "item_id": numbers * 7 % 1_000, "ts": 1_700_000_000 + numbers}
    pq.write_table(pa.table(table), path)


SCHEMA = """
session_id: null
timestamp: ts
timestamp_unit: s
labels: [{name: label, kind: click}]
sparse: [{name: item_id, num_ids: 1000}]
"""


def test_check_says_of_a_log_that_was_imported_twice(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCHEMA)
    log = tmp_path / "log"
    log.mkdir()
    write(log / "a.parquet", 0, 600)
    write(log / "b.parquet", 600, 400)
    schema = ["--schema", str(tmp_path / "s.yaml")]
    checked = CliRunner().invoke(app, ["data", "check", str(log), *schema])
    assert checked.output.splitlines()[-1] == f"{log}: 1,000 rows, no problem"

    write(log / "c.parquet", 0, 250)  # of another writer, or with other bounds of its files
    checked = CliRunner().invoke(app, ["data", "check", str(log), *schema])
    assert checked.exit_code == 0
    assert checked.output.splitlines()[-1] == (
        f"{log}: 1,250 rows, no problem; about 20% of the rows repeat another in all columns read"
    )
    write(log / "d.parquet", 250, 750)
    checked = CliRunner().invoke(app, ["data", "check", str(log), "--json", *schema])
    assert checked.exit_code == 1
    found = json.loads(checked.output.splitlines()[-1])[str(log)]
    assert found["repeated"] == 0.5
    assert [one["what"] for one in found["problems"]] == [
        "each row is there 2 times, in this file or in all of them together"
    ]
