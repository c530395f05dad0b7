"""Rung 1 (values): a log in registry.yaml is a dataset, and a bucket per shard for clustering."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from recd_dedup.etl.cluster import cluster_buckets
from recd_dedup.hashing import bucket_of, mix
from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.join import JoinConfig, JoinReport, joined
from recd_dedup.log.logged_dataset import LoggedConfig, LoggedSamples, build_logged
from recd_dedup.log.replay import Replay
from recd_dedup.log.routing import session_shards
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_plugins.data.dataset import SPLITS
from recd_plugins.data.schema import Schema
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import Context, DatasetRecord
from recd_plugins.testing.conformance import check_record

ROWS = 3000
SESSIONS = SessionsConfig(samples=ROWS, concurrent_sessions=50)
BY_TIME = [("session_id", "ascending"), ("timestamp", "ascending"), ("dense_0", "ascending")]
RECORD = DatasetRecord(
    name="logged",
    summary="Requests and events of the log slot, joined into samples.",
    config=LoggedConfig,
    build=build_logged,
    uses=("log",),
)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return pa.concat_tables(Sessions(SESSIONS).chunks("train"))


@pytest.fixture
def log(tmp_path, rows) -> ZstdShards:
    with ZstdShards(ZstdShardsConfig(shards=4, fsync="never"), tmp_path / "log") as log:
        for messages in Replay(SESSIONS.schema).messages([rows]):
            log.append(messages)
    return log


def test_its_splits_are_the_rows_and_share_no_session(tmp_path, log, rows):
    context = Context(folder=tmp_path / "data", neighbours={"log": log})
    dataset = build_logged(LoggedConfig(schema=SESSIONS.schema), context)
    tables = dataset.prepare(tmp_path / "logged")
    train, test = (pa.concat_tables(tables[split].each_read()) for split in SPLITS)
    assert pa.concat_tables([train, test]).sort_by(BY_TIME).equals(rows.sort_by(BY_TIME))
    sessions = [set(part["session_id"].to_pylist()) for part in (train, test)]
    assert not sessions[0] & sessions[1]
    assert 0.02 < len(sessions[1]) / (len(sessions[0]) + len(sessions[1])) < 0.25
    assert json.loads((tmp_path / "logged" / "join.json").read_text())["samples"] == ROWS


def test_progress_begins_before_the_log_yields_anything(tmp_path):
    """As of one that waits for its broker."""
    seen = []

    def samples():
        assert seen == [("joining requests and events", 0, None)]
        yield SESSIONS.schema.arrow().empty_table()

    config = LoggedConfig(schema=SESSIONS.schema)
    config.write(tmp_path, samples(), JoinReport(samples=7), lambda *done: seen.append(done))
    assert seen[-1] == ("joining requests and events", 7, None)


def test_it_keeps_a_datasets_contract(log, tmp_path):
    options = {"schema": SESSIONS.schema}
    context = Context(folder=tmp_path / "data", neighbours={"log": log})
    check_record(RECORD, options=options, context=context)


def test_all_who_read_a_log_that_is_written_mean_the_same_rows(tmp_path, rows):
    """Ranks and workers ask one after the other, while writers append, begin and close."""
    options = ZstdShardsConfig(shards=4, fsync="never", block_bytes=1 << 14)
    sent = [*Replay(SESSIONS.schema).messages(rows.slice(n, 500) for n in range(0, ROWS, 500))]
    writer, second = (ZstdShards(options, tmp_path / "log") for _ in range(2))

    def looked() -> LoggedSamples:
        log = ZstdShards(options, tmp_path / "log")
        context = Context(folder=tmp_path / "data", neighbours={"log": log})
        return build_logged(LoggedConfig(schema=SESSIONS.schema), context)

    def samples(dataset: LoggedSamples, folder: str) -> int:
        tables = dataset.prepare(tmp_path / folder)
        return sum(tables[split].num_rows for split in SPLITS)

    for messages in sent[:2]:
        writer.append(messages)
    writer.flush()
    first = looked()
    digest, noted = first.fingerprint(), samples(first, "one")
    assert 0 < noted < ROWS
    writer.append(sent[2])
    writer.close()
    second.append(sent[3])
    second.flush()
    message = r"log: [\d,]+ bytes came after .*remove .*ends-.*json"
    with pytest.warns(NoticeWarning, match=message):
        assert looked().fingerprint() == digest
    with pytest.warns(NoticeWarning, match=message):
        assert samples(looked(), "other") == noted
    reports = [
        json.loads((tmp_path / folder / "join.json").read_text()) | {"unsealed": None}
        for folder in ("one", "other")
    ]
    assert reports[0] == reports[1]
    (file,) = (tmp_path / "data").glob("ends-*.json")
    ends = json.loads(file.read_text())["ends"]
    file.unlink()
    assert samples(whole := looked(), "whole") > noted
    assert whole.fingerprint() != digest
    # What was there and is not any more is an error, not fewer rows.
    name, (place, _) = next(iter(ends.items()))
    os.truncate(tmp_path / "log" / name, place - 1)
    with pytest.raises(DataError, match="is cut short"):
        samples(looked(), "cut")


FEW = 150
"""Of a log in blocks of a row or two: so many are enough that each shard has some."""


@pytest.mark.parametrize(
    ("harm", "now"),
    [(lambda file: os.truncate(file, file.stat().st_size - 1), "[1-9]"), (Path.unlink, "0")],
)
def test_what_a_killed_writer_left_and_is_lost_later_is_an_error(tmp_path, rows, harm, now):
    """Its files are not sealed, but their ends were noted; those of a log that began anew are
    others."""

    def opened(**options: str) -> ZstdShards:
        config = ZstdShardsConfig(shards=4, fsync="never", block_bytes=1 << 10, **options)
        return ZstdShards(config, tmp_path / "log")

    def looked(folder: str, **options: str) -> int:
        context = Context(folder=tmp_path / "data", neighbours={"log": opened(**options)})
        tables = build_logged(LoggedConfig(schema=SESSIONS.schema), context).prepare(
            tmp_path / folder
        )
        return sum(tables[split].num_rows for split in SPLITS)

    def write() -> None:
        writer = opened()
        for messages in Replay(SESSIONS.schema).messages([rows.slice(0, FEW)]):
            writer.append(messages)
        writer.flush()
        writer._end_marks()

    write()
    assert looked("whole") == FEW
    file = min((tmp_path / "log").glob("shard-*/*.log"))
    kept = file.read_bytes()
    harm(file)
    with pytest.raises(DataError, match=rf"{file}: was whole up to byte [\d,]+ before.* {now}"):
        looked("less")
    assert 0 < looked("skipped", damaged="skip") < FEW
    (noted,) = (tmp_path / "data").glob("ends-*.json")
    for text in ("null", '{"ends": {}}', re.sub(r"[1-9]", "0", noted.read_text(), count=1)):
        noted.write_text(text)
        with pytest.raises(DataError, match=f"{noted}: is damaged, .*Remove it"):
            looked("noted", damaged="skip")
    noted.unlink()
    # Without its note, the marks of its writer say how much there was.
    with pytest.raises(DataError, match=rf"{file}: was whole up to byte [\d,]+ before.* {now}"):
        looked("first")
    assert 0 < looked("first", damaged="skip") < FEW
    next((tmp_path / "data").glob("ends-*.json")).unlink()
    file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(DataError, match=rf"{file}, byte .*: was whole before, but is not now"):
        looked("flipped")
    next((tmp_path / "data").glob("ends-*.json")).unlink()
    file.write_bytes(kept)
    assert looked("restored") == FEW
    shutil.rmtree(tmp_path / "log")
    write()
    assert looked("anew") == FEW


def test_a_schema_without_sessions():
    with pytest.raises(RegistryError, match="must name session_id and timestamp"):
        LoggedConfig(schema=Schema(session_id=None))


def test_log_shards_cluster_without_a_bucket_pass(tmp_path, log, rows):
    buckets = joined(log, MessageCodec(SESSIONS.schema), JoinConfig(), JoinReport())
    table = cluster_buckets(buckets, SESSIONS.schema, tmp_path / "clustered")
    assert len(table.files) == 4
    found = pa.concat_tables(table.each_read())
    assert found.sort_by(BY_TIME).equals(rows.sort_by(BY_TIME))
    hashes = mix(found["session_id"].to_numpy())
    assert (hashes[1:] >= hashes[:-1]).all()  # sessions together, shard after shard


def test_log_shards_are_the_buckets_of_clustering(rows):
    """One hash, one way to cut it: so shards, one after the other, are in order of hash."""
    sessions = rows["session_id"].to_numpy()
    expected = bucket_of(mix(sessions), 64)
    assert session_shards(sessions, 64).tolist() == expected.tolist()
