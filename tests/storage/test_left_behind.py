"""Value tests: files that lie in a table's folder and are no more of it, or are there twice."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored import put

from recd_plugins.data.files.found import found_files
from recd_plugins.data.importing.table_files import files_of
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import Uri, location_of

BOTH = pytest.mark.parametrize(
    "find", [lambda path: found_files(path), lambda path: files_of([path])]
)
Find = Callable[[Path], Iterable[Any]]


def write(path: Path, *items: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"item": items}), path)
    return path


def items(found: Iterable[Any]) -> list[int]:
    """The rows of the files that were found, a file after another."""
    return [row for file in found for row in pq.ParquetFile(file).read()["item"].to_pylist()]


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    """A table whose first day was written anew."""
    deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
    path = tmp_path / "lake" / "clicks"
    days = pa.table({"item": [1, 2, 3], "day": ["1", "1", "2"]})
    deltalake.write_deltalake(path, days, partition_by=["day"])
    deltalake.DeltaTable(path).delete("item = 2")
    return path


def test_files_that_a_snapshot_has_no_more_are_refused_however_they_are_named(delta: Path) -> None:
    """By the folder above, by the folder of a day, by a glob, or one by one."""
    assert sorted(items(found_files(delta))) == sorted(items(files_of([delta]))) == [1, 3]
    says = "Delta Lake keeps .*clicks, whose latest snapshot has no such file"
    for path in (delta.parent, delta / "day=1"):
        with pytest.raises(DataError, match=says):
            files_of([path])
    for path in (delta / "day=1", delta / "day=*" / "*.parquet", delta / "**" / "*.parquet"):
        for find in (found_files, lambda path: files_of([path])):
            with pytest.raises(DataError, match=says):
                find(path)
    assert sorted(items(files_of([delta.parent / "cl*"]))) == [1, 3]
    with pytest.raises(DataError, match=says):
        files_of(sorted(delta.rglob("*.parquet")))


def test_files_that_a_snapshot_has_may_be_named_by_themselves(
    delta: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert items(found_files(delta / "day=2")) == items(files_of([delta / "day=2"])) == [3]
    monkeypatch.chdir(delta / "day=2")
    assert items(found_files(Path("."))) == items(files_of(sorted(Path(".").glob("*.parquet"))))


@pytest.mark.slow
def test_files_of_a_store_that_a_snapshot_has_no_more_are_refused(delta: Path, store: Any) -> None:
    """However they are named, and by one look at the table's folder."""
    table = location_of(f"s3://tables/{uuid.uuid4().hex}/clicks")
    assert isinstance(table, Uri)
    put(delta, table)
    says = "Delta Lake keeps s3://.*/clicks, whose latest snapshot has no such file"
    gone = table / "day=1"
    (file,) = (one for one in gone.glob("*.parquet") if str(one) not in map(str, files_of([table])))
    for path in (gone, gone / "*.parquet", table / "day=*" / "*.parquet", table / "**" / "*", file):
        with pytest.raises(DataError, match=says):
            found_files(path)
    for path in (table.parent, gone, file):
        with pytest.raises(DataError, match=says):
            files_of([path])
    store.requests.clear()
    kept = table / "day=2"
    assert len(found_files(kept / "*.parquet")) == len(files_of([kept])) == 1
    looks = [one.path for one in store.requests if one.method == "GET" and "prefix" in one.path]
    assert len([one for one in looks if "day" not in one and "_delta_log" not in one]) == 2


@pytest.mark.parametrize("name", ["2024-05-01", "17", "data"])
def test_a_file_of_a_store_is_looked_up_whatever_its_folder_is_called(name: str) -> None:
    """As a day, a number or `data`, which folders within a table are called too."""
    for table in ("clicks", f"clicks/{name}"):
        top = location_of(f"memory://{uuid.uuid4().hex}/lake/{table}")
        assert isinstance(top, Uri)
        folder = top if table.endswith(f"/{name}") else top / name
        for file in (kept := folder / "kept.parquet", left := folder / "left.parquet"):
            with file.open("wb") as made:
                pq.write_table(pa.table({"item": [1]}), made)
        line = json.dumps({"path": f"hdfs://name/{kept.below(top)}", "action": "add"})
        (top / "_spark_metadata" / "0").write_text(f"v1\n{line}")
        for find in (lambda path: found_files(path), lambda path: files_of([path])):
            assert list(find(kept)) == [kept]
            with pytest.raises(DataError, match=r"left\.parquet: a stream of Spark keeps memory:"):
                find(left)
            with pytest.raises(DataError, match=r"left\.parquet: a stream of Spark keeps memory:"):
                find(top.parent)
        with pytest.raises(DataError, match=r"left\.parquet: a stream of Spark keeps memory:"):
            found_files(top.parent / "**" / "*.parquet")


def test_files_that_iceberg_keeps_no_more_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its library finds stands in the place of a catalog."""
    now, before = (
        write(tmp_path / "data" / "b.parquet", 1),
        write(tmp_path / "data" / "a.parquet", 2),
    )
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "v1.metadata.json").write_text("{}")
    reads = "recd_plugins.data.files.snapshots.iceberg_snapshot"
    monkeypatch.setattr(reads, lambda *_: ({now: None}, ""))
    assert items(files_of([now])) == [1]
    with pytest.raises(DataError, match=r"a\.parquet: Iceberg keeps .*no such file"):
        found_files(before.parent)


class TestStream:
    """The folder that a stream of Spark writes, batch by batch."""

    @pytest.fixture
    def stream(self, tmp_path: Path) -> Path:
        """Two batches that were committed, of which the second had failed before."""
        folder = tmp_path / "clicks"
        write(folder / "day=1" / "part-0-a.parquet", 1)
        write(folder / "day=1" / "part-0-failed.parquet", 2)
        write(folder / "day=2" / "part-0-b.parquet", 2, 3)
        self.commit(folder, "0", "day=1/part-0-a.parquet")
        self.commit(folder, "1", "day=2/part-0-b.parquet")
        return folder

    def commit(self, folder: Path, batch: str, *files: str, action: str = "add") -> None:
        log = folder / "_spark_metadata"
        log.mkdir(exist_ok=True)
        lines = [
            json.dumps({"path": f"hdfs://name:8020/logs/clicks/{file}", "action": action})
            for file in files
        ]
        (log / batch).write_text("\n".join(["v1", *lines]))
        (log / f".{batch}.crc").write_bytes(b"crc")

    @BOTH
    def test_what_was_committed_is_read(self, find: Find, stream: Path, tmp_path: Path) -> None:
        assert items(find(stream)) == [1, 2, 3]
        shutil.move(stream, tmp_path / "elsewhere")
        found = find(tmp_path / "elsewhere")
        assert items(found) == [1, 2, 3]
        assert [one.partitions["day"].as_py() for one in dict(found).values()] == [1, 2]

    @BOTH
    def test_a_batch_that_was_compacted_stands_for_those_before(
        self, find: Find, stream: Path
    ) -> None:
        self.commit(stream, "2.compact", "day=1/part-0-a.parquet", "day=2/part-0-b.parquet")
        (stream / "_spark_metadata" / "0").unlink()
        write(stream / "day=2" / "part-0-c.parquet", 4)
        self.commit(stream, "3", "day=2/part-0-c.parquet")
        assert items(find(stream)) == [1, 2, 3, 4]
        self.commit(stream, "4", "day=1/part-0-a.parquet", action="delete")
        assert items(find(stream)) == [2, 3, 4]

    @BOTH
    def test_what_cannot_be_whole_is_refused(self, find: Find, stream: Path) -> None:
        with pytest.raises(DataError, match=r"part-0-failed.*a stream of Spark keeps .*clicks"):
            find(stream / "day=1")
        (stream / "day=2" / "part-0-b.parquet").unlink()
        with pytest.raises(DataError, match=r"has no part-0-b\.parquet, which its _spark_metadata"):
            find(stream)
        (stream / "_spark_metadata" / "0").unlink()
        with pytest.raises(DataError, match="lacks batch 0"):
            find(stream)
        (stream / "_spark_metadata" / "0").write_text("v1\nhalf of a li")
        with pytest.raises(DataError, match="_spark_metadata cannot be read"):
            find(stream)
        (stream / "_spark_metadata" / "0").write_text("v2\n{}")
        with pytest.raises(DataError, match="is of version 'v2'"):
            find(stream)


@BOTH
def test_a_table_of_hudi_is_refused(find: Find, tmp_path: Path) -> None:
    """Each commit writes the rows of a file anew, beside the file of before."""
    (tmp_path / ".hoodie").mkdir()
    for commit, rows in ((1, (1, 2)), (2, (1, 2, 3))):
        write(tmp_path / "day=1" / f"f0_0-1-1_2024050{commit}.parquet", *rows)
    for path in (tmp_path, tmp_path / "day=1"):
        with pytest.raises(DataError, match=r"is a table of Hudi, which is not read: older"):
            find(path)


@BOTH
def test_a_file_counts_once_whatever_links_lead_to_it(find: Find, tmp_path: Path) -> None:
    write(tmp_path / "2024-05.parquet", 1, 2)
    june = write(tmp_path / "2024-06.parquet", 3)
    (tmp_path / "latest.parquet").symlink_to(june.name)
    (tmp_path / "same.parquet").hardlink_to(june)
    assert items(find(tmp_path)) == [1, 2, 3]
    (tmp_path / "copy.parquet").write_bytes(june.read_bytes())  # another file
    assert sorted(items(find(tmp_path))) == [1, 2, 3, 3]


@BOTH
def test_a_link_from_another_partition_has_rows_of_its_own(find: Find, tmp_path: Path) -> None:
    file = write(tmp_path / "day=1" / "a.parquet", 1)
    (tmp_path / "day=2").mkdir()
    (tmp_path / "day=2" / "a.parquet").symlink_to(file)
    found = dict(find(tmp_path))
    assert [one.partitions["day"].as_py() for one in found.values()] == [1, 2]


def test_a_file_that_is_named_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.parquet", 1)
    monkeypatch.chdir(tmp_path)
    assert items(files_of([file, Path("a.parquet")])) == [1]
    assert items(found_files([Path(), file])) == [1]


def test_a_glob_takes_no_files_that_writers_keep_for_themselves(tmp_path: Path) -> None:
    """Unless it names them: what a task that failed left has rows that others wrote again."""
    write(tmp_path / "day=1" / "a.parquet", 1)
    left = write(tmp_path / "_temporary" / "0" / "day=1" / "a.parquet", 1)
    write(tmp_path / "day=1" / ".b.parquet", 2)
    assert items(found_files(tmp_path / "**" / "*.parquet")) == [1]
    assert items(found_files(tmp_path / "day=*" / "*.parquet")) == [1]
    assert items(found_files(tmp_path / "_temporary" / "0" / "*" / "*.parquet")) == [1]
    assert list(found_files(tmp_path / "_temp*" / "**" / "*.parquet")) == [left]


def paimon(table: Path) -> Path:
    """A table of Paimon, as it lies on a disk: a file for each change of a bucket's rows."""
    for name in ("snapshot/LATEST", "snapshot/snapshot-1", "schema/schema-0", "manifest/m-0"):
        (table / name).parent.mkdir(parents=True, exist_ok=True)
        (table / name).write_text("{}")
    for part in ("a", "b"):
        write(table / "day=1" / "bucket-0" / f"data-{part}-0.parquet", 1)
    return table


def lance(table: Path) -> Path:
    for name in ("_versions/1.manifest", "_transactions/0-a.txn", "data/a.lance"):
        (table / name).parent.mkdir(parents=True, exist_ok=True)
        (table / name).write_bytes(b"\0\0")
    return table


@BOTH
def test_a_table_of_paimon_is_refused(find: Find, tmp_path: Path) -> None:
    """However it is named: rows that were changed lie on in its files."""
    table = paimon(tmp_path / "warehouse" / "db.db" / "clicks")
    says = r"clicks: is a table of Paimon, which is not read: .*format\('paimon'\).*\$snapshots"
    bucket = table / "day=1" / "bucket-0"
    for path in (table, bucket, bucket / "data-a-0.parquet"):
        with pytest.raises(DataError, match=says):
            find(path)
    with pytest.raises(DataError, match=says):
        found_files(tmp_path / "warehouse" / "**" / "*.parquet")


@BOTH
def test_a_table_of_lance_is_refused(find: Find, tmp_path: Path) -> None:
    table = lance(tmp_path / "clicks.lance")
    says = r"clicks\.lance: is a table of Lance, which is not read: .*write_dataset.*versions\(\)"
    with pytest.raises(DataError, match=says):
        find(table)
    with pytest.raises(DataError, match=says):
        files_of([table / "data" / "a.lance"])


@BOTH
def test_files_of_ducklake_are_refused(find: Find, tmp_path: Path) -> None:
    """Its log is in a database, wherever that is; files of deletes are Parquet, too."""
    name = f"ducklake-{uuid.uuid4()}"
    folder = tmp_path / "lake.ducklake.files" / "main" / "clicks"
    file = write(folder / f"{name}.parquet", 1, 2)
    write(folder / f"{name}-delete.parquet", 1)
    says = r"of a table of DuckLake, which is not read: .*COPY \(FROM LAKE\.TABLE\).*snapshots\(\)"
    for path in (folder, file):
        with pytest.raises(DataError, match=says):
            find(path)
    with pytest.raises(DataError, match=says):
        found_files(folder / "*.parquet")
    kept = write(tmp_path / "exported" / "ducklake-2024.parquet", 3)
    assert items(find(kept.parent)) == [3]


def test_folders_called_as_those_of_others_are_read(tmp_path: Path) -> None:
    """A log is told by what is in it."""
    file = write(tmp_path / "schema" / "snapshot" / "a.parquet", 1)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "_versions").mkdir()
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "about.json").write_text("{}")
    assert items(found_files(file)) == items(files_of([file])) == [1]


@pytest.mark.parametrize("make", [paimon, lance])
def test_tables_of_others_on_a_store_are_refused(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    top = location_of(f"memory://{uuid.uuid4().hex}/lake/clicks")
    assert isinstance(top, Uri)
    put(make(tmp_path / "clicks"), top)
    says = r"memory://.*/clicks: is a table of (Paimon|Lance), which is not read"
    for find in (lambda path: found_files(path), lambda path: files_of([path])):
        with pytest.raises(DataError, match=says):
            find(top)
    inside = [one for one in top.listed(deep=True) if one.name.endswith((".parquet", ".lance"))]
    with pytest.raises(DataError, match=says):
        files_of(inside[:1])
