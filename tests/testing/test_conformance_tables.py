"""Ladder: pure values. Datasets and etl steps: each rule, broken once, is named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract_records import broken, record

from recd_plugins.data.dataset import Dataset, Split
from recd_plugins.data.progress import Progress
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.slots import DatasetRecord, EtlRecord
from recd_plugins.testing.conformance import check_record

# dataset


class Rows(Dataset):
    """Correct; `break_` says how it is not."""

    def __init__(self, break_: str = "") -> None:
        self.break_ = break_

    @property
    def schema(self) -> Schema:
        names = ("item", str(random.random())) if self.break_ == "schema" else ("item", "shop")
        return Schema(
            session_id=None,
            timestamp=None,
            dense=("age",),
            sparse=tuple(SparseFeature(name=name, num_ids=9) for name in names),
        )

    def num_rows(self, split: Split) -> int | None:
        return 7 if self.break_ == "num_rows" else 8

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        rows = 0 if self.break_ == "rows" and split == "test" else 8
        seed: Any = None if self.break_ == "seed" else ["train", "test"].index(split)
        draw = np.random.default_rng(0 if self.break_ == "splits" else seed)
        ids = draw.integers(0, 10 if self.break_ == "ids" else 9, (rows, 4)).tolist()
        if self.break_ == "ids":
            ids[0][0] = 9
        chunk = {
            "label": np.arange(rows, dtype=np.float32) % (3 if self.break_ == "label" else 2),
            "age": np.full(rows, np.nan if self.break_ == "nan" else 1, dtype=np.float32),
            "item": [None, *ids[1:]] if self.break_ == "null" else ids,
            "shop": ids,
        }
        if self.break_ == "column":
            del chunk["shop"]
        if rows:
            yield pa.table(chunk)


def test_a_correct_dataset_passes() -> None:
    check_record(record(DatasetRecord, Rows))


@pytest.mark.parametrize(
    ("break_", "rule"),
    [
        ("schema", "its schema must be a Schema, the same whenever it is asked for"),
        ("rows", "split 'test' must have a row"),
        ("column", "lacks column 'shop'"),
        ("null", "has 1 null in column 'item'"),
        ("ids", "feature 'item' has ids from 0 to 9, outside [0, 9)"),
        ("label", "labels must be 0 or 1"),
        ("nan", "dense column 'age' holds a NaN"),
        ("num_rows", "num_rows('train') is 7, but 8 rows came"),
        ("seed", "two builds must yield the same rows"),
        ("splits", "the splits must not hold the same rows"),
    ],
)
def test_a_dataset_that_breaks_a_rule_is_reported_with_the_rule(break_: str, rule: str) -> None:
    assert rule in broken(record(DatasetRecord, lambda: Rows(break_)))


# etl


@dataclass
class Copy:
    seed: int | None = 0

    def run(self, table: Table, folder: Path, progress: Progress) -> Table:
        rows = pa.concat_tables(pq.read_table(file) for file in table.files)
        order = np.random.default_rng(self.seed).permutation(rows.num_rows)
        return write_table(folder, table.schema, [rows.take(order)])


def test_a_correct_etl_passes_and_one_without_a_seed_is_reported() -> None:
    check_record(record(EtlRecord, Copy))
    assert "two runs on the same table" in broken(record(EtlRecord, lambda: Copy(seed=None)))
