"""Rung 2 (drawn): periods of a log that grows are the same whoever looks when, and lose nothing."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recd_dedup import recd_dataset
from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.growing_log import GrowingLogConfig, GrowingLogDataset, build_growing_log
from recd_dedup.log.join import JoinConfig
from recd_dedup.log.replay import Replay, ReplayConfig
from recd_dedup.log.shard_file import Sealed, ShardFile
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_plugins.data.dataset import SPLITS
from recd_plugins.data.growing import NotClosed, closed_period
from recd_plugins.data.reader.period_loader import OpenPeriod, PeriodLoader
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import Context
from recd_plugins.stack import load
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


@pytest.mark.parametrize(("seed", "kill"), [(0, False), (1, True), (2, False), (3, True)])
@pytest.mark.slow
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
                for chunk in tables[split].each_read()
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
    assert sum(counts[name] for name in ends) - counts["recovered_events"] == counts["events"]
    assert counts["positives"] > 0 < counts["orphan_events"]


def test_a_period_waits_for_a_silent_writer_and_says_for_whom(tmp_path, rows, messages):
    busy, *silent = (opened(tmp_path) for _ in range(6))
    for number, writer in enumerate(silent):
        writer.append(messages.slice(number, 1))
    busy.append(messages.slice(len(silent)))
    busy.flush()
    dataset = periods_of(opened(tmp_path), tmp_path, rows, patience=0.01)
    with pytest.raises(NotClosed, match=r"is yet to flush; .* and 2 more") as found:
        dataset.period(0)
    waits_for = (f"writer {writer._writer} is yet to flush" for writer in silent)
    assert found.value.so_far == tuple(sorted(waits_for))
    with pytest.raises(DataError, match=r"period 0 is waited for, .* 0.01 s \(dataset.patience\)"):
        closed_period(dataset, 0)
    for writer in silent:
        writer.close()
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
    with pytest.raises(DataError, match=r"before the places .* period 1 closed: .* is not there"):
        again.verify()
    read = again.manifest.ends
    log = opened(tmp_path)
    for shard in range(log.shards):
        assert not [*log.between(shard, read, read)]  # a file is opened for what is left of it


def test_periods_of_a_log_that_began_anew_are_not_gone_on_with(tmp_path, rows, messages):
    """Its folder was removed, and other writers came; the tables of the periods are there."""
    write(tmp_path, messages, 0, lambda: None, kill=False)
    first = periods_of(opened(tmp_path), tmp_path, rows)
    assert first.period(1) is not None
    shutil.rmtree(tmp_path / "log")
    assert periods_of(opened(tmp_path), tmp_path, rows).period(0) is not None  # it may come back
    write(tmp_path, messages, 1, lambda: None, kill=False)
    message = r"periods-.*: its periods were not made from .*Where period 1 .*it began anew.*"
    for dataset, number in ((first, 2), (periods_of(opened(tmp_path), tmp_path, rows), 0)):
        with pytest.raises(DataError, match=message + "another `folder`"):
            dataset.period(number)
    assert periods_of(opened(tmp_path), tmp_path / "other", rows).period(0) is not None


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


def test_an_event_may_be_earlier_than_its_request_which_is_the_next_periods(tmp_path, rows):
    codec, ids = MessageCodec(SESSIONS.schema), np.arange(rows.num_rows)
    sessions, times = rows["session_id"].to_numpy(), rows["timestamp"].to_numpy()
    middle = rows.num_rows // 2
    start = int(times[middle]) - 100
    requests = codec.requests(ids, rows)
    with opened(tmp_path) as log:
        log.append(requests.slice(0, middle))
        log.flush()
        log.append(requests.slice(middle))
    with opened(tmp_path) as log:
        for of, time in ((0, times[0] + 10), (middle, start - 500)):
            log.append(codec.events(ids[[of]], sessions[[of]], np.array([time])))
            log.flush()
    dataset = build_growing_log(
        GrowingLogConfig(
            schema=SESSIONS.schema,
            join=JoinConfig(window_ms=1_000, disorder_ms=1_000),
            origin=int(times[0]),
            period_ms=start - int(times[0]),
            ends_when_sealed=True,
        ),
        Context(folder=tmp_path, neighbours={"log": opened(tmp_path)}),
    )
    counts: Counter[str] = Counter()
    number = 0
    while (period := dataset.period(number)) is not None:
        folder = tmp_path / "tables" / str(number)
        period.prepare(folder)
        counts.update(period.counts(folder))
        number += 1
    assert counts["samples"] == rows.num_rows
    assert counts["positives"] == counts["events"] == 2
    assert not counts["late_events"] + counts["orphan_events"] + counts["late_requests"]


def test_a_time_far_ahead_of_the_clock_closes_no_period(tmp_path, rows, messages):
    one = np.array([1])
    with opened(tmp_path) as log:
        log.append(messages)
        log.append(MessageCodec(SESSIONS.schema).events(one, one, one * 10**15))  # us
    with pytest.raises(DataError, match=r"has the time 1000000000000000, .* Let the service"):
        periods_of(opened(tmp_path), tmp_path, rows).period(0)
    assert not [*tmp_path.glob("periods-*/period-*.json")]


def test_an_origin_or_a_time_in_seconds_is_told(tmp_path, rows, messages):
    """Millions of periods without rows would be gone through, or none would ever close."""
    begin = int(rows["timestamp"].to_numpy().min())
    with opened(tmp_path) as log:
        log.append(messages)

    def first(origin: int, folder: str = "log") -> object:
        log = ZstdShards(ZstdShardsConfig(shards=3), tmp_path / folder)
        config = GrowingLogConfig(schema=SESSIONS.schema, join=JOIN, origin=origin)
        return build_growing_log(
            config, Context(folder=tmp_path / str(origin), neighbours={"log": log})
        ).period(0)

    with pytest.raises(
        RegistryError, match=r"dataset\.origin: .* seems to be in s\. Write it in ms"
    ):
        first(begin // 1000)
    hour = 3_600_000
    with pytest.warns(
        NoticeWarning, match=r"period 0 begins at .*, and .* are 5,000 periods later"
    ):
        first(begin - 5_000 * hour)
    with opened(tmp_path / "s") as log:
        one = np.array([1])
        log.append(MessageCodec(SESSIONS.schema).events(one, one, one * (begin // 1000)))
    with pytest.raises(NotClosed, match=r"closes at .* seem to be in s, and must be in ms"):
        first(begin, "s/log")


@pytest.mark.slow
def test_files_that_a_full_disk_kept_from_being_sealed_are_read(
    tmp_path, rows, messages, monkeypatch
):
    with opened(tmp_path / "whole") as log:
        log.append(messages)
    log = opened(tmp_path / "full")
    log.append(messages)
    closed, close = [], ShardFile.close

    def close_one(file: ShardFile) -> Sealed:
        closed.append(file)
        if len(closed) == 2:
            raise OSError(errno.ENOSPC, "no room")
        return close(file)

    monkeypatch.setattr(ShardFile, "close", close_one)
    with pytest.raises(OSError, match="no room"):
        log.close()
    whole, full = (
        [splits for _, splits in every(periods_of(opened(folder), folder, rows))]
        for folder in (tmp_path / "whole", tmp_path / "full")
    )
    assert full == whole
    close(closed[1])
    log.close()


def test_a_position_at_a_periods_end_names_what_was_read():
    class Batches(list):
        def state_dict(self) -> dict[str, int]:
            return {}

    def opens(number: int) -> OpenPeriod:
        return OpenPeriod(Batches("ab"), f"digest {number}")

    loader = PeriodLoader(opens, lambda number: f"digest {number}")
    assert [*loader] == ["a", "b"]
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (1, 0)
    loader.load_state_dict(state)
    assert [*loader] == ["a", "b"]
    with pytest.raises(DataError, match=r"period 0 is not what it was .* digest 0, and is other"):
        PeriodLoader(opens, lambda number: "other").load_state_dict(state)


def registry_of(folder: Path, rows: pa.Table, messages: pa.RecordBatch) -> dict[str, object]:
    """Periods of a log that is written, each of whose tables is kept for one more."""
    write(folder, messages, 0, lambda: None, kill=False)
    config = periods_of(opened(folder), folder, rows).config
    growing = {"use": "growing_log", "keep": 1, "join": dataclasses.asdict(JOIN)}
    growing |= {"schema": json.loads(SESSIONS.schema.to_json()), "ends_when_sealed": True}
    growing |= {"origin": config.origin, "period_ms": config.period_ms}
    log = {"use": "zstd_shards", "folder": str(folder / "log"), "shards": 3}
    return {"plugins": ["recd_dedup"], "folder": str(folder), "log": log, "dataset": growing}


@pytest.mark.slow
def test_tables_that_a_killed_run_was_removing_are_whole_or_gone(
    tmp_path, rows, messages, monkeypatch
):
    registry = registry_of(tmp_path, rows, messages)

    def tables(number: int) -> tuple[int, ...]:
        periods = load(registry).periods
        found = periods.tables(periods.wait(number))
        assert periods.counts(number)["samples"]
        return tuple(found[split].num_rows for split in SPLITS)

    before = [tables(number) for number in range(5)]

    def killed(folder: Path, **_: object) -> None:
        min(folder.rglob("*.parquet")).unlink()
        raise KeyboardInterrupt

    periods = load(registry).periods
    with monkeypatch.context() as patched:
        patched.setattr("recd_plugins.registry.written_tables.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            periods.remove_before(4)
    assert [tables(number) for number in range(5)] == before
    load(registry).periods.remove_before(4)
    assert not [*tmp_path.glob(".*.removed")]


@pytest.mark.slow
def test_a_run_leaves_the_tables_that_another_run_reads(tmp_path, rows, messages, monkeypatch):
    registry = registry_of(tmp_path, rows, messages)
    ahead, behind = (load(registry).periods for _ in range(2))
    tables = []
    for number in range(5):
        period = ahead.wait(number)
        ahead.hold(number, period)
        tables.append(Path(ahead.tables(period).train.path).parent)
    behind.hold(1, behind.wait(1))
    ahead.remove_before(4)
    locks = [folder.with_name(f".{folder.name}.lock") for folder in tables]
    for paths in (tables, locks):
        assert [path.exists() for path in paths] == [True, True, False, True, True]
    behind.hold(3, behind.wait(3))
    behind.remove_before(3)
    for paths in (tables, locks):
        assert [path.exists() for path in paths] == [True, False, False, True, True]

    def removed_meanwhile(descriptor, kind):
        monkeypatch.undo()
        locks[4].unlink()
        fcntl.flock(descriptor, kind)

    period = behind.wait(4)
    monkeypatch.setattr("recd_plugins.registry.periods.fcntl.flock", removed_meanwhile)
    behind.hold(4, period)
    assert locks[4].exists()  # what is held is there, for others to find


SAME = """
from recd_plugins.api import Config, EtlRecord, hookimpl
from recd_plugins.api.data import write_table

class Same:
    def run(self, table, folder, progress):
        return write_table(folder, table.schema, map(table.read, table.stripes))

@hookimpl
def recd_etl():
    return [EtlRecord(name="same", summary="Same.", config=Config, build=lambda *_: Same())]
"""


def test_tables_of_periods_that_changed_code_has_written_are_told_once(tmp_path, rows, messages):
    write(tmp_path, messages, 0, lambda: None, kill=False)
    config = periods_of(opened(tmp_path), tmp_path, rows).config
    growing = {"use": "growing_log", "join": dataclasses.asdict(JOIN), "ends_when_sealed": True}
    growing |= {"schema": json.loads(SESSIONS.schema.to_json())}
    growing |= {"origin": config.origin, "period_ms": config.period_ms}
    plugin = tmp_path / "strangers_same.py"
    plugin.write_text(SAME)
    registry = {
        "plugins": ["recd_dedup", str(plugin)],
        "folder": str(tmp_path),
        "log": {"use": "zstd_shards", "folder": str(tmp_path / "log"), "shards": 3},
        "dataset": growing,
        "etl": ["same"],
    }

    def read_all() -> None:
        stack = load(registry)
        stack.prepare()
        for number in range(3):
            stack.periods.tables(stack.periods.wait(number))

    read_all()
    read_all()  # a warning would be an error
    plugin.write_text(f"{SAME}# changed\n")
    with pytest.warns(NoticeWarning, match="the code of .*strangers_same.py has changed") as found:
        read_all()
    (says,) = (str(one.message) for one in found)
    assert says.startswith("etl[0]: same may be outdated")
