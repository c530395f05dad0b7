"""Rung 2 (drawn): periods of a log that grows are the same whoever looks when, and lose nothing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recd_dedup import recd_dataset
from recd_dedup.log.growing_log import GrowingLogConfig, GrowingLogDataset, build_growing_log
from recd_dedup.log.join import JoinConfig
from recd_dedup.log.replay import Replay, ReplayConfig, chunks_of
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_plugins.data.dataset import SPLITS
from recd_plugins.data.growing import NotClosed, closed_period
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context
from recd_plugins.testing.conformance import check_record

SESSIONS = SessionsConfig(samples=1_200, concurrent_sessions=40)
JOIN = JoinConfig(window_ms=60_000, disorder_ms=5_000)
REPLAY = ReplayConfig(
    delay_ms=60_000,
    redelivery_ms=4_000,
    duplicate_requests=0.05,
    duplicate_events=0.1,
    lost_requests=0.03,
)
PERIODS = 5


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return pa.concat_tables(Sessions(SESSIONS).chunks("train")).sort_by("timestamp")


@pytest.fixture(scope="module")
def messages(rows) -> pa.RecordBatch:
    chunks = (rows.slice(first, 100) for first in range(0, rows.num_rows, 100))
    return pa.concat_batches([*Replay(SESSIONS.schema, REPLAY).messages(chunks)])


def opened(folder: Path) -> ZstdShards:
    config = ZstdShardsConfig(shards=3, fsync="never", block_bytes=20_000)
    return ZstdShards(config, folder / "log")


def periods_of(log: object, folder: Path, rows: pa.Table, **options) -> GrowingLogDataset:
    times = rows["timestamp"].to_numpy()
    config = GrowingLogConfig(
        schema=SESSIONS.schema,
        join=JOIN,
        origin=int(times.min()),
        period_ms=int(np.ptp(times)) // PERIODS + 1,
        ends_when_sealed=True,
        **options,
    )
    return build_growing_log(config, Context(folder=folder, neighbours={"log": log}))


def every(dataset: GrowingLogDataset) -> Iterator[tuple[str, dict[str, pa.Table]]]:
    """The periods up to the end: the digest of each, and its splits."""
    number = 0
    while (period := dataset.period(number)) is not None:
        splits = {split: pa.concat_tables(period.chunks(split)) for split in SPLITS}
        yield period.fingerprint(), splits
        number += 1


def write(
    folder: Path, messages: pa.RecordBatch, seed: int, look: Callable[[], object], *, kill: bool
) -> None:
    """Append the messages by two writers, with flushes and looks as they are drawn; one of the two
    may be killed, and another one takes its place."""
    draw = np.random.default_rng(seed)
    writers = [opened(folder), opened(folder)]
    cuts = np.sort(draw.integers(10, messages.num_rows, 40)).tolist()
    for number, (begin, end) in enumerate(pairwise([0, *cuts, messages.num_rows])):
        for turn, writer in enumerate(writers):
            writer.append(messages.take(pa.array(range(begin + turn, end, 2), pa.int64())))
            if draw.random() < 0.5:
                writer.flush()
        if draw.random() < 0.5:
            look()
        if kill and number == 20:
            writers[0].flush()
            writers[0]._end_marks()  # as the end of a process does: no lock is held any more
            writers[0] = opened(folder)
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_period_is_the_same_whoever_looks_when(tmp_path, rows, messages, seed, kill):
    eager = periods_of(opened(tmp_path), tmp_path / "eager", rows)

    seen = 0

    def look() -> None:
        nonlocal seen
        with suppress(NotClosed):
            while eager.period(seen) is not None:
                seen += 1

    write(tmp_path, messages, seed, look, kill=kill)
    assert seen > 1  # while it was written
    late = periods_of(opened(tmp_path), tmp_path / "late", rows)
    theirs, ours = list(every(eager)), list(every(late))
    assert len(theirs) == len(ours) >= PERIODS
    for (their_digest, their_splits), (our_digest, our_splits) in zip(theirs, ours, strict=True):
        assert their_splits == our_splits
        # One who looks later knows of a writer that began later.
        assert kill or their_digest == our_digest


def test_each_request_is_in_one_period_or_late(tmp_path, rows, messages):
    """Every message is counted once, and samples are the requests' own."""
    codec = Replay(SESSIONS.schema, REPLAY).codec
    heads, times = codec.heads(messages), messages["timestamp"].to_numpy()
    requests = np.flatnonzero(~heads.events)
    # These two come when their periods have closed, at the log's end.
    held = np.array([requests[5], requests[300]])
    order = pa.array([*np.setdiff1d(np.arange(messages.num_rows), held), *held])
    write(tmp_path, messages.take(order), 7, lambda: None, kill=False)
    dataset = periods_of(opened(tmp_path), tmp_path, rows)
    counts: Counter[str] = Counter()
    number, seen = 0, []
    while (period := dataset.period(number)) is not None:
        folder = tmp_path / "tables" / str(number)
        tables = period.prepare(folder)
        counts.update(period.counts(folder))
        for split in SPLITS:
            seen += [
                time
                for chunk in chunks_of(tables[split])
                for time in chunk["timestamp"].to_pylist()
            ]
        number += 1
    distinct = {heads.ids[n]: times[n] for n in requests[::-1]}
    for n in held:  # unless they were sent twice
        if not np.isin(heads.ids[n], heads.ids[np.setdiff1d(requests, held)]):
            del distinct[heads.ids[n]]
    assert sorted(seen) == sorted(distinct.values())
    assert counts["late_requests"] == len(held)
    assert counts["samples"] == len(distinct)
    assert counts["samples"] + counts["duplicate_requests"] + len(held) == len(requests)
    assert counts["events"] == heads.events.sum()
    ends = ("positives", "duplicate_events", "late_events", "orphan_events")
    assert sum(counts[name] for name in ends) == counts["events"]
    assert counts["positives"] > 0 < counts["orphan_events"]


def test_a_period_waits_for_a_silent_writer_and_says_for_whom(tmp_path, rows, messages):
    busy, silent = opened(tmp_path), opened(tmp_path)
    silent.append(messages.slice(0, 1))
    busy.append(messages.slice(1))
    busy.flush()
    dataset = periods_of(opened(tmp_path), tmp_path, rows, patience=0.01)
    with pytest.raises(NotClosed, match=f"writer {silent._writer} is yet to flush"):
        dataset.period(0)
    with pytest.raises(DataError, match=r"period 0 is waited for, .* 0.01 s \(dataset.patience\)"):
        closed_period(dataset, 0)
    silent.close()
    assert dataset.period(0) is not None
    busy.close()


def test_a_log_that_was_changed_is_refused(tmp_path, rows, messages):
    write(tmp_path, messages, 0, lambda: None, kill=False)
    dataset = periods_of(opened(tmp_path), tmp_path, rows)
    first, second = dataset.period(0), dataset.period(1)
    assert first is not None is not second is not None
    first.verify()
    (tmp_path / "log" / next(iter(second.manifest.ends))).unlink()
    again = periods_of(opened(tmp_path), tmp_path, rows).period(1)
    assert again is not None
    with pytest.raises(DataError, match=r"below the places at which period 1 closed .* not there"):
        again.verify()


def test_it_keeps_a_datasets_contract(tmp_path, rows, messages):
    write(tmp_path, messages, 0, lambda: None, kill=False)
    config = dataclasses.asdict(periods_of(opened(tmp_path), tmp_path, rows).config)
    options = {name: config[name] for name in ("origin", "period_ms", "ends_when_sealed")}
    options |= {"schema": SESSIONS.schema, "join": JOIN}
    context = Context(folder=tmp_path, neighbours={"log": opened(tmp_path)})
    (record,) = (one for one in recd_dataset() if one.grows)
    check_record(record, options=options, context=context)


def test_a_log_that_cannot_grow_is_refused():
    config = GrowingLogConfig(schema=SESSIONS.schema, origin=0)
    with pytest.raises(RegistryError, match="has no `cuts` and `between`"):
        build_growing_log(config, Context(neighbours={"log": object()}))
