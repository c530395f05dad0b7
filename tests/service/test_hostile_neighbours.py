"""Rung 1: neighbours that are hostile or broken, on either side of a call, and files of others."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from service_jobs import until

from recd_dsi.service.buffer import DiskCache, Key
from recd_dsi.service.shared_memory import PLACE, NotShared, SharedReader
from recd_plugins.errors import DataError
from recd_plugins.report.page_server import HTML, MOST_CALLS, PageServer


def record(number: int) -> pa.RecordBatch:
    return pa.record_batch({"values": pa.array([number] * 1000)})


def key(number: int) -> Key:
    return Key("job", 0, 0, number)


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


def answering() -> int:
    """Threads in which pages answer."""
    return sum("process_request_thread" in one.name for one in threading.enumerate())


def test_a_browser_that_goes_away_amid_an_answer_is_nothing_to_print(
    capfd: pytest.CaptureFixture[str],
) -> None:
    gone, answered_all = threading.Semaphore(0), threading.Semaphore(0)

    def slowly() -> str:
        gone.acquire(timeout=60)
        answered_all.release()
        return "x" * 3_000_000

    served = PageServer({"/": (slowly, HTML)})
    try:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", served.port)) as browser:
                browser.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
                browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.release(3)
        assert all(answered_all.acquire(timeout=60) for _ in range(3))
        until(lambda: not answering())
    finally:
        served.close()
    assert capfd.readouterr().err == ""


def test_connections_that_say_nothing_take_a_bounded_number_of_threads() -> None:
    served = PageServer({"/": (lambda: "here", HTML)})
    silent: list[socket.socket] = []
    try:
        place = ("127.0.0.1", served.port)
        silent += [socket.create_connection(place, timeout=60) for _ in range(MOST_CALLS + 20)]
        for one in silent[MOST_CALLS:]:
            assert one.recv(1) == b""
        assert 0 < answering() <= MOST_CALLS
        for one in silent:
            one.close()
        until(lambda: not answering())
        with urllib.request.urlopen(served.address, timeout=60) as answer:
            assert answer.read() == b"here"
    finally:
        served.close()
