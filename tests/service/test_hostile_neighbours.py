"""Rung 1: neighbours that are hostile or broken, on either side of a call, and files of others."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.error
import urllib.request

import pytest
from service_jobs import until

from recd_plugins.errors import DataError
from recd_plugins.report.page_server import HTML, MOST_CALLS, PageServer


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
