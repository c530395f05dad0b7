"""The page of a run while it trains, over HTTP on 127.0.0.1, drawn anew as its files change."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from recd_plugins.errors import DataError
from recd_plugins.report.page import body, page
from recd_plugins.report.sources import Sources, read_sources

__all__ = ["HOST", "Watched"]

HOST = "127.0.0.1"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:"
)
SCRIPT = """
<p class="live" id="live" role="status">Live.</p>
<script>
const main = document.querySelector("main"), live = document.getElementById("live");
let seen = "";
async function look() {
  try {
    const answer = await fetch("/figures", { headers: { "If-None-Match": seen } });
    if (answer.status === 200) {
      seen = answer.headers.get("ETag");
      const open = [...main.querySelectorAll("details[open]")].map(one => one.id);
      main.innerHTML = await answer.text();
      for (const id of open) if (id) document.getElementById(id)?.setAttribute("open", "");
    }
    live.className = "live";
    live.textContent = "Live: read at " + new Date().toLocaleTimeString() + ".";
  } catch { live.className = "live gone"; live.textContent = "`recd watch` does not answer."; }
}
look(); setInterval(look, 2000);
</script>"""


class Watched:
    """Serves `/`, the page, and `/figures`, what changes of it, in threads until `close`."""

    def __init__(self, runs: Sequence[str], port: int = 0) -> None:
        """`runs` are named as for `recd report`; port 0: one that is free."""
        self._runs = runs
        self._lock = threading.Lock()
        self._drawn: tuple[object, str] = (None, "")
        self._server = ThreadingHTTPServer((HOST, port), _handler(self))
        self._server.daemon_threads = True
        self.address = f"http://{HOST}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True, name="recd-watch").start()

    def page(self) -> str:
        return page(self._sources(), script=SCRIPT)

    def figures(self) -> str:
        """Drawn anew where a file has changed since."""
        with self._lock:
            state = self._state()
            if state != self._drawn[0]:
                self._drawn = state, body(self._sources())
            return self._drawn[1]

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()

    def _sources(self) -> Sources:
        return read_sources(self._runs)

    def _state(self) -> list[tuple[int, int]]:
        """Times and sizes of what lies in the folders."""
        folders = [Path(one if Path(one).exists() else one.partition("=")[2]) for one in self._runs]
        found = (file.stat() for folder in folders for file in sorted(folder.glob("*.json*")))
        return [(one.st_mtime_ns, one.st_size) for one in found]


def _handler(watched: Watched) -> type[BaseHTTPRequestHandler]:
    class WatchHandler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (HOST, "localhost"):  # a site that was named to be this machine
                self.send_error(403)
            elif self.path == "/":
                self._answer(watched.page)
            elif self.path == "/figures":
                self._answer(watched.figures)
            else:
                self.send_error(404)

        def _answer(self, draw: Callable[[], str]) -> None:
            try:
                text = draw().encode()
            except (DataError, OSError) as error:  # a run that is being set aside for a new one
                self.send_error(503, str(error).splitlines()[0])
                return
            tag = f'"{hashlib.sha256(text).hexdigest()[:32]}"'
            same = self.headers.get("If-None-Match") == tag
            self.send_response(304 if same else 200)
            self.send_header("ETag", tag)
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", POLICY)
            if not same:
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if not same:
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not printed."""

    return WatchHandler
