"""Value tests: tables that somebody else wrote, read where they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recd_plugins.data.dataset import Tables
from recd_plugins.data.parquet import ParquetConfig, build_parquet
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import DataError
from recd_plugins.slots import Context
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.probe import SCHEMA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two splits as this package writes them."""
    random_table(tmp_path / "train", SCHEMA, 100, rows_per_stripe=30)
    random_table(tmp_path / "test", SCHEMA, 10, seed=1)
    return tmp_path


def config(folder: Path, **options: Any) -> ParquetConfig:
    return ParquetConfig(train=folder / "train", test=folder / "test", **options)


def foreign(schema: Schema) -> ForeignSchema:
    """The same columns, as registry.yaml says them."""
    return ForeignSchema.from_json(schema.to_json(), "dataset.schema")


def test_it_is_read_where_it_is(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    dataset = build_parquet(config(folder), Context(folder=folder / "data"))
    assert dataset.in_place
    tables = dataset.prepare(folder / "data/somewhere")
    assert isinstance(tables, Tables)
    assert tables.train.path == folder / "train"
    assert tables["test"].path == folder / "test"
    assert tables.schema == dataset.schema == SCHEMA
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_its_chunks_are_its_stripes_in_order(folder: Path) -> None:
    dataset = build_parquet(config(folder), Context())
    chunks = list(dataset.chunks("train"))
    assert [chunk.num_rows for chunk in chunks] == [30, 30, 30, 10]
    assert dataset.num_rows("train") == 100
    assert dataset.num_rows("test") == 10
    whole = pq.read_table(folder / "train")
    assert (
        pa.concat_tables(chunks)
        .select(list(SCHEMA.columns))
        .equals(whole.select(list(SCHEMA.columns)))
    )


def test_columns_that_the_schema_does_not_name_are_left_out(folder: Path) -> None:
    narrow = Schema(session_id=None, timestamp=None, sparse=(SCHEMA.feature("shop"),))
    dataset = build_parquet(config(folder, schema=foreign(narrow)), Context())
    assert dataset.schema == narrow
    assert next(dataset.chunks("train")).column_names == ["label", "shop"]


def write_plain(path: Path, **columns: pa.Array) -> None:
    """As another program would: no schema in the footer."""
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path)


def test_a_table_of_another_program_takes_its_schema_from_the_registry(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_plain(
            tmp_path / split / "a.parquet",
            y=pa.array([0, 1, 0], pa.int8()),
            extra=pa.array(["x", "y", "z"]),
            ids=pa.array([[1], [], [2, 3]], pa.large_list(pa.int32())),
        )
    schema = Schema(
        label="y",
        session_id=None,
        timestamp=None,
        sparse=(SparseFeature(name="ids", num_ids=4),),
    )
    tables = build_parquet(config(tmp_path, schema=foreign(schema)), Context()).prepare(tmp_path / "data")
    assert tables.train.num_rows == 3
    assert tables.schema == schema
    with pytest.raises(DataError, match=r"a.parquet: carries no 'recd_schema' in its footer.*Give"):
        build_parquet(config(tmp_path), Context()).prepare(tmp_path / "data")


@pytest.mark.parametrize("split", ["train", "test"])
def test_either_split_may_be_one_file_and_must_be_there(split: str, folder: Path) -> None:
    (file,) = (folder / split).glob("*.parquet")
    paths = {"train": folder / "train", "test": folder / "test"}
    one = build_parquet(ParquetConfig(**{**paths, split: file}), Context())
    assert one.prepare(folder / "data")[split].files == (file,)  # type: ignore[index]
    gone = build_parquet(ParquetConfig(**{**paths, split: folder / "nowhere"}), Context())
    with pytest.raises(DataError, match=r"nowhere: there is no such table"):
        gone.prepare(folder / "data")


def test_the_splits_must_agree_with_one_schema(folder: Path) -> None:
    """Each split is checked against what is asked of it, though its own footer says less."""
    narrow = Schema(session_id=None, timestamp=None, sparse=(SCHEMA.feature("shop"),))
    random_table(folder / "narrow", narrow, 10)
    options = ParquetConfig(train=folder / "train", test=folder / "narrow", schema=foreign(SCHEMA))
    with pytest.raises(DataError, match=r"narrow/part-00000.parquet: column 'age' is not"):
        build_parquet(options, Context()).prepare(folder / "data")


def test_its_fingerprint_follows_every_file(folder: Path) -> None:
    def fingerprint() -> str:
        return build_parquet(config(folder), Context()).fingerprint()

    first = fingerprint()
    assert fingerprint() == first
    seen = {first}
    for split in ("train", "test"):
        (file,) = (folder / split).glob("*.parquet")
        os.utime(file, ns=(1, 1))
        seen.add(fingerprint())
        random_table(folder / split, SCHEMA, 11, seed=2)
        seen.add(fingerprint())
    assert len(seen) == 5
