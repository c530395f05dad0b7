"""The cost of a coordinator, which the simulated workers and clients of a large fleet call as real
ones do."""

from __future__ import annotations

import heapq
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Figure
from recd_dsi.service.calls import Caller
from recd_dsi.service.credentials import NO_CREDENTIALS
from recd_plugins.launch.processes import stat_of

__all__ = ["coordinator_load"]

CLIENTS, ASKED = 64, 8
CALLERS = 16
"""The number of connections that all callers share, so that the coordinator is measured and not
this process."""
DELIVERY = "0123456789abcdef"


def coordinator_load(workers: int, seconds: float) -> Figure:
    """The processor time of a coordinator's process, once all callers call at their interval. The
    more workers there are, the longer that interval is."""
    command = [sys.executable, "-m", "recd_dsi.service.cli", "coordinator", "--page", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("serves ").strip()
        fleet = _Simulated(address, workers)
        fleet.settle()
        calls, began, used = fleet.calls, time.monotonic(), stat_of(process.pid).seconds
        time.sleep(seconds)
        used, took = stat_of(process.pid).seconds - used, time.monotonic() - began
        calls = fleet.calls - calls
        fleet.close()
    finally:
        process.kill()
        process.wait()
    return Figure(
        name=f"coordinator of {workers:,} workers and {CLIENTS} clients: share of a core",
        value=used / took,
        unit="of 1",
        target=0.05,
        at_most=True,
        note=f"processor time of its process, page and all, over {took:.0f} s with "
        f"{calls / took:.0f} calls a second, {fleet.refused} of them refused; the callers are "
        "simulated",
    )


class _Simulated:
    """Sends heartbeats and questions, each as often as the coordinator requires."""

    def __init__(self, address: str, workers: int) -> None:
        self.calls = self.refused = 0
        self._heard: dict[int, int] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        turns: list[tuple[Callable[[Caller], float]]] = []
        turns += [(self._worker(number),) for number in range(workers)]
        turns += [(self._client(number),) for number in range(CLIENTS)]
        self._speaking = len(turns)
        now = time.monotonic()
        self._due = [(now + n / 200, n, turn) for n, (turn,) in enumerate(turns)]
        heapq.heapify(self._due)
        for _ in range(CALLERS):
            caller = Caller(address, NO_CREDENTIALS)
            threading.Thread(target=self._speak, args=(caller,), daemon=True).start()

    def settle(self) -> None:
        """Return once all have called twice, the second time at their interval."""
        while min((self._heard.get(n, 0) for n in range(self._speaking)), default=0) < 2:
            time.sleep(0.2)

    def close(self) -> None:
        """Stop calling."""
        self._closed.set()

    def _worker(self, number: int) -> Callable[[Caller], float]:
        about: dict[str, Any] = {
            "id": uuid.uuid4().hex[:12],
            "address": f"10.0.{number >> 8}.{number & 255}:8815",
            "pid": 4000 + number,
            "delivery": DELIVERY,
            "tables": {"train": "ab" * 8},
            "began": 1.7e9,
            "made": 0,
            "rows": 0,
            "served": 0,
            "hits": 0,
            "windows": 0,
            "seconds_made": 0.0,
            "buffer_bytes": 1 << 28,
            "wanted_bytes": 1 << 27,
            "seat": None,
        }

        def speak(caller: Caller) -> float:
            about["made"] += 100
            answer = caller.act("heartbeat", about, 10.0)
            about["seat"] = answer["seat"]
            return float(answer["interval"])

        return speak

    def _client(self, number: int) -> Callable[[Caller], float]:
        body: dict[str, Any] = {
            "id": uuid.uuid4().hex[:12],
            "delivery": DELIVERY,
            "rank": number,
            "most": ASKED,
            "taken": 0,
            "stalled": 0.0,
            "read_here": 0,
            "held_bytes": 1 << 26,
            "workers": [],
        }

        def ask(caller: Caller) -> float:
            body["taken"] += 100
            answer = caller.act("workers", body, 10.0)
            body["workers"] = [
                {"seat": one["seat"], "address": one["address"]} for one in answer["workers"]
            ]
            return float(answer["interval"])

        return ask

    def _speak(self, caller: Caller) -> None:
        while not self._closed.is_set():
            with self._lock:
                due, number, turn = self._due[0]
                mine = due <= time.monotonic()
                if mine:
                    heapq.heappop(self._due)
            if not mine:
                time.sleep(0.005)
                continue
            try:
                pause = turn(caller)
            except Exception:
                if self._closed.is_set():
                    return
                self.refused, pause = self.refused + 1, 1.0
            with self._lock:
                self.calls += 1
                self._heard[number] = self._heard.get(number, 0) + 1
                heapq.heappush(self._due, (time.monotonic() + pause, number, turn))
