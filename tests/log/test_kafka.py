"""Rung 1 (values, on librdkafka's in-process brokers): a Kafka topic is a log like any other."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import threading
from time import sleep
from types import SimpleNamespace

import numpy as np
import pytest
from joined_table import join_log
from raw_messages import everything, messages_of, numbered, rows_of

from recd_dedup.log import kafka_topics
from recd_dedup.log.codec import MessageCodec, id_of_bytes
from recd_dedup.log.digested import digested
from recd_dedup.log.growing_log import GrowingLogConfig, GrowingLogDataset, build_growing_log
from recd_dedup.log.join import JoinConfig, JoinReport, joined
from recd_dedup.log.json_messages import JsonDecoder, JsonMessages
from recd_dedup.log.kafka import KEY, KafkaConfig, KafkaLog, build_kafka
from recd_dedup.log.log_period import LogPeriod, PeriodManifest
from recd_dedup.log.logged_dataset import LoggedConfig
from recd_dedup.log.replay import Replay, ReplayConfig
from recd_dedup.log.routing import session_shards
from recd_dedup.log.snapshot import Snapshot
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_plugins.config import parse
from recd_plugins.data.dataset import SPLITS
from recd_plugins.data.growing import NotClosed
from recd_plugins.errors import CapabilityError, DataError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import Context

kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka (extra `kafka`)")

SHARDS = 4
"""What these brokers give a topic when somebody asks for it."""


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
    with pytest.raises(DataError, match="Kafka has no timestamp 0: timestamps begin at 1"):
        log.append(messages_of([(1, 5, b""), (1, 0, b"")]))
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
    others = "" if there else r".*The brokers have "
    named = rf"'{topic}' has {there} partitions.*--partitions 8{others}"
    with pytest.raises(DataError, match=named):
        log.append(messages_of(numbered(1)))


def test_messages_that_were_deleted(brokers):
    """A mock broker keeps 5 MiB a partition: the oldest of 8 MB are gone."""
    log = opened(brokers, "deleted")
    log.append(messages_of([(1, n, bytes([n]) + os.urandom(800_000)) for n in range(1, 11)]))
    log.flush()
    shard = int(session_shards(ids((1,)), SHARDS)[0])
    with pytest.raises(DataError, match=r"its first \d messages are deleted.*`may_lack: true`"):
        list(log.read(shard))
    left = rows_of(opened(brokers, "deleted", may_lack=True).read(shard))
    assert [row[1] for row in left] == list(range(11 - len(left), 11))
    assert 0 < len(left) < 10
    with pytest.raises(DataError, match=r"its first \d messages are deleted"):
        log.cuts({}, 1, 11)
    rest, ends = opened(brokers, "deleted", may_lack=True), {str(shard): 10}
    assert rest.cuts({}, 10, 11).before == {str(shard): 9}
    assert [row for one in rest.between(shard, {}, ends) for row in rows_of([one.messages])] == left


def test_what_is_deleted_between_the_first_look_and_the_join_is_an_error(brokers, tmp_path):
    """Also where a topic may lack what was deleted before; what came and went since is nobody's."""
    sessions = np.arange(50)
    mine, other = (int(sessions[session_shards(sessions, SHARDS) == n][0]) for n in range(2))

    def send(session: int, *times: int) -> None:
        with opened(brokers, "aging") as log:
            log.append(messages_of([(session, n, os.urandom(800_000)) for n in times]))

    def looked() -> Snapshot:
        return Snapshot(opened(brokers, "aging", may_lack=True), tmp_path)

    send(mine, *range(1, 11))
    first = looked()
    fingerprint, there = first.fingerprint(), rows_of(first.read(0))
    assert 0 < len(there) < 10
    (noted,) = tmp_path.glob("ends-*.json")
    assert looked().fingerprint() == fingerprint
    assert rows_of(looked().read(0)) == there
    send(mine, *range(11, 14))
    send(other, *range(1, 11))
    later = looked()
    with pytest.warns(NoticeWarning, match=r"13 messages came after"):
        assert later.fingerprint() == fingerprint
    for log in (first, later):
        with pytest.raises(DataError, match=r"aging, partition 0: messages \d+ to \d+ are deleted"):
            [*log.read(0)]
    assert [*later.read(1)] == []
    noted.unlink()
    assert rows_of(looked().read(0))[-1][1] == 13


def test_messages_of_others(brokers):
    other = kafka.Producer({"bootstrap.servers": brokers})
    other.produce("others", b"hello", key=b"me", partition=0)
    other.produce("others", b"hello", partition=1)
    assert other.flush(60) == 0
    log = opened(brokers, "others")
    (messages,) = log.read(0)
    assert messages["session_id"].to_pylist() == [id_of_bytes(b"me")]
    with pytest.raises(DataError, match=r"neither inference.*must describe how to read their JSON"):
        MessageCodec(SessionsConfig().schema).decode(messages)
    (messages,) = log.read(1)
    assert messages["message"].to_pylist() == [b"hello"]
    event = MessageCodec(SessionsConfig().schema).events(ids((7,)), ids((7,)), ids((9,)))
    other.produce("others", event["message"][0].as_py(), partition=2, timestamp=9)
    assert other.flush(60) == 0
    for route in ("session", "message"):
        (messages,) = opened(brokers, "others", route=route).read(2)
        with pytest.raises(DataError, match=r"message of time 9 has no key, which is its session"):
            MessageCodec(SessionsConfig().schema).decode(messages)


def test_a_key_is_needed_by_requests_and_events_alone(brokers, tmp_path):
    """Others, as heartbeats and what compaction has emptied, have none."""
    other = kafka.Producer({"bootstrap.servers": brokers})
    kinds = {"kind": "type", "requests": ("shown",), "events": ("click",)}

    def send(value: bytes | None, key: bytes | None = None) -> None:
        other.produce("heartbeats", value, key, partition=1, timestamp=5)
        assert other.flush(60) == 0

    def rows(**more: str) -> tuple[list[list[int]], JoinReport]:
        messages = dataclasses.replace(JSON, **kinds, **more)
        log, report = opened(brokers, "heartbeats"), JoinReport()
        streams = joined(
            log, LoggedConfig(messages=messages).decoder(log.route), JoinConfig(), report
        )
        return [n for one in streams for rows in one for n in rows["item"].to_pylist()], report

    send(b'{"type": "shown", "id": 1, "item": 3}', b"me")
    for value in (b'{"type": "alive"}', None, b""):
        send(value)
    items, report = rows()
    assert (items, report.left_out) == ([[3]], 3)
    send(b'{"type": "click", "id": 1}')
    with pytest.raises(DataError, match=r"of time 5 that has no key: .*`malformed: skip`"):
        rows()
    items, report = rows(malformed="skip")
    assert (items, report.left_out, report.events) == ([[3]], 4, 0)


def test_partitions_that_are_added_are_told_and_read_by_a_run_that_goes_on(brokers, tmp_path):
    """Nobody would read them, and what was read without them stays as it was."""
    opened(brokers, "added")
    other = kafka.Producer({"bootstrap.servers": brokers})

    def send(partition: int, *times: int) -> None:
        for time in times:
            where = {"partition": partition, "timestamp": time, "key": b"me"}
            other.produce("added", b'{"item": 1, "label": 0}', **where)
        assert other.flush(60) == 0

    def of(shards: int) -> KafkaLog:
        log = opened(brokers, "added", shards=shards)
        log._topics.found = True  # as of a topic that had no more when it was opened
        return log

    def growing(log: KafkaLog) -> GrowingLogDataset:
        return build_growing_log(config, Context(folder=tmp_path, neighbours={"log": log}))

    columns = {"session_id": None, "timestamp": None, "sparse": [{"name": "item", "num_ids": 9}]}
    messages = parse(JsonMessages, {"columns": columns}, "messages")
    config = GrowingLogConfig(messages=messages, origin=0, period_ms=1_000)
    for partition in range(2):
        send(partition, 10 + partition, 1_010 + partition, 61_500)
    before = of(2)
    before._topics.check_added = lambda client: None
    first = growing(before).period(0)
    noted = Snapshot(before, tmp_path / "logged")
    fingerprint = noted.fingerprint()

    for partition in range(2, SHARDS):
        send(partition, 1_010 + partition, 62_500)
    for partition in range(2):
        send(partition, 62_500)
    with pytest.raises(DataError, match=r"4 partitions now, but 2 are.*shards` to 4.*--resume"):
        growing(of(2)).period(1)
    later = growing(of(SHARDS))
    assert later.period(0).fingerprint() == first.fingerprint()
    later.period(0).verify()
    found = [
        sorted(
            time
            for split in SPLITS
            for one in later.period(number).chunks(split)
            for time in one["timestamp"].to_pylist()
        )
        for number in range(2)
    ]
    assert found == [[10, 11], [1_010, 1_011, 1_012, 1_013]]
    again = Snapshot(of(SHARDS), tmp_path / "logged")
    with pytest.warns(NoticeWarning, match=r"6 messages came after"):
        assert again.fingerprint() == fingerprint
    assert len(everything(again)) == 6


def test_a_topic_is_not_read_in_part(brokers):
    """As where it has more partitions than the registry says."""
    opened(brokers, "wide")
    log = build_kafka(KafkaConfig(servers=brokers, topic="wide", shards=2), Context())
    with pytest.raises(DataError, match=r"'wide' has 4 partitions, but 2 are asked for"):
        list(log.read(0))
    with pytest.raises(DataError, match=r"'wide' has 4 partitions, but 2 are asked for"):
        log.cuts({}, 0, 1)


def test_a_topic_that_brokers_know_a_moment_late_is_waited_for(brokers, monkeypatch):
    """As those do that come back; one that they never know is an error, in time."""

    def known_before(topic: str) -> KafkaLog:
        log = KafkaLog(KafkaConfig(servers=brokers, topic=topic, shards=SHARDS, timeout_s=60))
        log._topics.found = True
        return log

    back = threading.Timer(1, opened, (brokers, "back"))
    back.start()
    ends = known_before("back").ends()
    back.join()
    assert [end.place for end in ends.values()] == [0] * SHARDS
    # They answer twice: the first answer comes at once, and the second as the time is over.
    slept: list[float] = []
    seconds = itertools.chain([0.0, 0.0, 0.0, 0.0], itertools.repeat(60.0))
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=slept.append)
    monkeypatch.setattr(kafka_topics, "time", clock)
    with pytest.raises(DataError, match=r"never, partition 0: is no longer there .*was deleted"):
        known_before("never").ends()
    assert slept == [0.1]


def test_the_time_that_a_reader_takes_is_not_that_of_the_brokers():
    """They are away for a moment just as it goes on."""

    class Message:
        error = staticmethod(lambda: None)

        def __init__(self, offset: int) -> None:
            self.offset = lambda: offset

    class Away:
        coming = iter([[Message(0)], [], [Message(1)]])

        def assign(self, parts: object) -> None:
            pass

        def consume(self, most: int, timeout: float) -> list[Message]:
            return next(self.coming)

    log = KafkaLog(KafkaConfig(servers="127.0.0.1:1", topic="t", timeout_s=0.01))
    reading = log._topics.fetched(Away(), *log._parts(0), 0, 2)
    assert [one.offset() for one in next(reading)] == [0]
    sleep(0.02)
    assert [one.offset() for one in next(reading)] == [1]


def test_options_that_the_client_does_not_take():
    log = KafkaLog(KafkaConfig(servers="127.0.0.1:1", topic="t", client={"retrys": 3}))
    message = "client: librdkafka does not take these options: .*retrys.*Correct `log.client`"
    with pytest.raises(RegistryError, match=message):
        log.append(messages_of(numbered(1)))
    with pytest.raises(RegistryError, match=message):
        list(log.read(0))


def test_paths_of_the_client_are_looked_for(tmp_path, monkeypatch):
    """librdkafka says of one that is not there that its routines failed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def opened_with(**client: object) -> KafkaLog:
        return KafkaLog(KafkaConfig(servers="127.0.0.1:1", client=client))

    for path in ("ca.pem", "~/ca.pem"):
        named = rf"client: ssl\.ca\.location names '{path}', .*command runs, {tmp_path}: write"
        with pytest.raises(RegistryError, match=named):
            opened_with(**{"ssl.ca.location": path})
    (tmp_path / "ca.pem").touch()
    log = opened_with(**{"ssl.ca.location": "~/ca.pem", "ssl.key.password": "none.file"})
    assert log._topics.options["ssl.ca.location"] == str(tmp_path / "ca.pem")
    opened_with(**{"ssl.ca.location": "probe"})
    message = r"not take these options: .*error_cb.*Correct `log\.client`"
    with pytest.raises(RegistryError, match=message):
        list(opened_with(error_cb="print").read(0))


def test_a_request_without_a_key_is_of_no_session(brokers):
    """All of them would be one."""
    other = kafka.Producer({"bootstrap.servers": brokers})
    log = opened(brokers, "keyless", route="message")
    shown = json.dumps({"id": 1, "item": 1, "user": "me"}).encode()
    other.produce("keyless", shown, partition=2)
    other.produce("keyless", b'{"id": 1, "clicked": true}', partition=1)
    assert other.flush(60) == 0
    read = [messages for shard in range(SHARDS) for messages in log.read(shard)]
    with pytest.raises(DataError, match=r"has no key.*`messages\.columns\.session_id`"):
        [JsonDecoder(JSON).decode(messages) for messages in read]
    columns = dataclasses.replace(JSON.columns, session_id="user")
    named = JsonDecoder(dataclasses.replace(JSON, columns=columns))
    found = [named.decode(messages) for messages in read]
    assert [one.events.ids.size for one in found] == [1, 0]
    assert [one.requests.ids.size for one in found] == [0, 1]


def test_topics_that_hold_as_much_are_told_apart(brokers):
    """As one that was deleted and written again."""
    found = set()
    for topic, text in (("same-a", b"one"), ("same-a", b"two"), ("same-b", b"two")):
        with opened(brokers, topic) as log:
            log.append(messages_of([(1, 1, text)]))
        found |= {log.fingerprint(), log.fingerprint()}
    assert len(found) == 3
    options = {"topic": "same-a", "servers": brokers, "shards": SHARDS}
    one, other = (KafkaLog(KafkaConfig(**options, **more)) for more in ({}, {"route": "message"}))
    assert one.fingerprint() != other.fingerprint()


def test_a_backlog_is_read_as_far_as_a_period_needs(brokers):
    """And not once more to its end for each period."""
    rows = [(1, 1 + n, b"x") for n in range(5000)]
    with opened(brokers, "backlog") as log:
        log.append(messages_of(rows))
    shard = str(session_shards(ids((1,)), SHARDS)[0])
    cuts = log.cuts({}, 101, 151)
    assert (cuts.before, cuts.past) == ({shard: 100}, {shard: 150})
    assert 151 <= cuts.latest < 4999
    quiet = opened(brokers, "backlog", quiet_ms=2000)
    cuts = quiet.cuts({}, 101, 151)
    assert (cuts.before[shard], cuts.past[shard]) == (100, 150)
    assert len(cuts.past) == SHARDS
    assert 2151 <= cuts.latest < 4999


def test_a_topic_that_was_made_anew_is_named(brokers):
    with opened(brokers, "anew") as log:
        log.append(messages_of(numbered(20)))
    with pytest.raises(DataError, match=r"partition 0: ends at message \d+, but .*up to 1,000"):
        log.cuts({"0": 1000}, 0, 1)
    with pytest.raises(DataError, match=r"partition 1: ends at .*was made again.*another folder"):
        list(log.between(1, {}, {"1": 1000}))


JSON = parse(
    JsonMessages,
    {
        "request_id": "id",
        "kind": "clicked",
        "columns": {
            "session_id": None,
            "timestamp": None,
            "sparse": [{"name": "item", "num_ids": 5000}],
        },
    },
    "messages",
)


def produce_json(brokers: str, count: int) -> tuple[list[int], list[int]]:
    """Requests in one topic and clicks in another, by clients that know nothing of ours: keys are
    texts. The times of requests, and which of them have clicks."""
    other = kafka.Producer({"bootstrap.servers": brokers})
    draws = np.random.default_rng(0)
    times, clicked = [], []
    for n in range(count):
        user, time = f"user-{n % 37}", 1_000_000 + 50 * n
        where = {"key": user.encode(), "partition": n % 37 % SHARDS}
        shown = {"id": f"r{n}", "item": n, "page": {"lang": "de"}}
        other.produce("json-shown", json.dumps(shown).encode(), timestamp=time, **where)
        times.append(time)
        clicked.append(int(draws.random() < 0.3))
        if clicked[-1]:
            click = json.dumps({"id": f"r{n}", "clicked": True}).encode()
            later = time + int(draws.integers(0, 500))
            other.produce("json-clicks", click, timestamp=later, **where)
    for shard in range(SHARDS):  # by which both topics come past what is read
        end = {"timestamp": 2_000_000, "partition": shard, "key": b"end"}
        other.produce("json-shown", json.dumps({"id": f"end{shard}", "item": 0}).encode(), **end)
        other.produce("json-clicks", b'{"id": "none", "clicked": 1}', **end)
    assert other.flush(60) == 0
    return times, clicked


def test_requests_and_clicks_of_others_lie_in_two_topics(brokers, tmp_path):
    times, clicked = produce_json(brokers, 600)
    options = {"shards": SHARDS, "timeout_s": 60, "topic": ("json-shown", "json-clicks")}
    log = build_kafka(KafkaConfig(servers=brokers, **options), Context())
    join = JoinConfig(window_ms=1_000, disorder_ms=2_000)
    logged = LoggedConfig(messages=JSON, join=join)
    report = JoinReport()
    streams = joined(log, logged.decoder(log.route), join, report)
    rows = [row for stream in streams for table in stream for row in table.to_pylist()]
    found = {row["item"][0]: row for row in rows if row["timestamp"] < 2_000_000}
    assert [found[n]["label"] for n in range(600)] == clicked
    assert [found[n]["timestamp"] for n in range(600)] == times
    assert len({row["session_id"] for row in found.values()}) == 37
    assert (report.late_events, report.orphan_events) == (0, SHARDS)

    growing = GrowingLogConfig(
        messages=JSON, join=join, origin=1_000_000, period_ms=9_000, until=1_030_000
    )
    for folder in ("one", "other"):
        context = Context(folder=tmp_path / folder, neighbours={"log": log})
        data = build_growing_log(growing, context)
        periods = [data.period(number) for number in range(4)]
        assert data.period(4) is None
        chunks = [[*period.chunks(split)] for period in periods for split in SPLITS]
        seen = [row for one in chunks for chunk in one for row in chunk.to_pylist()]
        assert {row["item"][0]: row for row in seen} == found
        assert len(seen) == 600
        for period in periods:
            period.verify()
    with pytest.raises(CapabilityError, match="can only be read"):
        log.append(messages_of(numbered(1)))


def test_a_message_that_cannot_be_read_is_named_with_its_partition_and_offset(brokers, tmp_path):
    log = opened(brokers, "misread")
    other = kafka.Producer({"bootstrap.servers": brokers})
    for number, text in enumerate([b'{"id": 1, "clicked": 1}'] * 5 + [b"{"]):
        other.produce("misread", text, b"me", partition=2, timestamp=1_000_000 + number)
    assert other.flush(60) == 0
    where = r"misread, partition 2, from offset 0 on, message 6: a message of time 1000005 "
    logged = LoggedConfig(messages=JSON)
    streams = joined(log, logged.decoder(log.route), logged.join, JoinReport())
    with pytest.raises(DataError, match=where):
        [*streams[2]]
    ends = {"2": 6}
    period = LogPeriod(
        GrowingLogConfig(messages=JSON, origin=1_000_000),
        log,
        PeriodManifest(
            number=0,
            begins={},
            ends=ends,
            next=ends,
            messages=6,
            digest="",
            log="",
            last={},
            before="",
        ),
        lambda number: {},
    )
    with pytest.raises(DataError, match=where):
        [*period.chunks("train")]


def test_tables_of_a_topic_that_others_write_to_stay_those_of_its_first_look(brokers, tmp_path):
    """Ranks, workers and a resume ask for them one after the other."""
    with opened(brokers, "meanwhile") as log:
        log.append(messages_of(numbered(50)))

    def looked(folder: str = "data") -> Snapshot:
        return Snapshot(opened(brokers, "meanwhile"), tmp_path / folder)

    first = looked().fingerprint()
    with opened(brokers, "meanwhile") as log:
        log.append(messages_of(numbered(30, first=50)))
    with pytest.warns(NoticeWarning, match=r"30 messages came after .*remove .*ends-.*json"):
        assert looked().fingerprint() == first
    other = looked("other")
    assert sorted(everything(other)) == sorted(numbered(80))
    assert other.fingerprint() != first
    with pytest.warns(NoticeWarning, match="are not read"):
        assert sorted(everything(looked())) == sorted(numbered(50))
    # A topic that was made anew has other messages there, or fewer.
    (noted,) = (tmp_path / "other").glob("ends-*.json")
    for place, digest in ((10, "0123456789abcdef"), (10**6, "")):
        ends = {str(shard): [place, digest] for shard in range(SHARDS)}
        noted.write_text(digested("ends", ends))
        assert looked("other").fingerprint() == other.fingerprint()


def test_tables_of_one_topic_are_not_those_of_another_that_ends_alike(brokers, tmp_path):
    for topic in ("alike", "alike-too"):
        with opened(brokers, topic) as log:
            log.append(messages_of(numbered(20)))
    found = [
        Snapshot(opened(brokers, topic), tmp_path / topic).fingerprint()
        for topic in ("alike", "alike-too", "alike")
    ]
    assert found[0] == found[2] != found[1]


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


def test_a_period_closes_without_quiet_partitions(brokers, tmp_path):
    """By one of which a message comes later, and is late."""
    columns = {"session_id": None, "timestamp": None, "sparse": [{"name": "item", "num_ids": 9}]}
    messages = parse(JsonMessages, {"columns": columns}, "messages")
    growing = GrowingLogConfig(messages=messages, origin=0, period_ms=1_000)

    def send(partition: int, *times: int) -> None:
        other = kafka.Producer({"bootstrap.servers": brokers})
        for time in times:
            where = {"partition": partition, "timestamp": time, "key": b"me"}
            other.produce("quiet", json.dumps({"item": 1, "label": time % 2}).encode(), **where)
        assert other.flush(60) == 0

    waiting = opened(brokers, "quiet")
    send(0, 1, 2, 1_500, 62_000)
    send(1, 3)
    log = opened(brokers, "quiet", quiet_ms=1_000)
    eager = build_growing_log(growing, Context(folder=tmp_path / "a", neighbours={"log": waiting}))
    with pytest.raises(NotClosed, match=r"quiet, partition 1 is at 3; .*`log\.quiet_ms`"):
        eager.period(0)
    data = build_growing_log(growing, Context(folder=tmp_path / "b", neighbours={"log": log}))
    first = data.period(0)
    with pytest.raises(NotClosed):
        data.period(1)
    send(1, 4, 1_600)
    send(0, 63_000)
    found = [
        [
            row["timestamp"]
            for split in SPLITS
            for one in period.chunks(split)
            for row in one.to_pylist()
        ]
        for period in (first, data.period(1))
    ]
    assert [sorted(times) for times in found] == [[1, 2, 3], [1_500, 1_600]]
    first.verify()
    data.period(1).prepare(tmp_path / "tables")
    assert data.period(1).counts(tmp_path / "tables")["late_requests"] == 1


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
    other = LogPeriod(growing, log, manifest, lambda number: {})
    with pytest.raises(DataError, match="messages lie there now, with digest"):
        other.verify()
    with pytest.raises(DataError, match="messages lie there now, with digest"):
        other.prepare(tmp_path / "tables")
    assert not [*(tmp_path / "tables").glob("*/")]


ITEMS = parse(
    JsonMessages,
    {
        "columns": {
            "session_id": None,
            "timestamp": None,
            "sparse": [{"name": "item", "num_ids": 9}],
        }
    },
    "messages",
)
SECONDS = GrowingLogConfig(
    messages=ITEMS, join=JoinConfig(disorder_ms=0), origin=0, period_ms=1_000
)
"""Periods of a second."""


def send_items(brokers: str, topic: str, *times: int, size: int = 0, item: int = 1) -> None:
    """A message of each of these times to each partition, of so many bytes more."""
    other = kafka.Producer({"bootstrap.servers": brokers})
    text = json.dumps({"item": item, "label": 1, "more": "x" * size}).encode()
    for time in times:
        for partition in range(SHARDS):
            other.produce(topic, text, timestamp=time, partition=partition, key=b"me")
    assert other.flush(60) == 0


def test_messages_that_were_deleted_before_they_were_read_are_an_error(brokers, tmp_path):
    """Also where a run may begin without those that were deleted before it."""
    send_items(brokers, "late", *range(1, 9), size=800_000)  # the first of which are deleted

    def seconds(folder: str, *, may_lack: bool = True) -> GrowingLogDataset:
        log = opened(brokers, "late", may_lack=may_lack)
        return build_growing_log(
            SECONDS, Context(folder=tmp_path / folder, neighbours={"log": log})
        )

    send_items(brokers, "late", 1_500, 2_500)
    with pytest.raises(DataError, match=r"its first \d messages are deleted.*`may_lack: true`"):
        seconds("strict", may_lack=False).period(0)
    data = seconds("one")
    period = data.period(0)
    begun = period.manifest.begins["0"]
    assert 0 < begun < 8
    assert sum(chunk.num_rows for chunk in period.chunks("train")) == SHARDS * (8 - begun)
    send_items(brokers, "late", *range(2_600, 2_620), size=800_000)
    message = r"partition 0: messages 8 to \d+ are deleted .*still to be read: .*another folder"
    for again in (data, seconds("one")):
        with pytest.raises(DataError, match=message):
            again.period(1)
    # No table lacks what the period had when it closed.
    with pytest.raises(DataError, match=rf"partition 0: messages {begun} to \d+ are deleted"):
        period.prepare(tmp_path / "tables")
    assert not [*(tmp_path / "tables").glob("*/")]


def test_a_period_whose_messages_were_deleted_once_it_was_read_is_gone_on_with(brokers, tmp_path):
    opened(brokers, "read")
    send_items(brokers, "read", *range(1, 5), size=800_000)
    send_items(brokers, "read", *range(1_001, 1_003), 2_500)

    def seconds() -> GrowingLogDataset:
        context = Context(folder=tmp_path, neighbours={"log": opened(brokers, "read")})
        return build_growing_log(SECONDS, context)

    period = seconds().period(0)
    rows = period.prepare(tmp_path / "tables").train.num_rows
    send_items(brokers, "read", *range(2_600, 2_604), size=800_000)
    again = seconds().period(0)
    with pytest.raises(DataError, match=r"partition 0: messages 0 to \d are deleted"):
        [*again.chunks("train")]
    again.verify()
    assert again.fingerprint() == period.fingerprint()
    assert again.prepare(tmp_path / "tables").train.num_rows == rows
    assert seconds().period(1) is not None


def test_periods_of_another_log_are_not_gone_on_with(brokers, tmp_path):
    """As where a folder's topic is another cluster's now, or was made anew."""
    client = kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none"})
    (found,) = client.list_topics("moved", timeout=60).brokers.values()
    others = f"{found.host}:{found.port}"
    opened(brokers, "moved")
    send_items(brokers, "moved", 1, 2, 1_500, 2_500, 3_500)
    send_items(others, "moved", 1, 2, 1_500, 2_500, 3_500, item=2)

    def seconds(servers: str) -> GrowingLogDataset:
        log = opened(servers, "moved")
        return build_growing_log(SECONDS, Context(folder=tmp_path, neighbours={"log": log}))

    digests = [seconds(brokers).period(number).fingerprint() for number in (0, 1)]
    message = r"periods-.*: its periods were not made from moved as .*Where period 1 closed, in "
    for number in (0, 1, 2):
        with pytest.raises(DataError, match=message + r"part '0' other messages lie from place"):
            seconds(others).period(number)
    assert [seconds(brokers).period(number).fingerprint() for number in (0, 1)] == digests
    # A run that has looked already is told when the next period closes.
    data = seconds(brokers)
    assert data.period(1).fingerprint() == digests[1]
    data._log = opened(others, "moved")
    with pytest.raises(DataError, match=message):
        data.period(2)
    del client  # and its brokers
    data._log._topics.timeout_s = 2.0
    with pytest.raises(CapabilityError, match=r"moved, partition 0: .*that the brokers run"):
        data.period(2)
