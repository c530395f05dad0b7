"""Tables on stores: URIs as values, then tables read from an S3 server, through its faults."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored import SCHEMA, everything, put, rows

from benchmarks.s3_endpoint import seeded
from recd_plugins.config import Config, parse
from recd_plugins.data.files.found import found_files, table_files
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter, write_table
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.storage.store import OpenStore
from recd_plugins.storage.uri import Uri, location_of


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk") / "table"
    with TableWriter(folder, SCHEMA, rows_per_stripe=200, stripes_per_file=2) as writer:
        writer.write(rows(1000))
    return folder


@pytest.fixture
def remote(store, on_disk):
    """The same table under a URI of its own."""
    target = location_of(f"s3://tables/{uuid.uuid4().hex}")
    put(on_disk, target)
    store.forget()
    return target


class TestUris:
    def test_a_uri_shows_no_secret(self):
        uri = Uri("s3://AKIAX:se%2Fcret@tables/day/1?session_token=tok&region=eu-west-1")
        shown = f"{uri} {uri!r} {uri / 'part'} {uri.parent}"
        assert "AKIAX" not in shown
        assert "cret" not in shown
        assert "tok" not in shown
        assert str(uri / "part.parquet") == "s3://tables/day/1/part.parquet"
        assert (uri / "a.b.parquet").name == "a.b.parquet"
        assert (uri / "a.b.parquet").suffix == ".parquet"

    def test_what_opens_files_of_this_machine_is_told(self):
        with pytest.raises(DataError, match="s3://tables/x: is on a store"):
            open(Uri("s3://tables/x"))  # noqa: SIM115

    def test_a_uri_travels_to_workers_with_its_access(self):
        uri = Uri("s3://a:b@tables/x?region=r")
        assert pickle.loads(pickle.dumps(uri)) == uri
        assert uri != Uri("s3://tables/x")

    def test_file_uris_are_paths(self):
        assert location_of("file:///a/b%20c") == Path("/a/b c")
        assert location_of("a/b") == Path("a/b")

    def test_an_option_that_is_a_path_takes_no_uri(self):
        @dataclasses.dataclass(frozen=True, kw_only=True)
        class Own(Config):
            folder: Path

        with pytest.raises(RegistryError, match="s3://b/x is on a store"):
            parse(Own, {"folder": "s3://key:secret@b/x"}, "own")

    def test_globs_and_folders_of_memory(self):
        top = location_of(f"memory://{uuid.uuid4().hex}")
        for name in ("a/1.parquet", "a/2.parquet", "b/c/3.parquet", "b/4.csv"):
            (top / name).write_bytes(b"x")
        assert [one.name for one in table_files(top / "a")] == ["1.parquet", "2.parquet"]
        assert [one.name for one in table_files(top / "**/*.parquet")] == [
            "1.parquet",
            "2.parquet",
            "3.parquet",
        ]
        with pytest.raises(DataError, match=r"holds no \.parquet file itself, but memory://"):
            table_files(top)
        with pytest.raises(DataError, match="no file fits this glob"):
            table_files(top / "*.orc")
        with pytest.raises(DataError, match="there is no such table"):
            table_files(top / "none")


class TestReading:
    def test_rows_are_those_on_disk(self, remote, on_disk):
        there, here = Table.open(remote), Table.open(on_disk)
        assert there.schema == here.schema
        assert [one.num_rows for one in there.stripes] == [one.num_rows for one in here.stripes]
        assert everything(there).equals(everything(here))

    def test_near_columns_are_one_request(self, remote, store):
        table = Table.open(remote)
        with table.opened(table.files[0]) as file:
            store.forget()
            file.read_row_group(0, columns=["f0", "f2", "f5"])
        assert [one.method for one in store.requests] == ["GET"]

    def test_memory_is_read_by_fsspec(self, on_disk):
        target = location_of(f"memory://{uuid.uuid4().hex}")
        put(on_disk, target)
        assert everything(Table.open(target)).equals(everything(Table.open(on_disk)))

    def test_a_file_changed_after_opening_is_refused(self, remote):
        table = Table.open(remote)
        with pa.BufferOutputStream() as sink:
            pq.write_table(rows(400, seed=1).cast(SCHEMA.arrow()), sink)
            table.files[1].write_bytes(sink.getvalue().to_pybytes())
        last = table.stripes[-1]
        assert table.read(last).num_rows == last.num_rows
        with pytest.raises(
            DataError, match=r"part-00001\.parquet: has changed since the table was opened"
        ):
            table.read(table.stripes[2])

    def test_footers_are_kept(self, remote, store, tmp_path, monkeypatch):
        monkeypatch.setattr("recd_plugins.data.files.footers.WORTH", 1)
        Table.open(remote, cache=tmp_path)
        first = sum(one.method == "GET" for one in store.requests)
        store.forget()
        again = Table.open(remote, cache=tmp_path)
        files = len(again.files)
        assert sum(one.method == "GET" for one in store.requests) == first - files
        for kept in tmp_path.iterdir():
            kept.write_bytes(kept.read_bytes()[:-900])
        store.forget()
        assert everything(Table.open(remote, cache=tmp_path)).num_rows == 1000

    def test_a_changed_file_is_not_in_what_was_kept(self, tmp_path, monkeypatch):
        monkeypatch.setattr("recd_plugins.data.files.footers.WORTH", 1)
        table = write_table(tmp_path / "table", SCHEMA, [rows(30)])
        Table.open(table.path, cache=tmp_path / "kept")
        assert any((tmp_path / "kept").iterdir())
        shutil.rmtree(table.path)
        write_table(tmp_path / "table", SCHEMA, [rows(40)])
        assert Table.open(table.path, cache=tmp_path / "kept").num_rows == 40


class TestPartitions:
    def test_folders_are_typed_columns(self, tmp_path):
        for day, country in (("2024-05-01", "DE"), ("2024-05-02", "FR"), ("2024-05-02", "%C3%96")):
            for hour in (1, 10):
                folder = tmp_path / f"day={day}" / f"country={country}" / f"hour={hour}"
                folder.mkdir(parents=True)
                pq.write_table(rows(3).cast(SCHEMA.arrow()), folder / "x.parquet")
        files = found_files(tmp_path)
        assert len(files) == 6
        table = Table.open(tmp_path)
        found = []
        for stripe in table.stripes:
            with table.opened(stripe.file) as file:
                one = file.read_row_group(stripe.group, columns=["hour", "f0", "country", "day"])
                assert one.schema.names == ["hour", "f0", "country", "day"]
                found += [
                    tuple(map(str, (r["day"], r["country"], r["hour"]))) for r in one.to_pylist()
                ]
                assert one.schema.field("hour").type == pa.int64()
                assert one.schema.field("day").type == pa.date32()
        assert len(found) == 18
        assert ("2024-05-02", "Ö", "10") in found

    def test_files_beside_partitions_are_told(self, tmp_path):
        (tmp_path / "day=1").mkdir()
        (tmp_path / "other").mkdir()
        for folder in ("day=1", "other"):
            pq.write_table(rows(3).cast(SCHEMA.arrow()), tmp_path / folder / "x.parquet")
        with pytest.raises(DataError, match=r"holds no \.parquet file itself"):
            Table.open(tmp_path)
        with pytest.raises(DataError, match="is in no folder day="):
            Table.open(tmp_path / "**" / "*.parquet")


class TestFaults:
    @pytest.mark.parametrize("kind", ["503", "cut", "half"])
    def test_faults_that_pass_are_tried_again(self, remote, store, on_disk, kind):
        store.faults = seeded(3, 0.35, (kind,), most=4)
        assert everything(Table.open(remote)).equals(everything(Table.open(on_disk)))
        assert any(one.fault == kind for one in store.requests)

    def test_a_stalled_request_is_ended_and_made_again(self, remote, store, on_disk, monkeypatch):
        monkeypatch.setattr(store, "stall", 300.0)
        patient = Uri(f"{remote}?request_timeout=1")
        table = Table.open(patient)
        left = [1]

        def stall(number, method, path):
            if method == "GET" and left:
                left.pop()
                return "stall"
            return "none"

        store.faults = stall
        began = time.monotonic()
        assert everything(table).equals(everything(Table.open(on_disk)))
        assert time.monotonic() - began < store.stall  # nobody waited for its end
        assert sum(one.fault == "stall" for one in store.requests) == 1

    def test_a_store_that_fails_for_good_is_told(self, remote, store):
        store.faults = lambda number, method, path: "503"
        with pytest.raises(DataError, match=r"s3://tables/\w+: the store fails or is out of reach"):
            Table.open(Uri(f"{remote}?attempts=2"))

    def test_an_endpoint_that_is_not_there(self):
        uri = Uri("s3://k:hidden@tables/x?endpoint_override=127.0.0.1:9&scheme=http&attempts=1")
        with pytest.raises(DataError, match="out of reach") as raised:
            Table.open(uri)
        assert "hidden" not in str(raised.value)

    @pytest.mark.parametrize(
        ("text", "cause", "cure"),
        [
            ("hdfs://me@nowhere:9000/x", r"cannot be opened \(.*lib(jvm|hdfs)", "CLASSPATH"),
            ("gs://anonymous@b/x?endpoint_override=127.0.0.1:9&scheme=http", "curl", "GOOGLE_"),
            ("abfs://account/x", "valid account name", "abfss://CONTAINER@ACCOUNT"),
        ],
    )
    @pytest.mark.slow
    def test_a_store_without_its_library_or_out_of_reach(self, text, cause, cure, monkeypatch):
        monkeypatch.setattr("recd_plugins.storage.store.GOOGLE_RETRIES", 1)
        monkeypatch.setenv("HADOOP_HOME", "/nowhere")
        monkeypatch.setenv("JAVA_HOME", "/nowhere")
        uri = Uri(text)
        with pytest.raises(DataError, match=f"(?is){uri.scheme}://.*{cause}.*{cure}") as raised:
            Table.open(uri)
        assert "\n" not in str(raised.value)

    def test_other_stores_of_arrow_are_asked_for_their_own_paths(self):
        blob = Uri("abfss://clicks@account.dfs.core.windows.net/day/1")
        assert str(blob) == "abfss://clicks@account.dfs.core.windows.net/day/1"
        assert blob.store.path(blob._path) == "clicks/day/1"
        bucket = Uri("gs://anonymous@clicks/day")
        assert (str(bucket), bucket.store.path(bucket._path)) == ("gs://clicks/day", "clicks/day")
        hadoop = OpenStore(None, keys=False, attempts=1, container="nn:9000", top="/")
        assert hadoop.path("nn:9000/day/1") == "/day/1"

    def test_a_bucket_and_a_table_that_are_not_there(self, store):
        with pytest.raises(DataError, match="there is no bucket 'nobody'"):
            Table.open(location_of("s3://nobody/x"))
        with pytest.raises(DataError, match="s3://tables/none: there is no such table"):
            Table.open(location_of("s3://tables/none"))

    def test_a_file_cut_short_is_told(self, remote):
        file = Table.open(remote).files[0]
        file.write_bytes(file.read_bytes()[:-300])
        with pytest.raises(DataError, match=r"not a whole Parquet file.*cut short or damaged"):
            Table.open(remote)

    def test_a_file_gone_mid_run_is_told(self, remote):
        table = Table.open(remote)
        table.files[0].unlink()
        with pytest.raises(DataError, match=r"part-00000\.parquet"):
            table.read(table.stripes[0])

    def test_other_stores_are_tried_again_too(self, on_disk, monkeypatch):
        target = location_of(f"memory://{uuid.uuid4().hex}")
        put(on_disk, target)
        import fsspec

        system = fsspec.filesystem("memory")
        opened, left = type(system)._open, [2]

        def open_(self, *args, **options):
            if left[0]:
                left[0] -= 1
                raise ConnectionResetError("reset by peer")
            return opened(self, *args, **options)

        monkeypatch.setattr(type(system), "_open", open_)
        assert Table.open(target).num_rows == 1000
        assert left == [0]
