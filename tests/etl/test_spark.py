"""Rung 1 (values, on files; a real Spark): the engines agree, row for row."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys

import pyarrow as pa
import pytest
from session_tables import HUGE, SCHEMA, expected, mixed_rows, read, rows_of, table_of

from recd_dedup.etl.cluster import ClusterConfig, build_cluster
from recd_dedup.etl.spark import check_that_files_are_rows, check_that_it_listens
from recd_plugins.data.schema import Schema
from recd_plugins.data.selection import Selection
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.slots import Context

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
needs_spark = pytest.mark.skipif(
    not (HAS_SPARK and shutil.which("java")), reason="needs pyspark (an extra) and Java 17"
)


def build(memory_gb=2e-5):
    config = ClusterConfig(engine="spark", spark_master="local[2]", memory_gb=memory_gb)
    return build_cluster(config, Context())


@pytest.fixture(scope="module")
def spark():
    """One Spark for all tests: a running one is used, and left running."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@needs_spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(mixed_rows(1_000), id="mixed"),
        pytest.param(rows_of(HUGE * 20, [3] * 120), id="ids at the ends of 64 bits, all ties"),
        pytest.param(rows_of([7] * 200, range(200, 0, -1)), id="one session"),
        pytest.param(rows_of([], []), id="empty"),
    ],
)
def test_spark_yields_the_same_rows_in_the_same_order(tmp_path, rows):
    source = table_of(tmp_path / "source", rows)
    table = build().run(source, tmp_path / "clustered", lambda *progress: None)
    assert read(table).equals(expected(rows))
    assert table.schema == SCHEMA
    assert {path.name for path in tmp_path.iterdir()} == {"source", "clustered"}


@needs_spark
@pytest.mark.usefixtures("spark")
def test_no_session_is_cut_across_files(tmp_path):
    import pyarrow.parquet as pq

    source = table_of(tmp_path / "source", mixed_rows(1_000))
    files = build().run(source, tmp_path / "clustered").files
    sessions = [set(pq.read_table(file)["session_id"].to_pylist()) for file in files]
    assert len(files) > 1
    assert sum(map(len, sessions)) == len(set.union(*sessions))


@needs_spark
@pytest.mark.usefixtures("spark")
def test_without_a_timestamp(tmp_path):
    schema = Schema(timestamp=None, dense=SCHEMA.dense, sparse=SCHEMA.sparse)
    rows = mixed_rows(1_000)
    still = rows.set_column(1, "timestamp", pa.array([0] * rows.num_rows))
    source = table_of(tmp_path / "source", rows.drop_columns("timestamp"), schema)
    table = build().run(source, tmp_path / "clustered")
    assert read(table).equals(expected(still).drop_columns("timestamp"))


@needs_spark
@pytest.mark.usefixtures("spark")
def test_rows_that_spark_lost_are_missed(tmp_path):
    source = table_of(tmp_path / "source", mixed_rows(1_000))

    def lose(what, done, total):
        if what == "Spark: clustering clustered" and done:
            next((tmp_path / "clustered.clustering" / "spark").glob("part-*")).unlink()

    with pytest.raises(DataError, match=r"Spark made [\d,]+ rows .* of the source's 1,000 rows"):
        build().run(source, tmp_path / "clustered", lose)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@needs_spark
@pytest.mark.usefixtures("spark")
def test_the_spark_pass_is_not_run_twice(tmp_path):
    rows = mixed_rows(1_000)
    source = table_of(tmp_path / "source", rows)
    calls = []

    def die(what, done, total):
        calls.append(what)
        if what == "writing clustered" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build().run(source, tmp_path / "clustered", die)
    calls.clear()
    table = build().run(source, tmp_path / "clustered", lambda *step: calls.append(step[0]))
    assert set(calls) == {"writing clustered"}
    assert read(table).equals(expected(rows))


@needs_spark
def test_a_master_that_starts_no_spark_is_named(tmp_path):
    """In a process of its own: Spark keeps the settings of the first that starts."""
    table_of(tmp_path / "source", mixed_rows(10))
    code = (
        "from pathlib import Path\n"
        "from recd_dedup.etl.cluster import ClusterConfig, build_cluster\n"
        "from recd_plugins.api.data import Table\n"
        "from recd_plugins.errors import RecdError\n"
        "from recd_plugins.slots import Context\n"
        "config = ClusterConfig(engine='spark', spark_master='local[x]')\n"
        "try:\n"
        "    build_cluster(config, Context()).run(Table.open(Path('source')), Path('clustered'))\n"
        "except RecdError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    says = done.stdout.strip().splitlines()[-1]
    assert "Spark does not start with spark_master: local[x] (" in says, done.stderr
    assert "Could not parse Master URL: 'local[x]'" in says
    assert "engine: pyarrow" in says


def test_a_table_whose_rows_are_not_those_of_its_files_is_refused(tmp_path):
    source = table_of(tmp_path / "source", mixed_rows(100))
    every, some = (
        source.select(Selection(where=rule, schema=source.schema))
        for rule in ("row >= 0", "row < 50")
    )
    check_that_files_are_rows(source)
    check_that_files_are_rows(every)
    with pytest.raises(DataError, match=r"takes a part of their rows \(where.*engine: pyarrow"):
        check_that_files_are_rows(some)


@pytest.mark.skipif(HAS_SPARK, reason="pyspark is here")
def test_without_the_package():
    with pytest.raises(CapabilityError, match=r"needs the package 'pyspark'.*engine: pyarrow"):
        build()


@pytest.mark.skipif(not HAS_SPARK, reason="needs pyspark (an extra)")
def test_without_java_the_message_names_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(CapabilityError, match="needs Java 17 or later"):
        build()


@pytest.mark.parametrize(
    ("master", "says"),
    [
        ("spark://127.0.0.1:1", r"127\.0\.0\.1:1: .*refused"),
        ("spark://127.0.0.1:1,127.0.0.1:2", r"127\.0\.0\.1:1: .*; 127\.0\.0\.1:2: "),
        ("spark://master", "'master' is no HOST:PORT"),
    ],
)
def test_a_cluster_whose_masters_do_not_listen_is_named_at_once(master, says):
    with pytest.raises(
        DataError, match=rf"Spark does not start with spark_master: {master} \({says}"
    ):
        check_that_it_listens(master)


def test_a_cluster_one_of_whose_masters_listens_is_tried():
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_that_it_listens(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")
    check_that_it_listens("local[2]")
    check_that_it_listens("yarn")
