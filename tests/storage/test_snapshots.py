"""Tables of Delta Lake and Iceberg that their own libraries wrote, read as snapshots."""

from __future__ import annotations

import dataclasses
import uuid
import warnings

import pyarrow as pa
import pytest
from iceberg_tables import iceberg
from stored import put, rows

from benchmarks.s3_endpoint import seeded
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.parquet_tables import ParquetConfig, ParquetTables
from recd_plugins.data.pins import check_pins, write_pins
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import location_of

FOREIGN = ForeignSchema(
    session_id=None,
    timestamp=None,
    dense=("d0", "d1"),
    sparse=tuple(ForeignFeature(name=f"f{n}", num_ids=100) for n in range(6)),
)


def opened(tmp_path, kind, table=None, **options):
    table = table or tmp_path / "t"
    config = ParquetConfig(train=table, test=table, format=kind, schema=FOREIGN, **options)
    return ParquetTables(config).prepare(tmp_path / "out")


def labels(table):
    return [x for one in table.stripes for x in table.read(one, ["d0"])["d0"].to_pylist()]


class TestDelta:
    @pytest.fixture
    def table(self, tmp_path):
        deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
        made = rows(60).append_column("country", pa.array(["DE", "FR", "IT"] * 20))
        deltalake.write_deltalake(tmp_path / "t", made, partition_by=["country"])
        deltalake.write_deltalake(tmp_path / "t", made.slice(0, 30), mode="append")
        return deltalake.DeltaTable(tmp_path / "t")

    def test_a_version_is_pinned(self, table, tmp_path):
        tables = opened(tmp_path, "delta", snapshot=0)
        assert (tables.train.num_rows, tables.test.num_rows) == (60, 90)
        assert (tables.train.snapshot, tables.test.snapshot) == ("version 0", "version 1")
        assert sorted(labels(tables.train)) == sorted(rows(60)["d0"].to_pylist())

    def test_partitions_are_columns_by_the_log(self, table, tmp_path):
        tables = opened(tmp_path, "delta")
        found = []
        for stripe in tables.train.stripes:
            with tables.train.opened(stripe.file) as file:
                found += file.read_row_group(stripe.group, ["country"])["country"].to_pylist()
        assert {one: found.count(one) for one in found} == {"DE": 30, "FR": 30, "IT": 30}

    def test_names_of_folders_are_decoded(self, tmp_path):
        deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
        cities = ["New York", "a/b=c", "50% & more", None]
        made = rows(60).append_column("city", pa.array(cities * 15))
        deltalake.write_deltalake(tmp_path / "t", made, partition_by=["city"])
        table = opened(tmp_path, "delta").train
        assert table.num_rows == 60
        found = [table.facts[file].partitions["city"].as_py() for file in table.files]
        assert {*found} == {*cities}

    def test_a_newer_version_is_not_what_the_run_read(self, table, tmp_path):
        import deltalake

        write_pins(tmp_path, opened(tmp_path, "delta"))
        check_pins(tmp_path, opened(tmp_path, "delta"))
        deltalake.write_deltalake(
            tmp_path / "t",
            rows(5).append_column("country", pa.array(["DE"] * 5)),
            mode="append",
        )
        with pytest.raises(DataError, match="was not there when the run began"):
            check_pins(tmp_path, opened(tmp_path, "delta"))
        check_pins(tmp_path, opened(tmp_path, "delta", snapshot=1, snapshot_test=1))

    def test_a_table_on_a_store(self, table, tmp_path, store):
        target = location_of(f"s3://tables/{uuid.uuid4().hex}")
        put(tmp_path / "t", target)
        store.faults = seeded(3, 0.1, ("503", "cut"), most=3)
        tables = opened(tmp_path, "delta", target, snapshot=0)
        assert (tables.train.num_rows, tables.test.snapshot) == (60, "version 1")
        assert sorted(labels(tables.train)) == sorted(rows(60)["d0"].to_pylist())

    def test_a_log_may_name_files_by_their_place_on_a_store(self, tmp_path, store):
        """As Spark writes it in a shallow clone: by s3a, and percent-encoded."""
        deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
        deltalake.write_deltalake(tmp_path / "t", rows(60))
        (file,) = (tmp_path / "t").glob("*.parquet")
        (log,) = (tmp_path / "t" / "_delta_log").glob("*.json")
        top = f"tables/{uuid.uuid4().hex}"
        place = f"s3a://{top}/other%20place/{file.name}"
        log.write_text(log.read_text().replace(f'"path":"{file.name}"', f'"path":"{place}"'))
        (tmp_path / "other place").mkdir()
        file.rename(tmp_path / "other place" / file.name)
        put(tmp_path, location_of(f"s3://{top}"))
        tables = opened(tmp_path, "delta", location_of(f"s3://{top}/t"))
        assert sorted(labels(tables.train)) == sorted(rows(60)["d0"].to_pylist())

    def test_what_is_no_table_is_explained(self, tmp_path):
        pytest.importorskip("deltalake", reason="needs the extra delta")
        (tmp_path / "t").mkdir()
        with pytest.raises(DataError, match=r"deltalake finds no files.*Check the path"):
            opened(tmp_path, "delta")


class TestIceberg:
    @pytest.fixture
    def catalog(self, tmp_path):
        pytest.importorskip("pyiceberg", reason="needs the extra iceberg")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            catalog = iceberg(f"file://{tmp_path}/t")
            table = catalog.create(_plain(rows(1)).schema)
            table.append(_plain(rows(60)))
            table.append(_plain(rows(30)))
            yield catalog

    def test_a_snapshot_is_pinned(self, catalog, tmp_path):
        first, second = catalog.latest.metadata.snapshots
        tables = opened(tmp_path, "iceberg", snapshot=first.snapshot_id)
        assert (tables.train.num_rows, tables.test.num_rows) == (60, 90)
        assert tables.test.snapshot == f"snapshot {second.snapshot_id}"
        assert sorted(labels(tables.train)) == sorted(rows(60)["d0"].to_pylist())

    def test_a_table_on_a_store(self, tmp_path, store):
        pytest.importorskip("pyiceberg", reason="needs the extra iceberg")
        target = f"s3://tables/{uuid.uuid4().hex}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            access = {"s3.endpoint": store.url, "s3.region": "us-east-1"}
            iceberg(target, **access).create(_plain(rows(1)).schema).append(_plain(rows(60)))
            tables = opened(tmp_path, "iceberg", location_of(target))
        assert sorted(labels(tables.train)) == sorted(rows(60)["d0"].to_pylist())

    def test_an_unknown_snapshot(self, catalog, tmp_path):
        with pytest.raises(DataError, match=r"has no snapshot 7\. Its snapshots are: \d+, \d+"):
            opened(tmp_path, "iceberg", snapshot=7)

    def test_columns_renamed_since_have_their_values(self, catalog, tmp_path):
        for before, after in (("f0", "other"), ("f1", "f0"), ("other", "f1")):
            with catalog.latest.update_schema() as update:
                update.rename_column(before, after)
        table = opened(tmp_path, "iceberg").train
        both = [(x, y) for one in table.stripes for x, y in _both(table.read(one))]
        assert sorted(both) == sorted([*_both(_swapped(60)), *_both(_swapped(30))])

    def test_a_column_dropped_and_made_anew_is_null_before(self, catalog, tmp_path):
        from pyiceberg.types import FloatType

        with catalog.latest.update_schema() as update:
            update.delete_column("d0")
        with catalog.latest.update_schema() as update:
            update.add_column("d0", FloatType())
        table = opened(tmp_path, "iceberg").train
        with pytest.raises(DataError, match=r"column 'd0' holds a null .*\(30 times in all\)"):
            labels(table)


def _both(table):
    return zip(table["f0"].to_pylist(), table["f1"].to_pylist(), strict=True)


def _swapped(count):
    made = rows(count)
    return {"f0": made["f1"], "f1": made["f0"]}


def _plain(table):
    return table.replace_schema_metadata(None)


def test_one_table_a_split(tmp_path):
    config = ParquetConfig(train=(tmp_path, tmp_path / "b"), test=tmp_path, format="delta")
    with pytest.raises(ValueError, match=r"dataset\.train: names 2 tables"):
        _ = ParquetTables(dataclasses.replace(config)).schema
