"""Rung 1 to 3: the cache on disk, who may call, and a coordinator that was away."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from threading import Event, Semaphore, Thread, current_thread
from threading import enumerate as enumerate_threads
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from service_jobs import stack_of, until, write_tables

from benchmarks.service.proxy import Proxy
from recd_dsi.service.buffer import Buffer, DiskCache, Key, size_of
from recd_dsi.service.calls import Caller
from recd_dsi.service.coordinator import Coordinator
from recd_dsi.service.coordinator_callers import join, watch_members
from recd_dsi.service.credentials import NO_CREDENTIALS, Credentials
from recd_dsi.service.fetching import LANES
from recd_dsi.service.fleet import Fleet, Remote
from recd_dsi.service.job import Request
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.maker import AHEAD, EARLY_BATCHES, Maker, _Announced
from recd_dsi.service.members import MOST_INTERVAL, SILENCE, Members
from recd_dsi.service.process_fleets import end_workers
from recd_dsi.service.shared_memory import SharedReader, WrittenOver
from recd_dsi.service.worker import Worker, WorkerOptions
from recd_plugins.data.batch import Batch
from recd_plugins.data.dataset import Split
from recd_plugins.data.read_seconds import HandedOver
from recd_plugins.data.wired_batch import batch_to_record
from recd_plugins.errors import CapabilityError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.resume import assert_same_batch


@pytest.fixture(autouse=True)
def _workers_of_each_test_alone() -> Iterator[None]:
    yield
    end_workers()


def record(number: int, values: int = 1000) -> pa.RecordBatch:
    return pa.record_batch({"values": pa.array([[number] * values], pa.list_(pa.int64()))})


def key(number: int) -> Key:
    return Key("job", 0, 0, number)


def test_what_memory_has_no_room_for_is_on_disk_within_its_bound(tmp_path: Path) -> None:
    size, most = size_of(record(0)), 10 * size_of(record(0))
    buffer = Buffer(2 * size, DiskCache(tmp_path, most))
    for number in range(40):
        buffer.put(key(number), record(number), wanted=False)
        assert buffer.bytes <= 2 * size
        # It looks at the folder each eighth of the bound, so it may be that much over.
        held = sum(file.stat().st_size for file in tmp_path.iterdir())
        assert held <= 1.5 * most
    assert buffer.get(key(37)) == record(37)
    assert buffer.get(key(0)) is None  # removed from the folder, too


def test_what_others_keep_in_the_folder_of_a_cache_stays(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    theirs = tmp_path / "notes.txt"
    theirs.write_bytes(bytes(100_000))
    os.utime(theirs, (0, 0))  # older than any batch
    cache = DiskCache(tmp_path, 10 * size_of(record(0)))
    for number in range(40):
        cache.put(key(number), record(number))
    assert (tmp_path / "models").is_dir()
    assert theirs.stat().st_size == 100_000
    assert cache.get(key(39)) == record(39)
    assert cache.get(key(0)) is None


def test_a_cache_where_no_folder_can_be_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CapabilityError, match=r"cache: .*file cannot be made .* Name a folder"):
        DiskCache(tmp_path / "file", 1 << 20)


def test_what_is_made_ahead_never_goes_for_what_is_made_behind_it() -> None:
    size = size_of(record(0))
    buffer, made = Buffer(10 * size + size // 2, None), 0
    while buffer.has_room() and made < 100:
        buffer.put(key(made), record(made), wanted=True)
        made += 1
    assert made == 10
    assert all(key(number) in buffer for number in range(made))
    assert buffer.get(key(0)) == record(0)
    assert buffer.has_room()  # what was given goes first
    buffer.put(key(10), record(10), wanted=True)
    assert [number for number in range(11) if key(number) in buffer] == [*range(1, 11)]
    assert not buffer.has_room()


def test_what_others_have_ahead_goes_before_what_is_made_beside_it() -> None:
    """A silent client has all memory: a window's batches are there together even so."""
    size = size_of(record(0))
    buffer = Buffer(4 * size, None)
    for epoch, number in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]:
        buffer.put(key(number)._replace(epoch=epoch), record(number), wanted=True)
    assert [(one.epoch, one.batch) for one in buffer._wanted] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    for number in (3, 4):
        buffer.put(key(number)._replace(epoch=1), record(number), wanted=True)
    assert [one.batch for one in buffer._wanted] == [0, 1, 2, 4]  # among its own, what is last


def test_what_is_on_its_way_to_disk_is_still_there(tmp_path: Path) -> None:
    found = []

    class Watched(DiskCache):
        def put(self, key: Key, record: pa.RecordBatch) -> None:
            found.append((key in buffer, buffer.get(key) == record))
            super().put(key, record)

    buffer = Buffer(1, Watched(tmp_path, 1 << 20))
    for number in range(3):
        buffer.put(key(number), record(number), wanted=True)
    assert found == [(True, True)] * 2
    assert [buffer.get(key(number)) == record(number) for number in range(3)] == [True] * 3


def test_a_damaged_file_of_the_cache_is_none_and_is_written_anew(tmp_path: Path) -> None:
    cache, file = DiskCache(tmp_path, 1 << 20), tmp_path / key(1).name
    cache.put(key(1), record(1))
    whole = file.read_bytes()
    flipped = [bytearray(whole) for _ in range(8)]
    for number, damaged in enumerate(flipped):
        damaged[len(whole) * number // 8 + 5] ^= 1 << number
    for damage in (b"", b"no", b"no batch", whole[: len(whole) // 2], *map(bytes, flipped)):
        file.write_bytes(damage)
        assert cache.get(key(1)) is None
        assert key(1) not in cache
        cache.put(key(1), record(1))
        assert cache.get(key(1)) == record(1)


def test_a_cache_that_takes_no_more_says_so_once(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "gone", 1 << 20)
    (tmp_path / "gone").rmdir()
    with pytest.warns(NoticeWarning, match="gone takes no more batches .* Name a folder in which"):
        cache.put(key(1), record(1))
    cache.put(key(2), record(2))  # a second notice would be an error here
    assert cache.get(key(1)) is None


def loader_of(tables: Path, **reader: Any) -> ServiceLoader:
    """One rank's, which nobody has asked for a batch."""
    found = stack_of(tables, {"use": "service", "workers": 1, **reader}).loader(0, 1)
    assert isinstance(found, ServiceLoader)
    return found


@contextmanager
def asking(worker: Worker, tables: Path, **options: Any) -> Iterator[ServiceLoader]:
    """A trainer that asks this worker alone, which serves meanwhile; `options` of its `Fetching`
    beside those of the registry."""
    Thread(target=worker.serve, daemon=True).start()
    loader = loader_of(tables, when_none_answers="fail", patience=120)
    loader._options = replace(loader._options, **options)
    fleet = Fleet(NO_CREDENTIALS, 1)
    fleet.set_workers({0: worker.address})
    loader.fleet = lambda: fleet
    try:
        yield loader
    finally:
        fleet.close()
        worker.stop()


def test_a_second_job_has_batches_from_disk_and_damaged_ones_are_made_anew(
    tables: Path, tmp_path: Path
) -> None:
    stack = stack_of(tables, {"use": "local"})
    theirs = list(stack.loader(0, 1))
    options = WorkerOptions(buffer_bytes=1, disk=tmp_path)  # memory keeps one batch
    job = loader_of(tables).job.digest
    made = []
    for _ in range(3):
        worker = Worker(stack.delivery(), options)
        with asking(worker, tables) as loader:
            found = list(loader)
        disk = worker.buffer._disk
        assert disk is not None
        damaged = [disk._path(Key(job, 0, 0, number)) for number in (3, 4, 20)]
        made.append(worker.about()["made"])
        assert len(found) == len(theirs)
        for left, right in zip(theirs, found, strict=True):
            assert_same_batch(left, right)
        if len(made) == 2:
            for file in damaged:
                file.write_bytes(file.read_bytes()[:100])
    assert made[0] >= len(theirs)
    assert made[1] <= 2
    assert 3 <= made[2] < len(theirs)


def test_a_table_of_the_same_footer_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    """Two rows have swapped their labels: nothing in the footer tells that."""
    tables, cache = write_tables(tmp_path / "tables"), tmp_path / "cache"
    (file,) = (tables / "train").glob("*.parquet")
    rows = pq.read_table(file)
    labels = rows["label"].to_numpy().copy()
    digests = []
    for _ in range(2):
        pq.write_table(rows, file, row_group_size=100)
        os.utime(file, ns=(0, len(digests)))  # clocks of files may be coarse
        stack = stack_of(tables, {"use": "local"})
        theirs = list(stack.loader(0, 1))
        worker = Worker(stack.delivery(), WorkerOptions(buffer_bytes=1, disk=cache))
        with asking(worker, tables) as loader:
            digests.append(loader.job.digest)
            for left, right in zip(theirs, loader, strict=True):
                assert_same_batch(left, right)
        pair = [int((labels[:100] == label).argmax()) for label in (0, 1)]
        labels[pair] = labels[pair[::-1]]
        column = rows.schema.get_field_index("label")
        swapped = pa.array(labels, rows.schema.field(column).type)
        rows = rows.set_column(column, rows.schema.field(column), swapped)
    assert len({*digests}) == 1


def test_runs_that_are_asked_for_at_once_are_read_in_one_pass(tables: Path) -> None:
    loader = loader_of(tables)
    worker = Worker(stack_of(tables, {"use": "local"}).delivery(), WorkerOptions())
    Thread(target=worker.serve, daemon=True).start()
    caller, ahead = Caller(worker.address, NO_CREDENTIALS), ((0, len(loader)),)
    asked = Request(job=loader.job, consumer=0, epoch=0, batch=0, stop=2, client="", ahead=ahead)
    runs = [replace(asked, batch=first, stop=first + 16) for first in (0, 16, 30)]
    try:
        # One answer of each run in turn, as where as many calls wait for theirs at once.
        answers = [caller.get(run.to_bytes(), 300.0) for run in runs]
        given = filter(None, chain.from_iterable(zip_longest(*answers)))
        assert sum(record.num_rows for record, _ in given) == 48
        assert worker.about()["windows"] == 1
    finally:
        caller.close()
        worker.stop()


class Gated:
    """A job whose batches are made one by one, as they are let through."""

    def __init__(self, batch: Batch | None, length: int = 16) -> None:
        self.gate, self.length, self._batch = Semaphore(0), length, batch

    def batches(self, consumer: int, epoch: int, ranges: Sequence[range]) -> Iterator[HandedOver]:
        for _ in chain.from_iterable(ranges):
            self.gate.acquire()
            yield HandedOver(self._batch, {}, 0.0)


def test_what_a_call_has_waited_for_in_vain_is_made_in_its_turn(tables: Path) -> None:
    loader = loader_of(tables)
    batch = next(iter(stack_of(tables, {"use": "local"}).loader(0, 1)))
    job, buffer = Gated(batch), Buffer(1 << 20, None)
    maker = Maker(buffer)
    asked = Request(job=loader.job, consumer=0, epoch=0, batch=0, stop=4, client="", awaited=False)
    for first in range(2):
        job.gate.release()
        assert len(maker.batches(job, asked, first)) == 1
    assert not maker._demands  # both calls have waited for the last batch, for a while
    job.gate.release(2)
    until(lambda: maker.made == 4)
    assert buffer.wanted_bytes == 2 * size_of(batch_to_record(batch))  # nobody has asked for them
    maker.close()


def test_a_worker_that_ends_lets_go_of_calls_that_wait(tables: Path) -> None:
    loader = loader_of(tables)
    maker = Maker(Buffer(1 << 20, None))
    asked = Request(job=loader.job, consumer=0, epoch=0, batch=0, stop=1, client="")
    ended: list[str] = []

    def wait(job: Gated) -> None:
        try:
            maker.batches(job, asked, 0)
        except flight.FlightUnavailableError as error:
            ended.append(str(error))

    job = Gated(None)  # whose batch is never let through
    call = Thread(target=wait, args=(job,), daemon=True)
    call.start()
    until(lambda: bool(maker._demands))
    maker.close()
    call.join(240.0)
    wait(job)  # and whoever asks later
    assert len(ended) == 2
    job.gate.release()  # so that its thread ends


def test_what_a_trainer_waits_for_leaves_at_once_and_all_else_together(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recd_dsi.service.maker.LINGER", 120.0)
    loader = loader_of(tables)
    job = Gated(next(iter(stack_of(tables, {"use": "local"}).loader(0, 1))))
    maker = Maker(Buffer(1 << 20, None))
    asked = Request(job=loader.job, consumer=0, epoch=0, batch=0, stop=16, client="")
    sizes: list[int] = []
    while (first := sum(sizes)) < 16:
        job.gate.release(max(1, first))  # no more than the trainer has had by then
        sizes.append(len(maker.batches(job, asked, first)))
    assert sizes == [1, 1, 2, 4, 8]
    job.gate.release(16)
    assert len(maker.batches(job, replace(asked, epoch=1, awaited=False), 0)) == 16
    maker.close()


def test_a_client_says_which_batches_its_trainer_waits_for(tables: Path) -> None:
    asked: list[tuple[int, bool]] = []

    class Hearing(Worker):
        def _answers(self, job: Any, request: Request) -> Iterator[Any]:
            asked.append((request.batch, request.awaited))
            return super()._answers(job, request)

    worker = Hearing(stack_of(tables, {"use": "local"}).delivery(), WorkerOptions())
    with asking(worker, tables, hedge=120.0) as loader:  # nothing is asked for twice
        batches = iter(loader)
        next(batches)
        until(lambda: len(asked) > 2)
        assert [batch for batch, awaited in asked if awaited] == [0]
        assert len([*batches]) == len(loader) - 1


def test_a_worker_reads_its_next_turns_behind_this_one(tables: Path) -> None:
    loader = loader_of(tables)
    job = Gated(next(iter(stack_of(tables, {"use": "local"}).loader(0, 1))))
    buffer = Buffer(1 << 20, None)
    maker = Maker(buffer)
    turns = ((0, 3), (6, 7), (12, 14))
    asked = Request(job=loader.job, consumer=0, epoch=0, batch=0, stop=2, client="", ahead=turns)
    maker.announce(job, asked)
    job.gate.release(6)
    until(lambda: maker.made == 6)
    there = [number for number in range(16) if Key(*asked.stream, number) in buffer]
    assert there == [*chain.from_iterable(range(*turn) for turn in turns)]
    assert maker.openings == 1
    maker.close()


def test_what_the_next_epoch_begins_with_is_made_before_and_makes_room_first(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(tables)
    batch = next(iter(stack_of(tables, {"use": "local"}).loader(0, 1)))
    size, job = size_of(batch_to_record(batch)), Gated(batch, length=100)
    buffer = Buffer(40 * size, None)
    maker = Maker(buffer)
    first = Request(job=loader.job, consumer=0, epoch=0, batch=0, stop=1, client="one")
    last = replace(first, ahead=((0, 3),), afterwards=((10, 20), (30, 80)))
    job.gate.release(200)
    monkeypatch.setattr("recd_dsi.service.maker.REST", 3600.0)
    assert len(maker.batches(job, first, 0)) == 1
    maker.announce(job, last)
    until(lambda: maker.made == 3)
    assert maker._next() is None  # it was asked a moment ago
    monkeypatch.setattr("recd_dsi.service.maker.REST", 0.001)
    maker.announce(job, last)
    until(lambda: maker.made == 3 + EARLY_BATCHES)
    early = [number for number in range(100) if Key(*last.stream[:2], 1, number) in buffer]
    assert early == [*range(10, 20), *range(30, 30 + EARLY_BATCHES - 10)]
    assert buffer.wanted_bytes == 2 * size  # all else waits for nobody yet
    other = replace(first, client="other", epoch=5, ahead=((0, 30),))
    maker.announce(job, other)
    until(lambda: maker.made == 3 + EARLY_BATCHES + 30)
    assert buffer.wanted_bytes == 32 * size
    maker.announce(job, replace(first, epoch=1, batch=10, stop=11, ahead=((10, 12),)))
    maker.announce(job, last)  # of another client, while the next epoch is under way
    assert not maker._early
    maker.close()


@pytest.mark.parametrize(("split", "early"), [("train", EARLY_BATCHES), ("test", 0)])
def test_workers_know_the_next_epoch_of_a_training_before_it_begins(
    tables: Path, split: Split, early: int
) -> None:
    loader = stack_of(tables, {"use": "service", "workers": 1}).loader(0, 1, split)
    local = stack_of(tables, {"use": "local", "streams": 1}).loader(0, 1, split)
    most = sum(1 for _ in loader) + early
    (remote,) = loader.fleet().remotes()

    def made() -> int:
        return remote.caller.act("about", {}, 60.0)["made"]

    until(lambda: made() >= most)
    assert made() == most
    assert sum(1 for _ in local) == len(loader)
    for ours, theirs in zip(loader, local, strict=True):
        assert_same_batch(ours, theirs)


def test_what_was_made_for_a_client_that_asks_no_more_makes_room_first(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(tables)
    batch = next(iter(stack_of(tables, {"use": "local"}).loader(0, 1)))
    size, job = size_of(batch_to_record(batch)), Gated(batch)
    buffer = Buffer(4 * size, None)
    maker = Maker(buffer)
    asked = Request(job=loader.job, consumer=0, epoch=0, batch=0, stop=1, client="gone")
    maker.announce(job, replace(asked, ahead=((0, 16),)))
    job.gate.release(16)
    until(lambda: maker.made == 4)
    assert not buffer.has_room()
    there = replace(asked, client="there", epoch=1, ahead=((0, 3),))
    maker.announce(job, there)
    assert (maker.made, buffer.wanted_bytes) == (4, 4 * size)  # it asked a moment ago
    monkeypatch.setattr("recd_dsi.service.maker.STALE", 0.0)
    maker.announce(job, there)
    until(lambda: maker.made == 7)
    found = [(key.epoch, key.batch) for key in [*buffer._given, *buffer._wanted]]
    assert found == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert buffer.wanted_bytes == 3 * size
    maker.close()


def test_what_a_client_has_had_is_not_made_again_once_it_made_room(tables: Path) -> None:
    loader = loader_of(tables)
    batch = next(iter(stack_of(tables, {"use": "local"}).loader(0, 1)))
    job = Gated(batch)
    buffer = Buffer(4 * size_of(batch_to_record(batch)), None)
    maker = Maker(buffer)
    ahead = ((0, 4),)
    one = Request(job=loader.job, consumer=0, epoch=0, batch=0, stop=4, client="", ahead=ahead)
    two, three = replace(one, epoch=1), replace(one, epoch=2, ahead=((0, 1),))
    job.gate.release(64)
    maker.announce(job, one)
    until(lambda: maker.made == 4)
    for asked in (two, one):
        maker.announce(job, asked)  # no more has room until this one is served
    assert len(maker.batches(job, one, 0)) == 4
    assert maker._announced["", one.stream].handed == {*range(4)}
    until(lambda: maker.made == 8)  # in the place of what was served
    assert len(maker.batches(job, two, 0)) == 4
    maker.announce(job, three)
    until(lambda: maker.made >= 9)
    assert Key(*three.stream, 0) in buffer
    assert maker.made == 9
    announced = _Announced(job, one)
    announced.handed.update(range(2))
    assert announced.key(buffer) == Key(*one.stream, 2)
    maker.close()


def test_an_epoch_that_is_there_is_not_looked_through_for_each_request(tables: Path) -> None:
    class Looked(Buffer):
        looks = 0

        def __contains__(self, key: Key) -> bool:
            self.looks += 1
            return key.batch != 300

    loader = loader_of(tables)
    job, buffer = Gated(None, length=10_000), Looked(1, None)
    asked = Request(job=loader.job, consumer=0, epoch=0, batch=0, stop=16, client="")
    announced = _Announced(job, replace(asked, ahead=((0, job.length),)))
    assert [announced.key(buffer) for _ in range(3)] == [None] * 3
    assert buffer.looks == AHEAD
    announced = _Announced(job, replace(asked, ahead=((100, job.length),)))
    assert announced.key(buffer) == Key(*asked.stream, 300)


def test_calls_ask_for_no_more_than_a_small_memory_holds(tables: Path) -> None:
    """Two of them at a time are under way, and their batches are not written over."""
    room = 1 << 16
    delivery = stack_of(tables, {"use": "local"}).delivery()
    worker = Worker(delivery, WorkerOptions(shared_bytes=room))
    with asking(worker, tables, shared_bytes=room, hedge=120.0) as loader:
        for _ in range(3):
            assert len(list(loader)) == len(loader)
            assert loader.fetching is not None
            assert not loader.fetching._apart  # none came over the wire
        assert worker._shared._at > 2 * room


def test_a_worker_at_the_address_of_one_that_is_gone_is_asked(tables: Path) -> None:
    """A coordinator missed it for a while, in which calls to it died without a word."""
    asked: list[int] = []
    answers = Event()

    class Held(Worker):
        def _answers(self, job: Any, request: Request) -> Iterator[Any]:
            asked.append(request.batch)
            answers.wait()
            return super()._answers(job, request)

    worker = Held(stack_of(tables, {"use": "local"}).delivery(), WorkerOptions())
    proxy = Proxy(worker.address)
    with asking(worker, tables, hedge=600.0, deadline=600.0) as loader:
        fleet, found = loader.fleet(), list[Batch]()
        fleet.set_workers({0: proxy.address})
        taking = Thread(target=lambda: found.extend(loader), daemon=True)
        taking.start()
        until(lambda: len(asked) == LANES)
        proxy.cut(0.0)
        fleet.set_workers({})
        fleet.set_workers({0: proxy.address})
        answers.set()
        taking.join(240.0)
        proxy.close()
        assert len(found) == len(loader)


def test_what_was_written_over_comes_over_the_wire_and_all_else_through_memory(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies, calls = SharedReader.bodies, itertools.count()

    def late(self: SharedReader, places: bytes) -> Any:
        if next(calls) == 1:
            raise WrittenOver
        return bodies(self, places)

    monkeypatch.setattr(SharedReader, "bodies", late)
    stack = stack_of(tables, {"use": "local"})
    with asking(Worker(stack.delivery(), WorkerOptions()), tables, hedge=120.0) as loader:
        for left, right in zip(stack.loader(0, 1), loader, strict=True):
            assert_same_batch(left, right)
        assert loader.fetching is not None
        assert not loader.fetching._apart
        assert not loader.fetching._over
        assert next(calls) > 1


@pytest.mark.parametrize("credentials", [Credentials(), Credentials(token="only a token")])
def test_beyond_this_machine_nothing_starts_without_token_and_tls(
    tables: Path, credentials: Credentials
) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(CapabilityError, match=r"both a token .* and TLS"):
            Coordinator(host, 0, credentials)
        with pytest.raises(CapabilityError, match=r"both a token .* and TLS"):
            Caller(f"{host}:1", credentials)
    delivery = stack_of(tables, {"use": "local"}).delivery()
    with pytest.raises(CapabilityError, match=r"both a token .* and TLS"):
        Worker(delivery, WorkerOptions(host="0.0.0.0", credentials=credentials))


def test_a_wrong_token_is_refused() -> None:
    server = Coordinator(credentials=Credentials(token="right"))
    try:
        assert Caller(server.address, Credentials(token="right")).act("workers", {}, 60.0)
        for token in ("wrong", "", "right "):
            with pytest.raises(flight.FlightUnauthenticatedError, match="a token is needed"):
                Caller(server.address, Credentials(token=token)).act("workers", {}, 60.0)
    finally:
        server.shutdown()


@pytest.mark.parametrize("name", ["http_proxy", "grpc_proxy", "https_proxy"])
def test_no_call_goes_by_a_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC would go by one even to 127.0.0.1, unless `no_proxy` has it."""
    monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    for except_for in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(except_for, raising=False)
    server = Coordinator()
    try:
        caller = Caller(server.address, Credentials())
        assert "workers" in caller.act("workers", {}, 60.0)
        caller.close()
    finally:
        server.shutdown()


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """One of this machine's address, and its key."""
    found, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    made += ["-nodes", "-days", "1", "-keyout", str(key_file), "-out", str(found), *subject]
    subprocess.run(made, check=True, capture_output=True)
    return found, key_file


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_worker_of_one_machine_that_joins_beyond_it_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trusts = Credentials(token="one", certificate=certificate(tmp_path, "ours")[0])
    join(Known(1), "coordinator.invalid:9", trusts)
    assert (
        "only ranks of this machine can call this worker at 127.0.0.1:1" in capfd.readouterr().err
    )
    join(Known(1), "127.0.0.2:9", NO_CREDENTIALS)
    assert "only ranks" not in capfd.readouterr().err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_server_of_another_certificate_is_not_called(tmp_path: Path) -> None:
    ours, key_file = certificate(tmp_path, "ours")
    other, _ = certificate(tmp_path, "other")
    with pytest.raises(CapabilityError, match="needs the key of its certificate"):
        Coordinator(credentials=Credentials(token="one", certificate=ours))
    server = Coordinator(credentials=Credentials(token="one", certificate=ours, key=key_file))
    try:
        trusted = Credentials(token="one", certificate=ours)
        assert Caller(server.address, trusted).act("workers", {}, 60.0) is not None
        for stranger in (Credentials(token="one", certificate=other), Credentials(token="one")):
            with pytest.raises(flight.FlightUnavailableError):
                Caller(server.address, stranger).act("workers", {}, 60.0)
    finally:
        server.shutdown()


class Known:
    """A worker that is there, as `join` asks it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def about(self) -> dict[str, Any]:
        return {"id": f"w{self.number}", "address": f"127.0.0.1:{self.number}", "delivery": "ab"}


@pytest.mark.slow
def test_a_coordinator_started_again_knows_its_workers_again_and_clients_keep_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine a client may come later to one that has just begun, and is to be believed.
    for module in ("coordinator", "members"):
        monkeypatch.setattr(f"recd_dsi.service.{module}.SILENCE", 1000.0)
    first = Coordinator()
    address, port = first.address, first.port
    for number in (1, 2, 3):
        join(Known(number), address, NO_CREDENTIALS)
    fleet = Fleet(NO_CREDENTIALS, 3)
    watch_members(fleet, address, NO_CREDENTIALS, "ab", 0, 3)
    until(lambda: len(fleet.remotes()) == 3)
    before = [(remote.seat, remote.address) for remote in fleet.remotes()]
    first.shutdown()
    again = Coordinator(port=port)
    had: list[int] = []
    try:
        until(lambda: had.append(len(fleet.remotes())) or len(again.members) == 3)
        there = [(one["seat"], one["address"]) for one in again.members.there()]
        assert there == before
        until(lambda: all(one["id"].startswith("w") for one in again.known()["workers"]))
        assert [(one.seat, one.address) for one in fleet.remotes()] == before
        assert {*had} == {3}
    finally:
        fleet.close()
        again.shutdown()


def test_a_coordinator_that_has_just_begun_believes_its_clients() -> None:
    """Of 20 workers it has heard one; those that say nothing in the end are gone."""
    members = Members(100.0)
    had = [{"seat": seat, "address": f"h:{seat}"} for seat in range(20)]
    assert members.hear({"id": "w", "address": "h:7", "seat": 7, "delivery": "ab"}, 100.5) == 7
    members.believe(had, "ab", 100.6)
    assert [one["seat"] for one in members.there()] == [*range(20)]
    assert members.hear({"id": "n", "address": "h:99", "seat": None}, 100.7) == 20
    for rank in range(5):  # each asks others
        asked = {one["address"] for one in members.chosen("ab", rank, 4)}
        assert len(asked) == 4
        assert "h:99" not in asked
        had = [one for one in had if one["address"] not in asked]
    assert not had
    members.believe([{"seat": 30, "address": "late"}], "ab", 104.0)
    silent = 100.6 + SILENCE * MOST_INTERVAL
    members.hear({"id": "w", "address": "h:7", "seat": 7, "delivery": "ab"}, silent - 1.0)
    members.forget(silent + 1.0)
    assert [one["address"] for one in members.there()] == ["h:7"]


@pytest.mark.slow
@pytest.mark.ranks
def test_a_rank_reads_itself_where_all_workers_hang_and_asks_them_beside(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no answer of theirs between its batches, and goes back to those that wake."""
    reader = {"use": "service", "workers": 2, "hedge": 0.2, "patience": 0.5, "prefetch_mib": 1}
    theirs = stack_of(tables, {"use": "local"}).loader(0, 1)
    loader = stack_of(tables, reader).loader(0, 1)
    assert isinstance(loader, ServiceLoader)
    fleet = loader.fleet()
    backend = fleet.backend
    assert backend is not None
    until(lambda: None not in backend.pids and len(fleet.remotes()) == 2)
    pids = [pid for pid in backend.pids if pid is not None]
    answers, asked_by = Remote.answers, set[str]()

    def send(number: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    def answers_whom(self: Remote) -> bool:
        asked_by.add(current_thread().name)
        return answers(self)

    monkeypatch.setattr(Remote, "answers", answers_whom)
    send(signal.SIGSTOP)
    batches = iter(loader)
    with pytest.warns(NoticeWarning, match="rank 0 reads by itself"):
        there = list(islice(batches, 12))
    assert loader.read_here == 12
    loader._options = replace(loader._options, hedge=120.0, patience=240.0)  # they are there now
    send(signal.SIGCONT)
    until(lambda: "recd-ask" not in {thread.name for thread in enumerate_threads()})
    there += batches
    for left, right in zip(theirs, there, strict=True):
        assert_same_batch(left, right)
    assert loader.read_here < len(loader)
    assert current_thread().name not in asked_by
