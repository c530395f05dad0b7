"""Rung 2 (drawn, on librdkafka's in-process brokers): topics that others filled become the samples
of a plain join, however they are fetched, and whether they grow meanwhile."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recd_dedup.log.codec import id_of_bytes
from recd_dedup.log.growing_log import GrowingLogConfig, build_growing_log
from recd_dedup.log.join import JoinConfig
from recd_dedup.log.json_messages import JsonMessages
from recd_dedup.log.kafka import KafkaConfig, KafkaLog
from recd_dedup.log.logged_dataset import LoggedConfig, build_logged
from recd_plugins.api.data import SPLITS, NotClosed, Tables
from recd_plugins.config import parse
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.values import hashes
from recd_plugins.slots import Context

kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka (extra `kafka`)")

PARTITIONS = 4
"""What these brokers give a topic when somebody asks for it."""
ORIGIN = 1_700_000_000_000
SPAN = 4_000
"""The time in which requests are made, in ms."""
DISORDER = 200
Sample = tuple[int, float, int, tuple[int, ...], float]
"""Time, label, session, ids of items, price."""


@dataclass(frozen=True)
class Sent:
    """A message as its service sent it."""

    arrives: int
    time: int
    topic: int
    partition: int
    key: bytes | None
    value: bytes | None


@dataclass
class Topics:
    """What a seed has drawn, and what a plain join makes of it."""

    messages: JsonMessages
    join: JoinConfig
    route: str
    topics: int
    quiet: bool
    sent: list[Sent]
    samples: dict[int, Sample]
    events: int
    of_requests: int
    left_out: int


def drawn(seed: int) -> Topics:
    draw = random.Random(seed)
    route, topics = draw.choice(["session", "message"]), draw.choice([1, 2])
    keyed = route == "session" or draw.random() < 0.5
    window, skip = draw.choice([0, 300, 1500]), draw.random() < 0.7
    columns = {
        "session_id": None if keyed else "user.id",
        "timestamp": None,
        "dense": [{"name": "n", "nulls": {"value": -2}}, {"name": "price", "nulls": {"value": -1}}],
        "sparse": [{"name": "page.items", "num_ids": 10_000, "ids": "hash"}],
    }
    options = {
        "columns": columns,
        "request_id": "request.id",
        "kind": "type",
        "requests": ["shown", 7],
        "events": ["click", True],
        "malformed": "skip" if skip else "raise",
    }
    found = Topics(
        messages=parse(JsonMessages, options, "messages"),
        join=JoinConfig(window_ms=window, disorder_ms=DISORDER),
        route=route,
        topics=topics,
        quiet=draw.random() < 0.3,
        sent=[],
        samples={},
        events=0,
        of_requests=0,
        left_out=0,
    )
    users = [draw.choice([f"nutzer-ü{n}", n * 10**17, -n, f"{n}"]) for n in range(9)]

    def send(value: bytes | None, time: int, user: Any, topic: int) -> int:
        """How often it comes: what is sent again has the time that it had."""
        times = draw.choice([1, 1, 1, 2])
        for _ in range(times):
            place = users.index(user) if route == "session" else draw.randrange(PARTITIONS)
            arrives = time + draw.choice([0, draw.randrange(DISORDER)])
            key = str(user).encode() if keyed else draw.choice([None, b"", b"host"])
            found.sent.append(Sent(arrives, time, topic, place % PARTITIONS, key, value))
        return times

    for number in range(draw.choice([20, 150, 300])):
        time, user = ORIGIN + draw.randrange(SPAN), draw.choice(users)
        of = draw.choice([number, f"r-{number}", 2**70 + number, -(10**18) - number, f"ñ{number}"])
        items: Any = draw.choice([number, f"sku-{number}", 2.0, 2**63 + number, [], None])
        listed = [*(items if isinstance(items, list) else [items]), "x", number]
        items = draw.choice([items, listed, {"not": "an id"} if skip else items])
        price = draw.choice([1.5, number, True, None, "dear" if skip else 0])
        shown = {"type": draw.choice(["shown", 7]), "request": {"id": of}, "user": {"id": user}}
        shown |= {"page": {"items": items}, "price": price, "n": number, "text": '世界\n"{'}
        if draw.random() < 0.1:
            del shown["page"]
        fits = not isinstance(price, str) and not (isinstance(items, dict) and "page" in shown)
        lost = draw.random() < 0.05
        if not lost:
            copies = send(_text(shown, draw), time, user, 0)
            found.left_out += 0 if fits else copies
        had = False
        for _ in range(draw.randrange(3)):
            ends = [0, window, window + 1, draw.randrange(window + 1), -DISORDER, -DISORDER - 1]
            after = draw.choice(ends)
            event = {"type": draw.choice(["click", True]), "request": {"id": _same(of, draw)}}
            copies = send(_text(event, draw), time + after, user, topics - 1)
            found.events += copies
            if fits and not lost and -DISORDER <= after <= window:
                found.of_requests += copies
                had = True
        if fits and not lost:
            session = id_of_bytes(str(user).encode()) if keyed else _session(user)
            ids = [] if "page" not in shown else items if isinstance(items, list) else [items]
            kept = tuple(_hash(one) for one in ids if one is not None)
            cost = -1.0 if price is None else float(price)
            found.samples[number] = (time, float(had), session, kept, cost)
        if draw.random() < 0.1:
            odd = [None, b"", b'{"type": "dwell", "request": {"id": 1}}', b'{"request": {"id": 1}}']
            odd += [b"{", b"[]", b'{"type": "click"}', b"\xff\xfe", b"[" * 5000] if skip else []
            found.left_out += send(draw.choice(odd), time, user, draw.randrange(topics))
    draw.shuffle(found.sent)
    found.sent.sort(key=lambda one: one.arrives)
    return found


def _text(value: Any, draw: random.Random) -> bytes:
    return json.dumps(value, ensure_ascii=draw.random() < 0.5).encode()


def _same(of: Any, draw: random.Random) -> Any:
    """A request's id as another service writes it."""
    return str(of) if draw.random() < 0.5 else of


def _session(user: Any) -> int:
    if isinstance(user, int):
        return user
    found = int(hashes(pa.array([user]), Spot("", ""))[0])
    return (found + 2**63) % 2**64 - 2**63


def _hash(item: Any) -> int:
    text = str(int(item) if isinstance(item, float) else item)
    return int(hashes(pa.array([text]), Spot("", ""))[0] % 10_000)


class Writer:
    """The services of a seed: they fill topics of its own."""

    def __init__(self, brokers: str, seed: int, topics: Topics) -> None:
        self.names = tuple(f"drawn-{seed}-{n}" for n in range(topics.topics))
        self._producer = kafka.Producer({"bootstrap.servers": brokers})
        for name in self.names:
            self._producer.list_topics(name, timeout=60)
        self._topics = topics

    def write(self, messages: list[Sent]) -> None:
        for one in messages:
            self._producer.produce(
                self.names[one.topic],
                one.value,
                one.key,
                partition=one.partition,
                timestamp=one.time,
            )
        assert self._producer.flush(60) == 0

    def end(self) -> int:
        """Come so far that all periods close; in one partition, if the others may be quiet."""
        every = [(n, part) for n in range(len(self.names)) for part in range(PARTITIONS)]
        places = every[-1:] if self._topics.quiet else every
        time = ORIGIN + 20 * SPAN
        self.write([Sent(time, time, *place, b"end", b'{"type": "end"}') for place in places])
        return len(places)


def rows_of(tables: Tables) -> list[Any]:
    return [
        row
        for split in SPLITS
        for stripe in tables[split].stripes
        for row in tables[split].read(stripe).to_pylist()
    ]


def samples_of(rows: list[Any], session: str) -> dict[int, Sample]:
    found = {}
    for row in rows:
        key = (row["timestamp"], row["label"], row[session], tuple(row["page.items"]), row["price"])
        assert row["n"] not in found
        found[int(row["n"])] = key
    return found


@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")
@pytest.mark.parametrize("seed", [5, 13, 24, 34])
def test_topics_become_the_samples_of_a_plain_join(
    seed: int, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(seed, brokers, tmp_path, monkeypatch)


def check(seed: int, brokers: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, topics = random.Random(seed), drawn(seed)
    block = draw.choice([3, 40, 1024])
    monkeypatch.setattr("recd_dedup.log.kafka.BLOCK", block)
    monkeypatch.setattr("recd_dedup.log.kafka_topics.AT_ONCE", block)
    writer = Writer(brokers, seed, topics)

    def opened() -> KafkaLog:
        client = {"fetch.message.max.bytes": draw.choice([1000, 1 << 20]), "check.crcs": True}
        return KafkaLog(
            KafkaConfig(
                servers=brokers,
                topic=writer.names,
                shards=PARTITIONS,
                route=topics.route,
                quiet_ms=SPAN if topics.quiet else None,
                timeout_s=60,
                client=client,
            )
        )

    half = 0 if topics.quiet else draw.randrange(len(topics.sent))
    writer.write(topics.sent[:half])
    period_ms = draw.choice([500, 1_300, SPAN])
    common = {"messages": topics.messages, "join": topics.join}
    growing = GrowingLogConfig(origin=ORIGIN, period_ms=period_ms, until=ORIGIN + SPAN, **common)
    looked = 0
    early = build_growing_log(growing, Context(folder=folder, neighbours={"log": opened()}))
    try:
        while half and early.period(looked) is not None:
            looked += 1
    except NotClosed:
        pass
    writer.write(topics.sent[half:])
    ends = writer.end()

    logged, session = LoggedConfig(**common), topics.messages.schema.session_id
    twice = []
    for n in range(2):
        data = build_logged(logged, Context(folder=folder / str(n), neighbours={"log": opened()}))
        twice.append(rows_of(data.prepare(folder / f"logged-{n}")))
        assert samples_of(twice[-1], session) == topics.samples, seed
        report = data.reports["train"]
        assert report.events == topics.events, seed
        assert report.positives + report.duplicate_events == topics.of_requests, seed
        assert report.late_events + report.orphan_events == topics.events - topics.of_requests, seed
        assert report.left_out == topics.left_out + ends, seed
        assert not report.disordered, seed
    assert twice[0] == twice[1], seed

    twice = []
    for n, data in enumerate(
        [
            early,
            build_growing_log(growing, Context(folder=folder / "b", neighbours={"log": opened()})),
        ]
    ):
        rows, counts, number = [], 0, 0
        while (period := data.period(number)) is not None:
            tables = folder / f"growing-{n}-{number}"
            rows += rows_of(period.prepare(tables))
            found = period.counts(tables)
            counts += found["positives"] + found["duplicate_events"]
            assert found["late_requests"] == 0, seed
            period.verify()
            number += 1
        assert samples_of(rows, session) == topics.samples, seed
        assert counts == topics.of_requests, seed
        twice.append(rows)
    assert twice[0] == twice[1], seed
