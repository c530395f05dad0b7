"""Rung 2 (drawn): what several writers add, late and twice, becomes the samples of a plain join."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from drawn import at_most

from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.growing_log import GrowingLogConfig, GrowingLogDataset, build_growing_log
from recd_dedup.log.join import JoinConfig
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_plugins.data.dataset import SPLITS
from recd_plugins.data.schema import IDS, Schema, SparseFeature
from recd_plugins.slots import Context

SCHEMA = Schema(dense=("price",), sparse=(SparseFeature(name="item", num_ids=10**6),))
CODEC = MessageCodec(SCHEMA)
ORIGIN = 1_700_000_000_000


@dataclass(frozen=True)
class Message:
    """A request or an event of a request, with the time that it names."""

    of: int
    session: int
    time: int
    event: bool

    def record(self) -> pa.RecordBatch:
        ids, sessions, times = (np.array([one]) for one in (self.of, self.session, self.time))
        if self.event:
            return CODEC.events(ids, sessions, times)
        item, price = pa.array([[self.of]], IDS), pa.array([0.0], pa.float32())
        row = {"session_id": sessions, "timestamp": times, "price": price, "item": item}
        return CODEC.requests(ids, pa.table(row))


def drawn(seed: int) -> tuple[JoinConfig, int, list[Message]]:
    """How messages are joined, the length of a period, and all messages as they arrive."""
    draw = random.Random(seed)
    window, disorder = draw.choice([0, 50, 300, 2000]), draw.choice([0, 10, 100])
    sent: list[tuple[int, Message]] = []

    def send(of: int, session: int, time: int, *, event: bool) -> None:
        for _ in range(draw.choice([1, 1, 1, 2])):
            message = Message(of, session, time, event)
            sent.append((message.time + draw.choice([0, draw.randrange(disorder + 1)]), message))

    for number in range(draw.choice([5, 40, 100])):
        time, session = ORIGIN + draw.randrange(3000), draw.randrange(5)
        if draw.random() > 0.05:
            send(number, session, time, event=False)
        for _ in range(draw.randrange(3)):
            after = [0, window, window + 1, draw.randrange(window + 1), -disorder, -disorder - 1]
            send(number, session, time + draw.choice(after), event=True)
    draw.shuffle(sent)
    sent.sort(key=lambda one: one[0])
    config = JoinConfig(window_ms=window, disorder_ms=disorder)
    return config, draw.choice([100, 500, 1500]), [message for _, message in sent]


def written(folder: Path, messages: list[Message], seed: int) -> ZstdShards:
    """The log, by up to three writers whose blocks are of any size."""
    draw = random.Random(seed)
    shards = draw.choice([1, 2])

    def opened() -> ZstdShards:
        size = draw.choice([1, 100, 1000, 20_000])
        config = ZstdShardsConfig(shards=shards, fsync="never", block_bytes=size)
        return ZstdShards(config, folder / "log")

    writers = [opened() for _ in range(draw.choice([1, 2, 3]))]
    for message in messages:
        writer = draw.choice(writers)
        writer.append(message.record())
        if draw.random() < 0.15:
            writer.flush()
    for writer in writers:
        writer.close()
    return opened()


def plainly(messages: list[Message], join: JoinConfig) -> tuple[dict[int, tuple[int, float]], int]:
    """By its id, the time and the label of each request; and how many events are of one."""
    times = {one.of: one.time for one in messages if not one.event}
    of = Counter(
        one.of
        for one in messages
        if one.event
        and one.of in times
        and -join.disorder_ms <= one.time - times[one.of] <= join.window_ms
    )
    return {one: (time, float(of[one] > 0)) for one, time in times.items()}, of.total()


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_samples_and_counts_are_those_of_a_plain_join(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + at_most(4)):
        join, period_ms, messages = drawn(seed)
        config = GrowingLogConfig(
            schema=SCHEMA, join=join, origin=ORIGIN, period_ms=period_ms, ends_when_sealed=True
        )
        log = written(tmp_path / str(seed), messages, seed)
        context = Context(folder=tmp_path / str(seed), neighbours={"log": log})
        samples, counts = taken(build_growing_log(config, context), tmp_path / str(seed))
        expected, of_requests = plainly(messages, join)
        assert samples == expected, seed
        assert counts["events"] == sum(one.event for one in messages), seed
        assert counts["positives"] + counts["duplicate_events"] == of_requests, seed
        others = counts["late_events"] + counts["orphan_events"] - counts["recovered_events"]
        assert others == counts["events"] - of_requests, seed


def taken(
    dataset: GrowingLogDataset, folder: Path
) -> tuple[dict[int, tuple[int, float]], Counter[str]]:
    """Each sample, which comes once, and what all periods counted."""
    samples: dict[int, tuple[int, float]] = {}
    counts: Counter[str] = Counter()
    number = 0
    while (period := dataset.period(number)) is not None:
        tables = period.prepare(folder / f"table-{number}")
        stripes = (tables[split] for split in SPLITS)
        for row in (row for t in stripes for s in t.stripes for row in t.read(s).to_pylist()):
            (item,) = row["item"]
            assert item not in samples
            samples[item] = row["timestamp"], row["label"]
        counts.update(period.counts(folder / f"table-{number}"))
        number += 1
    return samples, counts
