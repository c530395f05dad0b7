"""Value tests: tables that somebody else wrote, read where they are."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recd_plugins.config import parse
from recd_plugins.data.dataset import Tables
from recd_plugins.data.foreign import DenseColumn, ForeignFeature, ForeignSchema
from recd_plugins.data.parquet_tables import ParquetConfig, ParquetTables, build_parquet
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.request import batch_of
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import Context
from recd_plugins.testing.batches import random_table, to_lists
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
    return parse(ForeignSchema, json.loads(schema.to_json()), "dataset.schema")


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
        .equals(whole.cast(SCHEMA.arrow()).select(list(SCHEMA.columns)))
    )


def test_a_file_is_opened_once_for_all_of_its_chunks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, found = Table.open(folder / "train"), []
    whole = pa.concat_tables(map(table.read, table.stripes))
    opened = Table.opened

    def counted(self: Table, file: Path, **options: Any) -> Any:
        found.append(file)
        return opened(self, file, **options)

    monkeypatch.setattr(Table, "opened", counted)
    assert pa.concat_tables(table.each_read()).equals(whole)
    assert found == sorted({one.file for one in table.stripes})
    assert len(found) < len(table.stripes)


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
    tables = build_parquet(config(tmp_path, schema=foreign(schema)), Context()).prepare(
        tmp_path / "data"
    )
    assert tables.train.num_rows == 3
    assert tables.schema == schema
    with pytest.raises(DataError, match=r"a.parquet: carries no 'recd_schema'.*by --schema"):
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


FOREIGN = ForeignSchema(
    session_id=("user", "visit"),
    timestamp="time",
    sample_weight="weight",
    dense=(DenseColumn(name="vector", width=2), "price"),
    sparse=(
        ForeignFeature(name="user", num_ids=50, ids="hash", kind="user"),
        ForeignFeature(name="tags", num_ids=9),
        ForeignFeature(name="cart", num_ids=99, scored=True),
    ),
)


def foreign_rows(rows: range) -> pa.Table:
    return pa.table(
        {
            "user": pa.array([f"u{row // 4}" for row in rows]).dictionary_encode(),
            "visit": pa.array([row // 2 for row in rows], pa.uint8()),
            "time": pa.array([row * 1_000_000 for row in rows], pa.timestamp("us", "CET")),
            "label": pa.array([row % 3 == 0 for row in rows]),
            "weight": pa.array([1 + row % 2 for row in rows], pa.float64()),
            "vector": pa.array([[row, -row] for row in rows], pa.list_(pa.float64(), 2)),
            "price": pa.array([row / 4 for row in rows]).cast(pa.decimal128(9, 2)),
            "tags": pa.array([[row % 9] * (row % 3) or None for row in rows]),
            "cart": pa.array(
                [[(row, 0.5), (3, row / 2)][: row % 3] for row in rows],
                pa.map_(pa.int16(), pa.float32()),
            ),
        }
    )


def test_foreign_rows_reach_batches_as_they_are(tmp_path: Path) -> None:
    """By lists and globs of paths, in place; and the same once an etl step has its own table."""
    for split, first in (("train", 0), ("test", 40)):
        for part in ("a", "b"):
            (tmp_path / split / part).mkdir(parents=True)
            rows = range(first, first + 20)
            path = tmp_path / split / part / "1.parquet"
            pq.write_table(foreign_rows(rows), path, row_group_size=7)
            first += 20
    train = (tmp_path / "train/a/*.parquet", tmp_path / "train/b")
    options = ParquetConfig(train=train, test=tmp_path / "test/*/*.parquet", schema=FOREIGN)
    dataset = build_parquet(options, Context())
    in_place = dataset.prepare(tmp_path / "nowhere")
    written = dataset.write(tmp_path / "written")
    assert not (tmp_path / "nowhere").exists()
    assert in_place.schema == written.schema == FOREIGN.conformed
    for tables in (in_place, written):
        assert tables.train.num_rows == 40
        loader = build_local_reader(LocalReaderConfig(shuffle=False), Context()).loader(
            tables.train, rank=0, world_size=1, batch_size=20, split="train"
        )
        for number, batch in enumerate(loader):
            rows = range(20 * number, 20 * number + 20)
            assert batch.labels.tolist() == [float(row % 3 == 0) for row in rows]
            assert batch.weights.tolist() == [1 + row % 2 for row in rows]
            assert batch.dense.tolist() == [[row, -row, row / 4] for row in rows]
            lists = to_lists(batch.features)
            assert lists["tags"] == [[row % 9] * (row % 3) for row in rows]
            assert lists["cart"] == [[row, 3][: row % 3] for row in rows]
            scores = [part.tolist() for part in batch.features["cart"].to_dense_weights()]
            assert scores == [[0.5, row / 2][: row % 3] for row in rows]
            assert set(batch.features["tags"].weights().tolist()) == {1.0}
            assert [one for (one,) in lists["user"]][::4] == [one for (one,) in lists["user"]][3::4]
    request = foreign_rows(range(3)).drop_columns(["label", "user", "visit", "time", "weight"])
    request = request.append_column("user", pa.array(["u0", "u1", None]))
    served, trained = batch_of(request, FOREIGN), next(iter(loader))
    assert to_lists(served.features)["user"] == [*to_lists(trained.features)["user"][3:5], []]
    assert served.dense.equal(trained.dense[:3])
    assert served.labels.tolist() == [0, 0, 0]
    keys = ["session_id", "time", "user"]
    one, other = (
        pa.concat_tables([tables.test.read(stripe, keys) for stripe in tables.test.stripes])
        for tables in (in_place, written)
    )
    assert one.equals(other)
    assert one["time"].to_pylist() == [1_000 * row for row in range(40, 80)]
    assert len(set(one["session_id"].to_pylist())) == 20


def test_rows_with_nulls_are_left_out_of_a_table_that_is_written(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_plain(
            tmp_path / split / "a.parquet",
            label=pa.array([0, None, 1]),
            item=pa.array([1, 2, 3]),
        )
    schema = parse(
        ForeignSchema,
        {
            "session_id": None,
            "timestamp": None,
            "sparse": [{"name": "item", "num_ids": 4}],
            "nulls": {"label": "drop"},
        },
        "dataset.schema",
    )
    dataset = build_parquet(config(tmp_path, schema=schema), Context())
    with pytest.warns(NoticeWarning, match=r"1 of 3 rows are left out of split .*1 in 'label'"):
        tables = dataset.prepare(tmp_path / "data")
    assert tables.train.read(tables.train.stripes[0]).to_pydict() == {
        "label": [0, 1],
        "item": [[1], [3]],
    }
    with pytest.raises(DataError, match=r"drops rows with nulls in label.*recd data prepare"):
        Table.open(tmp_path / "train", schema)


def test_a_copy_of_a_partition_that_is_trained_on_too_is_told(folder: Path) -> None:
    """By its footer; files without rows are all alike."""
    for day, rows in enumerate((100, 50, 0, 0)):
        random_table(folder / f"days/day={day}", SCHEMA, rows, seed=day)
    days = ParquetConfig(train=folder / "days", test=folder / "test")
    assert ParquetTables(days).notices() == []
    shutil.copytree(folder / "days/day=0", folder / "days/day=9")
    (told,) = ParquetTables(days).notices()
    file = next((folder / "days/day=9").glob("*.parquet"))
    assert str(told).startswith(
        f"dataset.train has files twice: {file} is a copy of {folder / 'days/day=0' / file.name}, "
    )


def test_a_test_split_of_files_that_are_trained_on_is_told(folder: Path) -> None:
    """Whatever links lead to them; unless `where` parts their rows, or both are one table."""
    assert ParquetTables(config(folder)).notices() == []
    (folder / "test" / "latest.parquet").symlink_to(next((folder / "train").glob("*.parquet")))
    (told,) = ParquetTables(config(folder)).notices()
    assert str(told).startswith(
        "dataset.test is trained on, too: of its 2 files dataset.train has 1 too"
    )
    same = config(folder, where="label == 1", where_test="label == 1")
    assert len(ParquetTables(same).notices()) == 1
    parted = config(folder, where="timestamp < 50", where_test="timestamp >= 50")
    assert ParquetTables(parted).notices() == []
    one = ParquetConfig(train=folder / "train", test=folder / "train")
    assert ParquetTables(one).notices() == []
