"""Rung 1 (values, on librdkafka's in-process brokers): a Kafka topic is a log like any other."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import numpy as np
import pytest
from joined_table import join_log
from raw_messages import everything, messages_of, numbered, rows_of

from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.growing_log import GrowingLogConfig, LogPeriod, build_growing_log
from recd_dedup.log.join import JoinConfig
from recd_dedup.log.kafka import KEY, KafkaConfig, KafkaLog, build_kafka
from recd_dedup.log.replay import Replay, ReplayConfig
from recd_dedup.log.shards import session_shards
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_plugins.data.dataset import SPLITS
from recd_plugins.data.growing import NotClosed
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.slots import Context

kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka (extra `kafka`)")

SHARDS = 4
"""What these brokers give a topic when somebody asks for it."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """Brokers that live as long as the client that they are part of."""
    client = kafka.Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "none"})
    brokers = client.list_topics(timeout=60).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del client


def opened(brokers, topic, **options) -> KafkaLog:
    client = kafka.Producer({"bootstrap.servers": brokers})
    assert len(client.list_topics(topic, timeout=60).topics[topic].partitions) == SHARDS
    options = {"shards": SHARDS, "linger_ms": 5, "timeout_s": 60} | options
    return build_kafka(KafkaConfig(servers=brokers, topic=topic, **options), Context())


def test_each_partition_holds_its_sessions_in_order(brokers):
    rows = numbered(300)
    with opened(brokers, "sessions") as log:
        for start in range(0, 300, 70):
            log.append(messages_of(rows[start : start + 70]))
    assert log.route == "session"
    for shard in range(SHARDS):
        expected = [row for row in rows if shard == session_shards(ids(row), SHARDS)[0]]
        assert rows_of(log.read(shard)) == expected
    assert everything(opened(brokers, "sessions")) == everything(log)


def test_nothing_was_dropped_and_keys_are_sessions(brokers):
    """The brokers keep 100k messages or 5 MiB a partition and drop the oldest without a word."""
    with opened(brokers, "keys") as log:
        log.append(messages_of(numbered(200)))
    consumer = kafka.Consumer({"bootstrap.servers": brokers, "group.id": "test"})
    total = 0
    for shard in range(SHARDS):
        partition = kafka.TopicPartition("keys", shard, 0)
        low, high = consumer.get_watermark_offsets(partition, timeout=60)
        assert low == 0
        total += high
        consumer.assign([partition])
        for message in consumer.consume(high, timeout=60) if high else ():
            (session,) = KEY.unpack(message.key())
            assert session_shards(ids((session,)), SHARDS) == [shard]
    consumer.close()
    assert total == 200


def test_flush_makes_it_readable_and_more_follows(brokers):
    log = opened(brokers, "flush")
    log.append(messages_of(numbered(20)))
    log.flush()
    reading = [log.read(shard) for shard in range(SHARDS)]
    assert sorted(everything(opened(brokers, "flush"))) == sorted(numbered(20))
    assert sorted(row for shard in reading for row in rows_of(shard)) == sorted(numbered(20))
    log.append(messages_of(numbered(20, first=20)))
    log.close()
    assert sorted(everything(log)) == sorted(numbered(40))


@pytest.mark.parametrize(
    "message", [b"", "Grüße, 世界".encode(), bytes(range(256)), b"x" * 900_000], ids=len
)
def test_any_bytes_are_a_message(brokers, message):
    row = (-(2**63), 2**40, message)
    with opened(brokers, f"bytes-{len(message)}") as log:
        log.append(messages_of([row]))
    assert everything(log) == [row]


def test_a_topic_of_nothing(brokers):
    with opened(brokers, "nothing") as log:
        log.append(messages_of([]))
    assert everything(log) == []


def test_logs_join_from_kafka_too(brokers, tmp_path):
    config = SessionsConfig(samples=800, concurrent_sessions=50)
    rows = next(Sessions(config).chunks("train"))
    with opened(brokers, "join") as log:
        for messages in Replay(config.schema).messages([rows]):
            log.append(messages)
    table, report = join_log(log, config.schema, tmp_path / "table", JoinConfig(window_ms=600_000))
    assert table.num_rows == report.samples == rows.num_rows
    assert report.positives == report.events == rows["label"].to_numpy().sum()


def test_what_cannot_be_sent_is_reported(brokers):
    log = opened(brokers, "large", client={"message.max.bytes": 2000})
    with pytest.raises(DataError, match=r"5,000 bytes .*MSG_SIZE_TOO_LARGE.*`message\.max\.bytes`"):
        log.append(messages_of([(1, 1, b"x" * 5000)]))
    with pytest.raises(DataError, match="Kafka has no timestamp -5"):
        log.append(messages_of([(1, -5, b"")]))
    with pytest.raises(DataError, match="has shards 0 to 3, not 4"):
        list(log.read(4))


def test_brokers_that_are_not_there():
    quiet = {"log_level": 0}
    log = KafkaLog(KafkaConfig(servers="127.0.0.1:1", topic="t", timeout_s=0.2, client=quiet))
    message = r"Kafka topic 't' at 127\.0\.0\.1:1: .*Check `log\.servers`"
    with pytest.raises(CapabilityError, match=message):
        log.append(messages_of(numbered(1)))
    with pytest.raises(CapabilityError, match=message):
        list(log.read(0))


@pytest.mark.parametrize(("topic", "there"), [("sessions", 4), ("missing", 0)])
def test_a_topic_of_other_partitions(brokers, topic, there):
    opened(brokers, "sessions")
    log = KafkaLog(KafkaConfig(servers=brokers, topic=topic, shards=8))
    with pytest.raises(DataError, match=rf"'{topic}' has {there} partitions.*--partitions 8"):
        log.append(messages_of(numbered(1)))


def test_messages_that_were_deleted(brokers):
    """A mock broker keeps 5 MiB a partition: the oldest of 8 MB are gone."""
    log = opened(brokers, "deleted")
    log.append(messages_of([(1, n, bytes([n]) + os.urandom(800_000)) for n in range(10)]))
    log.flush()
    shard = int(session_shards(ids((1,)), SHARDS)[0])
    with pytest.raises(DataError, match=r"its first \d messages are deleted.*`may_lack: true`"):
        list(log.read(shard))
    left = rows_of(opened(brokers, "deleted", may_lack=True).read(shard))
    assert [row[1] for row in left] == list(range(10 - len(left), 10))
    assert 0 < len(left) < 10
    with pytest.raises(DataError, match=r"its first \d messages are deleted"):
        log.cuts({}, 0, 10)
    rest, ends = opened(brokers, "deleted", may_lack=True), {str(shard): 10}
    assert rest.cuts({}, 9, 10).before == {str(shard): 9}
    assert [row for one in rest.between(shard, {}, ends) for row in rows_of([one.messages])] == left


def test_messages_of_others(brokers):
    other = kafka.Producer({"bootstrap.servers": brokers})
    other.produce("others", b"hello", key=b"me", partition=0)
    assert other.flush(10) == 0
    with pytest.raises(DataError, match="so they are not ours"):
        list(opened(brokers, "others").read(0))


def ids(row):
    return np.array(row[:1])


def carry_on(log: KafkaLog, config: SessionsConfig, time: int) -> None:
    """An event of no request in each partition, by which it comes to this time."""
    sessions = np.arange(100)
    _, firsts = np.unique(session_shards(sessions, SHARDS), return_index=True)
    assert len(firsts) == SHARDS
    of = np.full(SHARDS, -1)
    log.append(MessageCodec(config.schema).events(of, sessions[firsts], of + time))
    log.flush()


def test_periods_close_by_the_offsets_of_partitions(brokers, tmp_path):
    config = SessionsConfig(samples=800, concurrent_sessions=50)
    rows = next(Sessions(config).chunks("train")).sort_by("timestamp")
    times = rows["timestamp"].to_numpy()
    join = JoinConfig(window_ms=60_000, disorder_ms=5_000)
    growing = GrowingLogConfig(
        schema=config.schema,
        join=join,
        origin=int(times[0]),
        period_ms=int(np.ptp(times)) // 4,
        until=int(times[0]) + 3 * (int(np.ptp(times)) // 4),
    )
    messages = [*Replay(config.schema, ReplayConfig(delay_ms=60_000)).messages([rows])]
    half = messages[0].num_rows // 2
    with opened(brokers, "periods") as log:
        eager = build_growing_log(growing, Context(folder=tmp_path, neighbours={"log": log}))
        log.append(messages[0].slice(0, half))
        log.flush()
        with pytest.raises(NotClosed, match=r"partition 0 .*closes at"):
            eager.period(2)
        for rest in (messages[0].slice(half), *messages[1:]):
            log.append(rest)
        carry_on(log, config, int(times[-1]) + 600_000)
        numbers = range(3)
        found = [eager.period(number) for number in numbers]
        assert eager.period(3) is None
        folder = tmp_path / "late"
        late = build_growing_log(growing, Context(folder=folder, neighbours={"log": log}))
        for period, again in zip(found, map(late.period, numbers), strict=True):
            assert period.fingerprint() == again.fingerprint()
            period.verify()
    seen = [
        time
        for period in found
        for split in SPLITS
        for chunk in period.chunks(split)
        for time in chunk["timestamp"].to_pylist()
    ]
    assert sorted(seen) == times[times < growing.until].tolist()


def test_a_partition_that_holds_other_messages_is_refused(brokers, tmp_path):
    """As where a topic was deleted and made again."""
    config = SessionsConfig(samples=400, concurrent_sessions=50)
    growing = None
    for topic in ("before", "after"):
        made = dataclasses.replace(config, seed=len(topic))
        rows = next(Sessions(made).chunks("train")).sort_by("timestamp")
        with opened(brokers, topic) as log:
            for messages in Replay(config.schema).messages([rows]):
                log.append(messages)
            carry_on(log, config, int(rows["timestamp"].to_numpy()[-1]) + 600_000)
        if growing is None:
            times = rows["timestamp"].to_numpy()
            growing = GrowingLogConfig(
                schema=config.schema,
                join=JoinConfig(window_ms=1_000, disorder_ms=0),
                origin=int(times[0]),
                period_ms=int(np.ptp(times)) // 4,
            )
            first = build_growing_log(growing, Context(folder=tmp_path, neighbours={"log": log}))
            period = first.period(0)
            assert period is not None
            period.verify()
            manifest = period.manifest
    with pytest.raises(DataError, match="messages lie there now, with digest"):
        LogPeriod(growing, log, manifest, lambda number: {}).verify()
