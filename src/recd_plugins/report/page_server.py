"""Serves pages over HTTP to this machine, but not to sites that pretend to be on it."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from recd_plugins.errors import RecdError
from recd_plugins.launch.environment import HOST

__all__ = ["HTML", "PageServer"]

MOST_CALLS = 64
"""The most connections at a time, each of which has a thread. Others are closed at once, since a
process that serves a page has other callers, too."""
HTML = "text/html; charset=utf-8"
"""The content type of a page."""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:"
)


class PageServer:
    """Answers in threads until `close`; it does not send again what a browser already has."""

    def __init__(self, answers: Mapping[str, tuple[Callable[[], str], str]], port: int = 0) -> None:
        """`answers`: by path, the function that makes the text, and the text's content type. With
        port 0 it takes a free port."""
        self._server = _Server((HOST, port), _handler(answers))
        self.port: int = self._server.server_port
        self.address = f"http://{HOST}:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True, name="recd-page").start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 2 * MOST_CALLS

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.Semaphore(MOST_CALLS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread, if there may be one more."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback, unless the browser went away or stopped reading."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _handler(
    answers: Mapping[str, tuple[Callable[[], str], str]],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (HOST, "localhost"):  # a site whose name leads to this machine
                self.send_error(403)
            elif self.path not in answers:
                self.send_error(404)
            else:
                self._answer(*answers[self.path])

        def _answer(self, make: Callable[[], str], kind: str) -> None:
            try:
                text = make().encode()
            except (RecdError, OSError) as error:  # files may be just being written
                self.send_error(503, explain=str(error))
                return
            tag = f'"{hashlib.sha256(text).hexdigest()[:32]}"'
            same = self.headers.get("If-None-Match") == tag
            self.send_response(304 if same else 200)
            self.send_header("ETag", tag)
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", POLICY)
            if not same:
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if not same:
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Print no requests."""

    return Handler
