"""Rung 1: neighbours that are hostile or broken, on either side of a call, and files of others."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from service_jobs import until

from recd_dsi.service.addresses import host_and_port, is_loopback
from recd_dsi.service.buffer import DiskCache, Key
from recd_dsi.service.calls import answered
from recd_dsi.service.coordinator import Coordinator
from recd_dsi.service.coordinator_callers import MANY_FAILURES, join, watch_members
from recd_dsi.service.credentials import NO_CREDENTIALS, Credentials
from recd_dsi.service.fleet import Fleet
from recd_dsi.service.job import MOST_STREAMS, BatchJob, Request
from recd_dsi.service.members import MOST_FACTS, Members
from recd_dsi.service.page import Page
from recd_dsi.service.shared_memory import PLACE, NotShared, SharedReader
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.report.page_server import HTML, MOST_CALLS, PageServer

WORKER = {"id": "w", "address": "127.0.0.1:9", "seat": 0, "delivery": "ab"}
CLIENT = {"id": "c", "delivery": "ab", "rank": 0, "most": 2}
JOB = BatchJob(
    delivery="ab",
    table="cd",
    split="train",
    consumers=1,
    streams=1,
    rows_per_batch=4,
    shuffle=True,
    window=2,
    tail="drop",
    seed=3,
    sessions="split",
)


def record(number: int) -> pa.RecordBatch:
    return pa.record_batch({"values": pa.array([number] * 1000)})


def key(number: int) -> Key:
    return Key("job", 0, 0, number)


@pytest.fixture(scope="module")
def coordinator() -> Iterator[Coordinator]:
    found = Coordinator()
    yield found
    found.shutdown()


@pytest.mark.parametrize("value", ["NaN", "1e999", "-Infinity", "9" * 400, "9" * 5000, r'"\ud800"'])
@pytest.mark.parametrize(("action", "said"), [("heartbeat", WORKER), ("workers", CLIENT)])
def test_what_no_page_can_show_is_refused_and_the_page_stays(
    coordinator: Coordinator, action: str, said: dict[str, Any], value: str
) -> None:
    page = Page(coordinator.known)
    client = flight.FlightClient(f"grpc://{coordinator.address}")
    for name in ("id", "made", "stalled"):
        text = json.dumps({**said, name: "HERE"}).replace('"HERE"', value).encode()
        with pytest.raises(flight.FlightServerError, match="a message is not JSON") as refused:
            list(client.do_action(flight.Action(action, text)))
        assert "Traceback" not in str(refused.value)
    list(client.do_action(flight.Action("heartbeat", json.dumps(WORKER).encode())))
    json.dumps(page.state(), allow_nan=False)
    assert 'recd_worker_made_total{worker="w"} 0\n' in page.metrics().encode().decode()
    page.close()


WHAT = flight.FlightDescriptor.for_path("a")


@pytest.mark.parametrize(
    "call",
    [
        lambda client: list(client.list_flights()),
        lambda client: client.get_flight_info(WHAT),
        lambda client: client.do_get(flight.Ticket(b"{}")).read_all(),
        lambda client: client.do_put(WHAT, pa.schema([]))[0].close(),
    ],
    ids=["list_flights", "get_flight_info", "do_get", "do_put"],
)
def test_calls_that_no_server_answers_are_refused_without_a_traceback(
    coordinator: Coordinator, call: Callable[[flight.FlightClient], object]
) -> None:
    client = flight.FlightClient(f"grpc://{coordinator.address}")
    with pytest.raises(flight.FlightServerError, match="there are no flights") as refused:
        call(client)
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize(
    ("known_as", "alone"),
    [(["127.0.0.1"], True), (["127.0.0.1", "::1"], True), (["127.0.0.1", "10.0.0.7"], False)],
)
def test_localhost_is_this_machine_where_it_is_known_as_that(
    monkeypatch: pytest.MonkeyPatch, known_as: list[str], alone: bool
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 0)) for one in known_as]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    assert is_loopback("localhost") is alone
    assert is_loopback("127.0.0.7")
    assert not is_loopback("localhost.example")


def test_a_coordinator_keeps_numbers_and_short_texts_alone() -> None:
    members = Members(0.0)
    numbers = {f"n{number}": number for number in range(1000)}
    said = {"nested": [[]] * 20_000, "long": "x" * 60_000, "made": 3, **numbers}
    members.hear({**WORKER, **said}, 1.0)
    (kept,) = members.there()
    assert len(kept) <= MOST_FACTS + 1
    assert {**WORKER, "made": 3}.items() <= kept.items()
    assert not {"nested", "long"} & kept.keys()


@pytest.mark.parametrize(
    "address", ["", "nowhere", "a b:80", "a:80/..", "x" * 300 + ":80", "[a:]:8"]
)
def test_who_is_at_no_address_does_not_join(address: str) -> None:
    with pytest.raises(DataError, match=r"neither a worker's name nor its address"):
        Members(0.0).hear({**WORKER, "address": address}, 1.0)


@pytest.mark.parametrize("address", ["a b:1", "[[::1]]:1", "::g:1", "fe80::1%lo:1", "ä:1", "a\n:1"])
def test_a_host_that_no_call_can_be_made_to_is_named(address: str) -> None:
    with pytest.raises(RegistryError, match=r"is no HOST:PORT\. Write both"):
        host_and_port(address)


class Answers(flight.FlightServerBase):  # type: ignore[misc]
    """A coordinator that answers what it is told to, the last for ever."""

    def __init__(self, answers: list[str]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._answers = answers
        self.asked = 0

    def do_action(self, context: Any, action: flight.Action) -> list[flight.Result]:
        self.asked += 1
        return [flight.Result(self._answers[min(self.asked, len(self._answers)) - 1].encode())]


ODD = [
    "[]",
    "not JSON",
    "[" * 100_000,
    '{"workers": "all", "seat": 0, "interval": "soon"}',
    '{"workers": [3, null, {}, {"seat": "x"}], "seat": {}, "interval": 0.1}',
    *(f'{{"workers": [], "seat": 0, "interval": {one}}}' for one in ("NaN", "1e999", "-1", "1e9")),
]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recd_dsi.service.coordinator_callers.INTERVAL", 0.02)
    monkeypatch.setattr("recd_dsi.service.coordinator_callers.MOST_INTERVAL", 0.05)


@pytest.mark.usefixtures("impatient")
def test_a_rank_takes_the_workers_that_it_can_call_whatever_else_it_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    there = [
        {"seat": 0, "address": "10.0.0.1:80"},
        {"seat": 1, "address": "a b:80"},
        {"seat": 2, "address": "127.0.0.1:9"},
    ]
    server = Answers([*ODD, json.dumps({"workers": there, "interval": 1})])
    fleet = Fleet(NO_CREDENTIALS, 1)
    try:
        watch_members(fleet, f"127.0.0.1:{server.port}", NO_CREDENTIALS, "ab", 0, 1)
        until(lambda: [(one.seat, one.address) for one in fleet.remotes()] == [(2, "127.0.0.1:9")])
        until(lambda: server.asked > len(ODD) + 3)
    finally:
        fleet.close()
        server.shutdown()
    said = capfd.readouterr().err
    # Of ODD, then of these.
    assert said.count("rank 0 leaves out a worker that was announced") == 2
    assert "Traceback" not in said


@pytest.mark.usefixtures("impatient")
def test_a_worker_speaks_on_whatever_it_is_answered() -> None:
    class Known:
        def about(self) -> dict[str, Any]:
            return WORKER

    server = Answers(ODD)
    try:
        join(Known(), f"127.0.0.1:{server.port}", NO_CREDENTIALS)
        until(lambda: server.asked > len(ODD) + 3)
    finally:
        server.shutdown()


@pytest.mark.usefixtures("impatient")
def test_who_is_refused_for_another_reason_than_before_hears_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A worker says each reason once; and a rank has it beside the silence of a worker it knew."""
    was = Coordinator()
    address, port = was.address, was.port
    was.shutdown()

    class Known:
        def about(self) -> dict[str, Any]:
            return WORKER

    said = ""

    def has_said(what: str) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return what in said

    join(Known(), address, NO_CREDENTIALS)
    until(lambda: has_said("does not hear this worker"))
    server = Coordinator(port=port, credentials=Credentials(token="another"))
    fleet = Fleet(NO_CREDENTIALS, 1)
    fleet.set_workers({0: "127.0.0.1:9"})
    try:
        until(lambda: has_said("(a token is needed, and this is not the right one); it tries on"))
        watch_members(fleet, address, NO_CREDENTIALS, "ab", 0, 1)
        until(lambda: "a token is needed" in fleet.unknown)
        (worker,) = fleet.remotes()
        worker.failed("Connection refused")
        assert fleet.trouble == f"{fleet.unknown}; 127.0.0.1:9: Connection refused"
    finally:
        fleet.close()
        server.shutdown()
    assert said.count("a token is needed") == 1


@pytest.mark.usefixtures("impatient")
def test_a_rank_names_a_worker_that_never_answers(capfd: pytest.CaptureFixture[str]) -> None:
    there = [{"seat": seat, "address": f"127.0.0.1:{seat + 8}"} for seat in (0, 1)]
    server = Answers([json.dumps({"workers": there, "interval": 1})])
    fleet = Fleet(NO_CREDENTIALS, 2)
    try:
        watch_members(fleet, f"127.0.0.1:{server.port}", NO_CREDENTIALS, "ab", 0, 2)
        until(lambda: len(fleet.remotes()) == 2)
        never, once = fleet.remotes()
        once.worked()
        for _ in range(MANY_FAILURES):
            never.failed("the certificate has expired")
            once.failed("Connection refused")
        asked = server.asked
        until(lambda: server.asked > asked + 2)
    finally:
        fleet.close()
        server.shutdown()
    lines = [one for one in capfd.readouterr().err.splitlines() if one.startswith("reader:")]
    what = "reader: rank 0 leaves out a worker that was announced"
    assert lines == [f"{what}: 127.0.0.1:8: the certificate has expired"]


@pytest.mark.parametrize("stripe", ["", "x", "-1", "1.5", "9" * 5000])
def test_an_error_that_names_no_stripe_is_a_worker_that_does_not_answer(stripe: str) -> None:
    assert answered(flight.FlightServerError("a", f"DamagedStripe {stripe}".encode())) is None


def test_a_job_of_more_streams_than_a_worker_has_memory_for_is_refused() -> None:
    request = Request(job=JOB, consumer=0, epoch=0, batch=0, stop=1, client="c")
    asked = asdict(request)
    asked["job"]["streams"] = MOST_STREAMS + 1
    with pytest.raises(DataError, match=r"65537 streams for each consumer, .*`reader.streams`"):
        Request.from_bytes(json.dumps(asked).encode())
    assert replace(JOB, streams=MOST_STREAMS, consumers=1).streams == MOST_STREAMS


@pytest.mark.parametrize(
    ("of_job", "of_request", "says"),
    [
        ({"delivery": "a" * 65}, {}, "not by digests"),
        ({"window": -1}, {}, r"a window of -1 stripes, where each must be 1 \(the window 0\) to"),
        ({"streams": 3, "consumers": 2}, {}, "3 streams, which 2 consumers cannot share equally"),
        ({"left_out": [-1]}, {}, "leaves out stripes that no table has"),
        ({}, {"consumer": 1}, "consumer 1 of 1 and position 0"),
        ({}, {"stop": 0}, "batches 0 to 0, but must be for one to 64 of them"),
        ({}, {"client": "c" * 65}, "a client of more than 64 letters"),
        ({}, {"ahead": [[2, 1]]}, r"not ranges \[first, stop\)"),
        ({}, {"batch": "first"}, "a request is not one"),
    ],
)
def test_whoever_asks_wrongly_is_told_to_run_the_same_version(
    of_job: dict[str, Any], of_request: dict[str, Any], says: str
) -> None:
    request = Request(job=JOB, consumer=0, epoch=0, batch=0, stop=1, client="c")
    asked = asdict(request) | of_request | {"job": asdict(JOB) | of_job}
    with pytest.raises(DataError, match=rf"{says}.*\. Run one version of recd-plugins in all"):
        Request.from_bytes(json.dumps(asked).encode())


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ([(0, 64, 0)], "64 bytes lie in 0 bytes of memory, which cannot be"),
        ([(0, 64, 16)], "reach beyond the 16 bytes where they lie"),
        ([(0, 64, 4096), (999, 64, 4096)], "are not next to each other"),
        ([], "in 0 bytes where batches are, which cannot be read"),
    ],
)
def test_a_worker_that_says_what_cannot_be_is_to_run_the_same_version(
    places: Collection[tuple[int, int, int]], says: str
) -> None:
    told = b"".join(PLACE.pack(bytes(16), os.getpid(), 0, *place) for place in places)
    with pytest.raises(DataError, match=rf"{says}\. Run one version of recd-plugins in all"):
        SharedReader().bodies(told)


def links(to: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(to)


@pytest.mark.parametrize(
    "put", [os.mkfifo, Path.mkdir, links("/dev/zero"), links("theirs"), links("nowhere")]
)
def test_what_is_no_file_in_the_folder_of_a_cache_is_no_batch(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    theirs = tmp_path / "theirs"
    cache.put(key(1), record(1))
    (tmp_path / key(1).name).rename(theirs)
    os.utime(theirs, (0, 0))
    put(tmp_path / key(1).name)
    assert key(1) not in cache
    assert cache.get(key(1)) is None
    cache.put(key(1), record(1))
    cache.put(key(2), record(2))
    assert cache.get(key(2)) == record(2)
    assert theirs.stat().st_mtime == 0


def test_a_batch_under_the_name_of_another_is_none(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put(key(1), record(1))
    (tmp_path / key(1).name).rename(tmp_path / key(2).name)
    assert cache.get(key(2)) is None
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux alone has setfsuid")
def test_a_damaged_file_that_may_not_be_removed_is_none() -> None:
    """Of another user, in a folder that this one may not write to, or not even search."""
    found: list[object] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        cache = DiskCache(folder, 1 << 20)
        (folder / key(1).name).write_bytes(b"damaged")

        def as_nobody() -> None:
            libc = ctypes.CDLL(None)
            libc.setfsuid(65534)  # of this thread alone
            found.append(cache.get(key(1)))
            libc.setfsuid(0)
            folder.chmod(0o700)
            libc.setfsuid(65534)
            found.extend([cache.get(key(1)), key(1) in cache])

        if os.getuid() == 0:
            thread = threading.Thread(target=as_nobody)
            thread.start()
            thread.join()
            assert found == [None, None, False]
            assert (folder / key(1).name).exists()
        folder.chmod(0o500 if os.getuid() else 0o700)
        assert cache.get(key(1)) is None
        folder.chmod(0o700)


def test_bodies_in_what_is_no_file_are_not_waited_for(tmp_path: Path) -> None:
    """Nobody writes into the pipe that a worker names: to open it would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    keeps = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    reader, began = SharedReader(), time.monotonic()
    try:
        with pytest.raises(NotShared):
            reader.bodies(PLACE.pack(bytes(16), os.getpid(), keeps, 0, 64, 4096))
    finally:
        reader.close()
        os.close(keeps)
    assert time.monotonic() - began < 60


def test_a_page_says_what_is_wrong_in_any_script() -> None:
    def fails() -> str:
        raise DataError("läufe/запуск: has no metrics <b>yet</b>.")

    served = PageServer({"/": (fails, HTML)})
    try:
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(served.address, timeout=60)
        assert answer.value.code == 503
        text = answer.value.read().decode()
        assert "läufe/запуск: has no metrics &lt;b&gt;yet&lt;/b&gt;." in text
    finally:
        served.close()


def answering(before: Collection[threading.Thread]) -> int:
    """Threads in which pages answer, besides those that servers of other tests had before."""
    every = (one for one in threading.enumerate() if one not in before)
    return sum("process_request_thread" in one.name for one in every)


def test_a_browser_that_goes_away_amid_an_answer_is_nothing_to_print(
    capfd: pytest.CaptureFixture[str],
) -> None:
    gone, answered_all = threading.Semaphore(0), threading.Semaphore(0)

    def slowly() -> str:
        gone.acquire(timeout=60)
        answered_all.release()
        return "x" * 3_000_000

    before = threading.enumerate()
    served = PageServer({"/": (slowly, HTML)})
    try:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", served.port)) as browser:
                browser.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
                browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.release(3)
        assert all(answered_all.acquire(timeout=60) for _ in range(3))
        until(lambda: not answering(before))
    finally:
        served.close()
    assert capfd.readouterr().err == ""


def test_connections_that_say_nothing_take_a_bounded_number_of_threads() -> None:
    before = threading.enumerate()
    served = PageServer({"/": (lambda: "here", HTML)})
    place, most = ("127.0.0.1", served.port), 0
    try:
        with contextlib.ExitStack() as silent:
            for _ in range(MOST_CALLS + 20):
                one = silent.enter_context(socket.create_connection(place, timeout=60))
                most = max(most, answering(before))
            until(lambda: answering(before))
            most = max(most, answering(before))
            assert one.recv(1) == b""  # at once, or after a while where the first ones were closed
            assert most <= MOST_CALLS
        until(lambda: not answering(before))
        with urllib.request.urlopen(served.address, timeout=60) as answer:
            assert answer.read() == b"here"
    finally:
        served.close()


@pytest.mark.slow
def test_a_page_whose_port_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "recd_plugins", "serve", "coordinator", "--page"]
        done = subprocess.run([*command, str(port)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert f"--page: no page can be served at 127.0.0.1:{port} (Address already in use)." in said
    assert "Name another port, or 0 for a free one." in said
