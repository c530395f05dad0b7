"""Rung 1 (values): a table as logs, through shards and the join, is the same table again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from joined_table import join_log

from recd_dedup.log.join import JoinConfig
from recd_dedup.log.replay import Replay, ReplayConfig
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.errors import DataError

ROWS = 6000
JOIN = JoinConfig(window_ms=600_000, disorder_ms=60_000, remember_ms=10**8)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Table:
    config = SessionsConfig(samples=ROWS, concurrent_sessions=100)
    folder = tmp_path_factory.mktemp("sessions") / "train"
    return write_table(folder, config.schema, Sessions(config, chunk_rows=500).chunks("train"))


def rows(table: Table) -> pa.Table:
    return pa.concat_tables(table.each_read()).combine_chunks()


def by_session(rows: pa.Table, *within: str) -> pa.Table:
    """Sessions sorted; the rows of each as they came, or sorted too."""
    keys = [rows[name].to_numpy() for name in ("session_id", *within)]
    return rows.take(pa.array(np.lexsort(keys[::-1])))


def logged(folder, replay: Replay, table: Table, route="session", chunk=700) -> ZstdShards:
    whole = rows(table)
    config = ZstdShardsConfig(shards=8, route=route, fsync="never", block_bytes=20_000)
    with ZstdShards(config, folder) as log:
        for messages in replay.messages(whole.slice(i, chunk) for i in range(0, ROWS, chunk)):
            log.append(messages)
    return log


@pytest.mark.parametrize("route", ["session", "message"])
@pytest.mark.parametrize("trouble", [{}, {"duplicate_requests": 0.2, "duplicate_events": 0.3}])
def test_the_table_comes_back(tmp_path, table, route, trouble):
    replay = Replay(table.schema, ReplayConfig(**trouble))
    log = logged(tmp_path / "log", replay, table, route)
    back, report = join_log(log, table.schema, tmp_path / "table", JOIN)
    within = ("timestamp", "dense_0") if route == "message" else ()
    assert by_session(rows(back), *within).equals(by_session(rows(table), *within))
    positives = int(rows(table)["label"].to_numpy().sum())
    assert report.samples == ROWS
    assert report.positives == positives
    assert report.requests == ROWS + report.duplicate_requests
    assert report.events == positives + report.duplicate_events
    assert report.duplicate_requests == pytest.approx(
        trouble.get("duplicate_requests", 0) * ROWS, rel=0.2
    )
    assert report.late_events == report.orphan_events == report.disordered == 0
    assert report.missing == {}


def test_what_was_lost_is_what_is_reported(tmp_path, table):
    trouble = ReplayConfig(
        delay_ms=1_200_000,
        duplicate_requests=0.1,
        duplicate_events=0.1,
        lost_requests=0.05,
        lost_events=0.1,
        missing=0.02,
    )
    replay = Replay(table.schema, trouble)
    log = logged(tmp_path / "log", replay, table)
    back, report = join_log(log, table.schema, tmp_path / "table", JOIN)

    ids, whole = replay.request_ids(0, ROWS), rows(table)
    lost = replay.drawn("lost_requests", ids) < 0.05
    sent = (whole["label"].to_numpy() == 1) & (replay.drawn("lost_events", ids) >= 0.1)
    twice = sent & (replay.drawn("duplicate_events", ids) < 0.1)
    late = replay.drawn("delay_ms", ids) * 1_200_001 >= 600_001
    copies = sent.astype(int) + twice
    assert report.samples == (~lost).sum()
    assert (
        report.duplicate_requests == (~lost & (replay.drawn("duplicate_requests", ids) < 0.1)).sum()
    )
    assert report.events == copies.sum()
    assert report.orphan_events == copies[lost].sum() > 0
    assert report.late_events == copies[late & ~lost].sum() > 0
    assert report.positives == (sent & ~late & ~lost).sum() > 0
    assert report.duplicate_events == (twice & ~late & ~lost).sum() > 0
    assert report.disordered == 0
    for name in (*table.schema.dense, *table.schema.sparse_names):
        missing = replay.drawn(f"missing/{name}", ids) < 0.02
        assert report.missing[name] == (missing & ~lost).sum()

    labels = pa.array((sent & ~late).astype(np.float32))
    expected = whole.set_column(2, whole.schema.field("label"), labels).filter(pa.array(~lost))
    keys = ["session_id", "timestamp", "label"]
    assert by_session(rows(back)).select(keys).equals(by_session(expected).select(keys))


def test_messages_come_in_time_however_rows_are_chunked(table):
    replay = Replay(table.schema, ReplayConfig(duplicate_events=0.2, lost_requests=0.1))
    whole = rows(table).slice(0, 900)
    runs = [
        pa.Table.from_batches(replay.messages(whole.slice(i, chunk) for i in range(0, 900, chunk)))
        for chunk in (900, 100)
    ]
    by = [("timestamp", "ascending"), ("message", "ascending")]
    assert runs[0].sort_by(by).equals(runs[1].sort_by(by))
    for run in runs:
        times = run["timestamp"].to_numpy()
        assert (np.maximum.accumulate(times) - times).max() <= replay.config.redelivery_ms


def test_another_seed_is_other_messages(table):
    whole = rows(table).slice(0, 50)
    first, second = (
        pa.Table.from_batches(Replay(table.schema, ReplayConfig(seed=seed)).messages([whole]))
        for seed in (0, 1)
    )
    assert not first.equals(second)


def test_labels_must_be_0_or_1():
    schema = Schema()
    stars = pa.table({"session_id": [1], "timestamp": [2], "label": [4.5]})
    with pytest.raises(DataError, match=r"column 'label' holds 4\.5.*Map the labels"):
        list(Replay(schema).messages([stars]))


def test_nothing_to_replay_and_to_join(tmp_path, table):
    log = ZstdShards(ZstdShardsConfig(shards=2), tmp_path / "log")
    with log:
        for messages in Replay(table.schema).messages([]):
            log.append(messages)
    back, report = join_log(log, table.schema, tmp_path / "table")
    assert back.num_rows == report.samples == report.events == 0
