"""An S3 endpoint of one's own: moto's server, and in front of it a proxy that is slow or fails.

Both speak HTTP over loopback. What the proxy does to the n-th request is up to `faults`.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, NamedTuple

__all__ = ["Fault", "Faults", "Proxy", "Request", "s3_endpoint", "seeded"]

Fault = Literal["none", "503", "cut", "half", "stall"]
"""An answer of 503; a connection cut before an answer, or within its body; no answer at all."""
DROPPED = frozenset({"connection", "transfer-encoding", "content-length"})


class Request(NamedTuple):
    """What a client asked for."""

    number: int
    method: str
    path: str
    range: str
    fault: Fault


Headers = list[tuple[str, str]]

Faults = Callable[[int, str, str], Fault]
"""From a request's number, method and path to what happens to it."""


def seeded(seed: int, share: float, kinds: tuple[Fault, ...], most: int = 10**9) -> Faults:
    """A share of the requests fails, the same ones for the same seed; at most so many."""
    draw, left, lock = random.Random(seed), [most], threading.Lock()

    def fault(number: int, method: str, path: str) -> Fault:
        with lock:
            if left[0] and draw.random() < share:
                left[0] -= 1
                return draw.choice(kinds)
        return "none"

    return fault


class Proxy:
    """Hands requests on to a server of this machine; `url` is what clients call."""

    def __init__(self, upstream: int) -> None:
        self.latency = 0.0
        """Seconds before each answer."""
        self.faults: Faults | None = None
        self.stall = 30.0
        """Seconds that a stalled request lasts, unless its client goes away."""
        self.requests: list[Request] = []
        self._upstream = upstream
        self._lock = threading.Lock()
        self._closed = threading.Event()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def forget(self) -> None:
        """No latency, no faults, no requests yet."""
        self.latency, self.faults = 0.0, None
        self.requests.clear()

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    def noted(self, method: str, path: str, span: str) -> Request:
        with self._lock:
            number = len(self.requests)
            fault: Fault = self.faults(number, method, path) if self.faults else "none"
            request = Request(number, method, path, span, fault)
            self.requests.append(request)
        return request

    def wait(self) -> None:
        self._closed.wait(self.stall)

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, Headers, bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=60)
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in DROPPED}
        try:
            upstream.request(handler.command, handler.path, body=body, headers=headers)
            response = upstream.getresponse()
            content = response.read()
            return response.status, response.getheaders(), content
        finally:
            upstream.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy
    disable_nagle_algorithm = True  # head and body are two packets: none waits for the other

    def _any(self) -> None:
        body = self._body()
        request = self.proxy.noted(self.command, self.path, self.headers.get("Range", ""))
        if self.proxy.latency:
            time.sleep(self.proxy.latency)
        if request.fault == "stall":
            self.proxy.wait()
        if request.fault in ("stall", "cut"):
            self.close_connection = True
            return
        if request.fault == "503":
            slow = b"<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>"
            self._send(503, [("Content-Type", "application/xml")], slow, len(slow))
            return
        status, headers, content = self.proxy.answer(self, body)
        kept = [(k, v) for k, v in headers if k.lower() not in DROPPED]
        length = len(content)
        if self.command == "HEAD":
            length = int({k.lower(): v for k, v in headers}.get("content-length", 0))
        if request.fault == "half" and content:
            self._send(status, kept, content[: len(content) // 2], length)
            self.close_connection = True
            return
        self._send(status, kept, content, length)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any

    def _send(self, status: int, headers: Headers, content: bytes, length: int) -> None:
        with suppress(OSError):  # the client may have gone away
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def log_message(self, *what: object) -> None:
        """Nothing: tests read standard error."""


@contextmanager
def s3_endpoint() -> Iterator[Proxy]:
    """moto's S3 server and a proxy in front of it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        proxy = Proxy(port)
        try:
            yield proxy
        finally:
            proxy.close()
    finally:
        server.stop()
