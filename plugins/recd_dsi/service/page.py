"""What a coordinator knows, for people and for Prometheus: an HTTP page, only on 127.0.0.1."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from recd_plugins.api.cli import HTML, PageServer

__all__ = ["Page", "Rates", "metrics"]

SPAN = 10.0
"""Seconds over which rates are averaged."""
LOOK = 1.0
"""Seconds between two looks at the counts."""
Known = Mapping[str, Any]
"""`workers` and `clients`, as they describe themselves, and `scaling`, if workers are scaled."""
COUNTERS = {
    "workers": ("made", "rows", "served", "hits", "windows"),
    "clients": ("taken", "stalled", "read_here"),
}
GAUGES = {"workers": ("buffer_bytes", "wanted_bytes"), "clients": ("held_bytes", "filled")}
HELP = {
    "made": "Batches made.",
    "rows": "Rows of the batches made.",
    "served": "Batches given to clients.",
    "hits": "Batches given from memory or disk, made for another request.",
    "windows": "Windows that were begun to read.",
    "buffer_bytes": "Bytes of batches in memory.",
    "wanted_bytes": "Bytes of batches made ahead, which nobody has asked for.",
    "taken": "Batches that the trainer took from workers.",
    "stalled": "Seconds in which the trainer waited for a batch.",
    "read_here": "Batches that the rank read itself.",
    "held_bytes": "Bytes of batches that wait in the rank.",
    "filled": "The share of what may wait in the rank that does.",
}


class Page:
    """Serves `/`, `/state` and `/metrics` in threads, until `close` or the end of the process."""

    def __init__(self, known: Callable[[], Known], port: int = 0) -> None:
        """`known` is called every second, and for each answer; port 0 is a free one."""
        self._known, self._rates = known, Rates()
        self._served = PageServer(
            {
                "/": (lambda: PAGE, HTML),
                "/state": (lambda: json.dumps(self.state()), "application/json"),
                "/metrics": (self.metrics, "text/plain; version=0.0.4; charset=utf-8"),
            },
            port,
        )
        self.address = self._served.address
        self._closed = threading.Event()
        threading.Thread(target=self._look, daemon=True, name="recd-rates").start()

    def state(self) -> dict[str, Any]:
        """All numbers, with their rates."""
        known = self._known()
        found: dict[str, Any] = {
            kind: [
                {**plain, **self._rates.of(f"{kind} {plain['id']}")}
                for plain in (_plain(one, kind) for one in known[kind])
            ]
            for kind in COUNTERS
        }
        return found | {"scaling": known.get("scaling")}

    def metrics(self) -> str:
        """The numbers in the text format of Prometheus."""
        return metrics(self._known())

    def close(self) -> None:
        """Answer no more requests."""
        self._closed.set()
        self._served.close()

    def _look(self) -> None:
        while not self._closed.wait(LOOK):
            self._rates.note(self._known(), time.monotonic())


class Rates:
    """Each counter's growth per second over the last `SPAN` seconds; the time is passed in."""

    def __init__(self) -> None:
        self._notes: dict[str, deque[tuple[float, dict[str, float]]]] = {}

    def note(self, known: Known, now: float) -> None:
        """Note the present counters; workers and clients that are gone are forgotten."""
        notes = {}
        for kind, names in COUNTERS.items():
            for one in known[kind]:
                who = f"{kind} {one['id']}"
                mine = notes[who] = self._notes.get(who, deque())
                mine.append((now, {name: _number(one.get(name)) for name in names}))
                while mine[0][0] < now - SPAN:
                    mine.popleft()
        self._notes = notes

    def of(self, who: str) -> dict[str, float]:
        """By counter, `NAME_per_s`; empty before the second note."""
        mine = self._notes.get(who)
        if mine is None or len(mine) < 2:
            return {}
        (began, first), (ended, last) = mine[0], mine[-1]
        return {
            f"{name}_per_s": round((last[name] - first[name]) / (ended - began), 4) for name in last
        }


def metrics(known: Known) -> str:
    """Counters and gauges in the text format of Prometheus."""
    lines = []
    for kind, counters in COUNTERS.items():
        one_of = kind.removesuffix("s")
        lines += [f"# TYPE recd_{kind} gauge", f"recd_{kind} {len(known[kind])}"]
        for name in (*counters, *GAUGES[kind]):
            total = name in counters
            unit = "_seconds" if name == "stalled" else ""
            full = f"recd_{one_of}_{name}{unit}{'_total' if total else ''}"
            lines += [
                f"# HELP {full} {HELP[name]}",
                f"# TYPE {full} {'counter' if total else 'gauge'}",
            ]
            lines += [
                f'{full}{{{one_of}="{_label(one["id"])}"}} {_number(one.get(name)):.12g}'
                for one in known[kind]
            ]
    if scaling := known.get("scaling"):
        lines += ["# HELP recd_workers_wanted How many workers there should be."]
        lines += ["# TYPE recd_workers_wanted gauge", f"recd_workers_wanted {scaling['wanted']}"]
        lines += ["# HELP recd_scalings_total Changes of that number."]
        lines += ["# TYPE recd_scalings_total counter"]
        lines += [
            f'recd_scalings_total{{direction="{name}"}} {scaling[name + "s"]}'
            for name in ("up", "down")
        ]
    return "\n".join(lines) + "\n"


def _plain(one: Mapping[str, Any], kind: str) -> dict[str, Any]:
    numbers = {name: _number(one.get(name)) for name in (*COUNTERS[kind], *GAUGES[kind])}
    texts = {name: str(one.get(name, ""))[:120] for name in ("id", "address", "seat", "delivery")}
    return {**texts, **numbers}


def _number(found: Any) -> float:
    return float(found) if isinstance(found, int | float) else 0.0


def _label(text: Any) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Reader service</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --text: #1c2330; --soft: #5b6675; --line: #d9dee6;
  --back: #f7f8fa; --card: #fff; --mark: #2563a8; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ee; --soft: #9aa5b4; --line: #333b47;
  --back: #14181e; --card: #1c222b; --mark: #7db4ec; --bad: #f2a19b; } }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem; font: 15px/1.5 system-ui, sans-serif;
  color: var(--text); background: var(--back); }
h1 { font-size: 1.4rem; margin: 0 0 1rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; }
.sums { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .7rem; }
.sums div { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .8rem; } .sums b { display: block; font-size: 1.35rem; color: var(--mark); }
.sums span, #at { color: var(--soft); font-size: .85rem; }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: .85rem; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
tr + tr td { border-top: 1px solid var(--line); } .gone { color: var(--bad) !important; }
</style></head><body>
<h1>Reader service</h1><div class="sums" id="sums"></div>
<h2>Workers</h2><div class="wide"><table id="workers"></table></div>
<h2>Clients</h2><div class="wide"><table id="clients"></table></div>
<div id="scaling" hidden><h2>Scaling</h2><p id="why"></p>
<div class="wide"><table id="changes"></table></div></div>
<p id="at"></p>
<script>
const whole = n => Math.round(n || 0).toLocaleString("en");
const share = n => (100 * (n || 0)).toFixed(1) + "%";
const mib = n => ((n || 0) / 1048576).toFixed(1);
const columns = {
  workers: [["seat", "seat", String], ["address", "address", String],
    ["batches/s", "made_per_s", n => (n || 0).toFixed(1)], ["rows/s", "rows_per_s", whole],
    ["made", "made", whole], ["given", "served", whole], ["from the buffer", "hits", whole],
    ["windows", "windows", whole], ["buffer, MiB", "buffer_bytes", mib],
    ["ahead, MiB", "wanted_bytes", mib]],
  clients: [["client", "id", s => s.slice(0, 8)], ["registry", "delivery", s => s.slice(0, 8)],
    ["batches/s", "taken_per_s", n => (n || 0).toFixed(1)], ["taken", "taken", whole],
    ["stalled now", "stalled_per_s", share], ["stalled, s", "stalled", n => n.toFixed(2)],
    ["read itself", "read_here", whole], ["buffer, MiB", "held_bytes", mib],
    ["filled", "filled", share]] };
function row(tag, texts) {
  const line = document.createElement("tr");
  for (const text of texts) {
    const cell = document.createElement(tag); cell.textContent = text; line.append(cell); }
  return line; }
const sum = (all, name) => all.reduce((total, one) => total + (one[name] || 0), 0);
function show(state) {
  for (const [name, all] of Object.entries(columns))
    document.getElementById(name).replaceChildren(row("th", all.map(c => c[0])),
      ...state[name].map(one => row("td", all.map(c => c[2](one[c[1]])))));
  const scaling = state.scaling;
  document.getElementById("scaling").hidden = !scaling;
  if (scaling) {
    document.getElementById("why").textContent = `${scaling.wanted} workers are wanted, of ` +
      `${scaling.fewest} to ${scaling.most}: ${scaling.why}.`;
    document.getElementById("changes").replaceChildren(row("th", ["workers", "why", "after, s"]),
      ...scaling.changes.slice(-10).reverse().map(one =>
        row("td", [one.wanted, one.why, one.after.toFixed(0)]))); }
  const stalls = state.clients.map(one => one.stalled_per_s || 0);
  const sums = [["workers", whole(state.workers.length)], ["clients", whole(state.clients.length)],
    ["rows/s made", whole(sum(state.workers, "rows_per_s"))],
    ["batches/s taken", sum(state.clients, "taken_per_s").toFixed(1)],
    ["worst stall now", share(Math.max(0, ...stalls))],
    ["workers' buffers, MiB", mib(sum(state.workers, "buffer_bytes"))]];
  document.getElementById("sums").replaceChildren(...sums.map(([name, text]) => {
    const card = document.createElement("div"), b = document.createElement("b");
    const span = document.createElement("span");
    b.textContent = text; span.textContent = name; card.append(b, span); return card; })); }
async function look() {
  const at = document.getElementById("at");
  try {
    show(await (await fetch("/state")).json()); at.className = "";
    at.textContent = "Rates are means of 10 s. " + new Date().toLocaleTimeString();
  } catch { at.className = "gone"; at.textContent = "The coordinator does not answer."; } }
look(); setInterval(look, 1000);
</script></body></html>
"""
