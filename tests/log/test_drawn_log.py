"""Rung 2 (drawn): what several writers add, late and twice, becomes the samples of a plain join.
What they add in any other way, until they are killed, is counted once."""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
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
from recd_plugins.data.growing import NotClosed
from recd_plugins.data.messages import LogRoute
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


def grown(
    opened: Callable[[], ZstdShards], messages: list[Message], seed: int, look: Callable[[], object]
) -> None:
    """The log, by writers whose clocks jump and who are killed, looked at now and then; the last
    one comes furthest."""
    draw = random.Random(seed)
    writers = [opened() for _ in range(draw.choice([1, 2, 3]))]
    ahead = [0] * len(writers)
    said: dict[Message, Message] = {}  # copies have one time
    for message in messages:
        n = draw.randrange(len(writers))
        if draw.random() < 0.03:
            ahead[n] = draw.choice([0, -1000, 400, 2500])
        at = dataclasses.replace(message, time=message.time + ahead[n])
        writers[n].append(said.setdefault(message, at).record())
        if draw.random() < 0.2:
            writers[n].flush()
        if draw.random() < 0.03:  # what waits for a block is lost, and a write is cut off
            for file in writers[n]._files.values():
                os.write(file._file, draw.choice([b"", b"RBLK", b"\0" * 40]))
            writers[n]._end_marks()
            writers[n] = opened()
        if draw.random() < 0.1:
            look()
    for writer in writers:
        writer.close()
    with opened() as log:
        log.append(Message(10**5, 0, max(one.time for one in messages) + 3000, event=True).record())


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


@pytest.mark.parametrize("seed", range(100, 103))
def test_a_log_that_grows_in_any_way_is_counted_once(seed: int, tmp_path: Path) -> None:
    join, period_ms, messages = drawn(seed)
    config = GrowingLogConfig(
        schema=SCHEMA, join=join, origin=ORIGIN, period_ms=5 * period_ms, ends_when_sealed=True
    )
    draw = random.Random(seed)
    route: LogRoute = draw.choice(["session", "message"])

    def opened() -> ZstdShards:
        size = draw.choice([1, 100, 1000])
        shards = ZstdShardsConfig(shards=2, route=route, fsync="never", block_bytes=size)
        return ZstdShards(shards, tmp_path / "log")

    def periods(folder: Path) -> GrowingLogDataset:
        """Those of a process that has just begun."""
        return build_growing_log(config, Context(folder=folder, neighbours={"log": opened()}))

    seen: list[str] = []

    def look() -> None:
        with suppress(NotClosed):
            while (period := periods(tmp_path).period(len(seen))) is not None:
                seen.append(period.fingerprint())

    grown(opened, messages, seed, look)
    samples, counts = taken(periods(tmp_path), tmp_path)
    assert [*digests(periods(tmp_path))][: len(seen)] == seen
    assert taken(periods(tmp_path), tmp_path / "again") == (samples, counts)
    late, later = (periods(tmp_path / name) for name in ("late", "later"))
    assert [*digests(late)] == [*digests(later)]
    whole = [batch for shard in range(2) for batch in opened().read(shard)]
    events = sum(int(CODEC.heads(batch).events.sum()) for batch in whole)
    requests = sum(batch.num_rows for batch in whole) - events
    names = ("samples", "duplicate_requests", "late_requests")
    assert sum(counts[name] for name in names) == requests
    assert counts["events"] == events


def digests(dataset: GrowingLogDataset) -> Iterator[str]:
    number = 0
    while (period := dataset.period(number)) is not None:
        yield period.fingerprint()
        number += 1


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
