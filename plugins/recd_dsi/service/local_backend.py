"""`backend: local`: workers as processes of this machine, which are restarted if they end.

They are forked from a server that has imported TorchRec, so a worker is back within a second. They
end together with the process that started them, however it ends.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from recd_dsi.service.worker import Worker, WorkerOptions, settle
from recd_plugins.api import CapabilityError, RecdError, so_many
from recd_plugins.api.reading import Delivery, die_with_parent, fork_server, notices_as_lines

__all__ = ["LocalBackend"]

LOOK = 0.1
"""Seconds between two checks that all workers are there."""
PAUSE = 2.0
"""Seconds until a process that ended before it served is restarted."""
START = 300.0
"""Seconds within which the first worker must serve."""
ENDED = 3
"""If this many processes end before they serve, it is assumed that none will serve."""
UNGUARDED = (
    "If a trainer's file trains when it is imported, each worker would run it again: begin its "
    "code with "
    '`if __name__ == "__main__":`.'
)


class LocalBackend:
    """N workers of one registry; `changed` is called with those that are there, by seat."""

    def __init__(
        self,
        delivery: Delivery,
        options: WorkerOptions,
        workers: int,
        changed: Callable[[dict[int, str]], None],
    ) -> None:
        self._text, self._options, self._changed = delivery.text(), options, changed
        self._context = fork_server(Worker.__module__, "recd_dsi.transforms.records")
        self._lock = threading.Lock()
        self._processes: list[_WorkerProcess | None] = [None] * workers
        self._again = [0.0] * workers
        self._closed = False
        self._error: RecdError | None = None
        self._ended = 0
        self._first = threading.Event()
        threading.Thread(target=self._keep, daemon=True, name="recd-backend").start()

    def wait(self) -> None:
        """Return once a worker serves; raises an error if none can, and then starts no more."""
        if not self._first.wait(START):
            self.close()
            raise CapabilityError(
                f"reader: none of {so_many(len(self._processes), 'worker')} served within "
                f"{START:g} s. Check what `recd serve worker` prints, or choose `reader: local`."
            )
        if self._error is not None:
            self.close()
            raise self._error

    @property
    def pids(self) -> list[int | None]:
        """The workers' processes, by seat; None for a seat without one."""
        return [None if one is None else one.process.pid for one in self._processes]

    def resize(self, workers: int) -> None:
        """Run this many workers from now on; surplus workers in the last seats are ended."""
        with self._lock:
            more = workers - len(self._processes)
            gone = self._processes[workers:]
            del self._processes[workers:], self._again[workers:]
            self._processes += [None] * more
            self._again += [0.0] * more
        for one in gone:
            if one is not None:
                one.end()

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            self._closed = True
            for one in self._processes:
                if one is not None:
                    one.end()

    def _keep(self) -> None:
        before: dict[int, str] = {}
        while True:
            with self._lock:
                if self._closed:
                    return
                for seat in range(len(self._processes)):
                    self._look(seat)
                there = {
                    seat: one.address
                    for seat, one in enumerate(self._processes)
                    if one is not None and one.address
                }
            if there != before:
                self._changed(there)
                before = there
            if there:
                self._first.set()
            time.sleep(LOOK)

    def _look(self, seat: int) -> None:
        """Start the worker of a seat if it is not there."""
        one = self._processes[seat]
        if one is None:
            if time.monotonic() >= self._again[seat]:
                self._start(seat)
            return
        found = one.look()
        if isinstance(found, RecdError):
            self._fail(found)
        if one.process.is_alive():
            return
        if not one.address:
            self._again[seat] = time.monotonic() + PAUSE
            self._ended += 1
            if self._ended == ENDED:
                self._fail(
                    CapabilityError(
                        f"reader: {ENDED} processes of workers ended before they served, the last "
                        f"with exit code {one.process.exitcode}; they have printed why. {UNGUARDED}"
                    )
                )
        one.end()
        self._processes[seat] = None

    def _start(self, seat: int) -> None:
        try:
            self._processes[seat] = _WorkerProcess(self._context, self._text, self._options)
        except (OSError, RuntimeError) as error:
            what = str(error).strip().partition("\n")[0].strip()
            self._again[seat] = time.monotonic() + PAUSE
            self._fail(
                CapabilityError(f"reader: no worker's process can be started ({what}). {UNGUARDED}")
            )

    def _fail(self, error: RecdError) -> None:
        """Report an error to whoever waits for the first worker."""
        self._error = error
        self._first.set()


class _WorkerProcess:
    """A worker's process, and the pipe through which it reports its address."""

    def __init__(self, context: Any, text: str, options: WorkerOptions) -> None:
        self.address = ""
        self._pipe, pipe = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_serve, args=(text, options, pipe), daemon=True, name="recd-worker"
        )
        self.process.start()
        pipe.close()

    def look(self) -> RecdError | None:
        """Note the address that the process has sent; returns an error if it cannot serve, else
        None."""
        with contextlib.suppress(EOFError, OSError):
            while self._pipe.poll():
                kind, text = self._pipe.recv_bytes().decode().split(" ", 1)
                if kind != "serves":
                    return CapabilityError(text)
                self.address = text
        return None

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self._pipe.close()


def _serve(text: str, options: WorkerOptions, pipe: Connection) -> None:
    """The program that a worker's process runs."""
    from recd_dsi.service.coordinator_callers import join

    die_with_parent(only=True)
    settle()
    notices_as_lines(on_errors=True)
    sys.stdout = sys.stderr  # what plugins print is not part of the command's output
    try:
        worker = Worker(Delivery.from_text(text), options)
    except RecdError as error:
        pipe.send_bytes(f"error {error}".encode())
        return
    if options.join is not None:
        join(worker, options.join, options.credentials)
    pipe.send_bytes(f"serves {worker.address}".encode())
    worker.serve()
