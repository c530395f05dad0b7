"""Serves the page of a run while it trains, over HTTP on 127.0.0.1; the page is drawn anew when the
run's files change."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from recd_plugins.report.drawing import escaped
from recd_plugins.report.page import body, framed
from recd_plugins.report.page_server import HTML, PageServer
from recd_plugins.report.sources import begun, named_path, names_of, read_sources

__all__ = ["WAITS", "Watched"]

WAITS = "No run has written metrics here yet. They are shown as they come."
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
    """Serves `/`, the page, and `/figures`, the part of it that changes, in threads until
    `close`."""

    def __init__(self, runs: Sequence[str], port: int = 0) -> None:
        """`runs` are named as for `recd report`, and may have written nothing yet. With port 0 it
        takes a free port."""
        names_of(runs)  # wrong names are an error here, not in each answer
        self._runs = runs
        self._lock = threading.Lock()
        self._drawn: tuple[object, str] = (None, "")
        answers = {"/": (self.page, HTML), "/figures": (self.figures, HTML)}
        self._served = PageServer(answers, port)
        self.address = self._served.address

    def waiting(self) -> list[str]:
        """The folders of runs that have written no metrics yet."""
        there = begun(self._runs)
        return [str(named_path(one)[0]) for one in self._runs if one not in there]

    def page(self) -> str:
        return framed(", ".join(names_of(self._runs)), self.figures(), SCRIPT)

    def figures(self) -> str:
        """The figures, drawn anew if a file has changed since the last call."""
        with self._lock:
            state = (begun(self._runs), self._state())
            if state != self._drawn[0]:
                self._drawn = state, "".join(self._parts())
            return self._drawn[1]

    def _parts(self) -> Iterator[str]:
        for folder in self.waiting():
            yield f"<header><h1>{escaped(folder)}</h1><p>{WAITS}</p></header>\n"
        if there := begun(self._runs):
            yield body(read_sources(there))

    def close(self) -> None:
        """Stop answering."""
        self._served.close()

    def _state(self) -> list[tuple[int, int]]:
        """The times and sizes of the files in the folders."""
        folders = [named_path(one)[0] for one in self._runs]
        found = (file.stat() for folder in folders for file in sorted(folder.glob("*.json*")))
        return [(one.st_mtime_ns, one.st_size) for one in found]
