"""Rung 1 and 2 (values and properties, on files): tables clustered by session."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import at_most
from full_disk import files_of_at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from session_tables import HUGE, SCHEMA, expected, mixed_rows, read, rows_of, table_of

from recd_dedup.etl.cluster import ClusterConfig, build_cluster, cluster_buckets
from recd_dedup.etl.scan import checked_rows, scan
from recd_dedup.hashing import bucket_of, mix
from recd_plugins.data.progress import silent
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context, EtlRecord
from recd_plugins.testing.conformance import check_record

TINY = 4e-5
"""GB: a run of 7 kB, so that hundreds of rows take many spills and buckets; of half of it, 500 are
two files."""


def cluster(table, folder, memory_gb=TINY, progress=silent):
    step = build_cluster(ClusterConfig(memory_gb=memory_gb), Context())
    return step.run(table, folder, progress)


def clustered(tmp_path, rows, memory_gb=TINY):
    """The rows of a table, clustered; nothing else is left in the folder."""
    source = table_of(tmp_path / "source", rows)
    result = cluster(source, tmp_path / "clustered", memory_gb)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "clustered"}
    assert result.schema == SCHEMA
    return read(result)


def test_memory_for_no_row_is_refused_before_anything_is_written(tmp_path):
    source = table_of(tmp_path / "source", mixed_rows())
    with pytest.raises(RegistryError, match=r"memory_gb: .*, but there can be 1,024 at most"):
        cluster(source, tmp_path / "clustered", 1e-12)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


@pytest.mark.parametrize("memory_gb", [TINY, 2e-4, 1.0])
def test_rows_and_their_order_are_the_same_under_any_memory(tmp_path, memory_gb):
    rows = mixed_rows()
    assert clustered(tmp_path, rows, memory_gb).equals(expected(rows))


@pytest.mark.parametrize(
    ("sessions", "timestamps"),
    [
        pytest.param([7] * 250, range(250), id="one session, in order"),
        pytest.param([7] * 250, range(250, 0, -1), id="one session, reversed"),
        pytest.param([7] * 250, [5] * 250, id="one session, all ties"),
        pytest.param(range(250), range(250), id="one row per session"),
        pytest.param(HUGE * 50, range(300), id="ids at the ends of 64 bits"),
        pytest.param([1, 2] * 125, [2**63 - 1, -(2**63)] * 125, id="times likewise"),
        pytest.param([], [], id="empty"),
        pytest.param([3], [0], id="one row"),
    ],
)
def test_the_largest_and_the_smallest_keys_are_sorted(tmp_path, sessions, timestamps):
    rows = rows_of(sessions, timestamps)
    assert clustered(tmp_path, rows).equals(expected(rows))


@settings(max_examples=at_most(20))
@given(
    keys=st.lists(st.tuples(st.sampled_from(HUGE), st.integers(-3, 3)), max_size=60),
    memory_gb=st.sampled_from([1e-7, 1e-6, 4e-6, 1.0]),
)
@pytest.mark.slow
def test_any_keys_under_any_memory(tmp_path_factory, keys, memory_gb):
    rows = rows_of([key[0] for key in keys], [key[1] for key in keys])
    assert clustered(tmp_path_factory.mktemp("any"), rows, memory_gb).equals(expected(rows))


def test_no_session_is_cut_across_files(tmp_path):
    source = table_of(tmp_path / "source", mixed_rows())
    files = cluster(source, tmp_path / "clustered", TINY / 2).files
    assert len(files) > 1
    seen: set[int] = set()
    for file in files:
        sessions = set(pq.read_table(file)["session_id"].to_pylist())
        assert not seen & sessions
        seen |= sessions


def test_without_a_timestamp_rows_of_a_session_stay_as_they_came(tmp_path):
    schema = Schema(timestamp=None, dense=SCHEMA.dense, sparse=SCHEMA.sparse)
    rows = mixed_rows().drop_columns("timestamp")
    result = cluster(table_of(tmp_path / "source", rows, schema), tmp_path / "clustered")
    timeless = rows.append_column("timestamp", pa.array(np.zeros(rows.num_rows, np.int64)))
    assert read(result).equals(expected(timeless).drop_columns("timestamp"))


def test_a_table_without_sessions(tmp_path):
    schema = Schema(session_id=None, dense=SCHEMA.dense, sparse=SCHEMA.sparse)
    rows = mixed_rows(50).drop_columns("session_id")
    source = table_of(tmp_path / "source", rows, schema)
    with pytest.raises(DataError, match=r"names no session_id, but cluster_by_session works by"):
        cluster(source, tmp_path / "clustered")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_foreign_types_are_read_and_nulls_are_reported(tmp_path):
    rows = mixed_rows(300)
    foreign = rows.set_column(4, "history", rows["history"].cast(pa.large_list(pa.int32())))
    (tmp_path / "source").mkdir()
    pq.write_table(foreign, tmp_path / "source" / "one.parquet")
    source = Table.open(tmp_path / "source", SCHEMA)
    assert read(cluster(source, tmp_path / "clustered")).equals(expected(rows))
    session = rows["session_id"].to_pylist()
    holed = foreign.set_column(0, "session_id", pa.array([None, *session[1:]], pa.int64()))
    pq.write_table(holed, tmp_path / "source" / "one.parquet")
    source = Table.open(tmp_path / "source", SCHEMA)
    with pytest.raises(DataError, match="column 'session_id' holds 1 null"):
        cluster(source, tmp_path / "again")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "clustered"}


def test_a_check_of_many_columns_lists_the_features_as_often_as_of_few(monkeypatch):
    names = Schema.sparse_names.fget
    asked = []

    def counted(schema):
        asked.append(schema)
        return names(schema)

    monkeypatch.setattr(Schema, "sparse_names", property(counted))
    took = []
    for many in (2, 40):
        schema = Schema(sparse=tuple(SparseFeature(name=f"f{n}", num_ids=9) for n in range(many)))
        rows = schema.arrow().empty_table()
        asked.clear()
        checked_rows(rows, schema, "here")
        took.append(len(asked))
    assert took[0] == took[1]


@pytest.mark.parametrize("skip", [0, 300, 800, 1999])
def test_a_file_is_opened_once_for_all_of_its_stripes(tmp_path, monkeypatch, skip):
    """A footer takes as long as it has stripes: opened for each, they take the square of that."""
    rows = mixed_rows(2000)
    table = table_of(tmp_path / "table", rows)  # of 8 stripes, in 3 files
    opened, whole = [], Table.opened

    def counted(self, file, **options):
        opened.append(file.name)
        return whole(self, file, **options)

    monkeypatch.setattr(Table, "opened", counted)
    found = pa.concat_tables(scan(table, 1_000, skip=skip))
    assert found.equals(rows.slice(skip))
    files = sorted({one.file.name for one in table.stripes})
    assert opened == files[-len(opened) :]  # each once, and none whose rows are all skipped
    assert len(opened) == len(files) - skip // (3 * 257)


def test_progress_is_reported_in_rows(tmp_path):
    calls = []
    source = table_of(tmp_path / "source", mixed_rows())
    cluster(source, tmp_path / "c", TINY / 2, progress=lambda *step: calls.append(step))
    for what in ("bucketing c", "sorting c"):
        steps = [done for name, done, total in calls if name == what and total == 500]
        assert steps[0] == 0
        assert steps[-1] == 500
        assert steps == sorted(steps)
        assert len(steps) > 2


@pytest.mark.parametrize("size", [1_000, 1500])
def test_a_write_that_fails_publishes_nothing_and_the_next_run_goes_on(tmp_path, size):
    rows = mixed_rows()
    source = table_of(tmp_path / "source", rows)
    with files_of_at_most(size), pytest.raises(OSError, match="File too large"):
        cluster(source, tmp_path / "clustered", 1e-4)
    assert not (tmp_path / "clustered").exists()
    assert read(cluster(source, tmp_path / "clustered", 1e-4)).equals(expected(rows))


def damage_batch(path, bucket):
    """Change one id of a bucket, in a spill file that is otherwise as it was."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as spill:
        schema = spill.schema
        batches = [spill.get_batch(i) for i in range(spill.num_record_batches)]
    column = batches[bucket].column("label").to_numpy().copy()
    column[0] = 1 - column[0]
    arrays = [*batches[bucket].columns]
    arrays[schema.names.index("label")] = pa.array(column)
    batches[bucket] = pa.RecordBatch.from_arrays(arrays, schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as spill:
        for batch in batches:
            spill.write_batch(batch)


def drop_batch_rows(path, bucket):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_batch, r"part-00000 should hold the source's [\d,]+ rows with sum \w+, but holds"),
        (drop_batch_rows, r"spill-00001\.arrow: this spill of the bucket pass was damaged"),
    ],
)
def test_a_bucket_that_was_tampered_with_is_reported_and_nothing_published(
    tmp_path, damage, reason
):
    rows = mixed_rows()
    source = table_of(tmp_path / "source", rows)

    def tamper(what, done, total):
        if what == "sorting clustered" and done == 0:
            damage(tmp_path / "clustered.clustering" / "spills" / "spill-00001.arrow", 0)

    with pytest.raises(DataError, match=reason):
        cluster(source, tmp_path / "clustered", 1e-4, tamper)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert read(cluster(source, tmp_path / "clustered")).equals(expected(rows))


def test_another_source_under_the_same_name_is_not_mixed_with_the_one_before(tmp_path):
    def die(what, done, total):
        if done > 300:
            raise KeyboardInterrupt

    table = table_of(tmp_path / "source", mixed_rows(seed=1))
    with pytest.raises(KeyboardInterrupt):
        cluster(table, tmp_path / "clustered", progress=die)
    assert (tmp_path / "clustered.clustering").exists()
    rows = mixed_rows(seed=2)
    source = table_of(tmp_path / "source", rows)
    assert read(cluster(source, tmp_path / "clustered")).equals(expected(rows))


def in_buckets(rows, n_buckets):
    """As log shards are: each with all rows of its sessions, in chunks."""
    bucket = bucket_of(mix(rows["session_id"].to_numpy()), n_buckets)
    parts = [rows.filter(pa.array(bucket == index)) for index in range(n_buckets)]
    return [[part.slice(at, 100) for at in range(0, part.num_rows, 100)] for part in parts]


@pytest.mark.parametrize("n_buckets", [1, 5])
def test_rows_in_buckets_need_no_bucket_pass(tmp_path, n_buckets):
    rows = mixed_rows()
    buckets = in_buckets(rows, n_buckets)
    table = cluster_buckets(buckets, SCHEMA, tmp_path / "clustered", memory_gb=TINY)
    assert read(table).equals(expected(rows))
    assert len(table.files) == n_buckets
    assert [path.name for path in tmp_path.iterdir()] == ["clustered"]


def test_buckets_of_which_there_are_none(tmp_path):
    table = cluster_buckets([], SCHEMA, tmp_path / "clustered")
    assert (table.num_rows, table.schema) == (0, SCHEMA)


@pytest.mark.parametrize(("source", "again"), [("logs of May", {2, 3, 4}), ("", set(range(5)))])
def test_buckets_that_are_done_are_not_read_again(tmp_path, source, again):
    rows = mixed_rows()
    buckets = in_buckets(rows, 5)
    read_now: set[int] = set()

    class Shard:
        def __init__(self, index, broken):
            self.index, self.broken = index, broken

        def __iter__(self):
            read_now.add(self.index)
            yield from buckets[self.index]
            if self.broken:
                raise OSError("the log's disk is gone")

    def run(*broken):
        shards = [Shard(index, index in broken) for index in range(5)]
        return cluster_buckets(shards, SCHEMA, tmp_path / "c", source=source)

    with pytest.raises(OSError, match="is gone"):
        run(2)
    read_now.clear()
    assert read(run()).equals(expected(rows))
    assert read_now == again


def test_the_record_keeps_its_contract():
    check_record(
        EtlRecord(
            name="cluster_by_session",
            summary="Samples of a session side by side, in the order of time.",
            config=ClusterConfig,
            build=build_cluster,
        ),
        context=Context(schema=SCHEMA),
    )


def test_a_published_table_replaces_the_one_before(tmp_path):
    with TableWriter(tmp_path / "clustered", SCHEMA) as writer:
        writer.write(mixed_rows(10, seed=9))
    rows = mixed_rows(200)
    assert clustered(tmp_path, rows).equals(expected(rows))
