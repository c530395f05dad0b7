"""Trials of a coordinator, workers and a rank that trains, each a process, with faults during the
run.

Losses and batches must be equal, to the bit, to those of an undisturbed run with the local reader.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure
from benchmarks.service import jumping_clock
from benchmarks.service.faults import FAULTS, Fault
from benchmarks.service.proxy import Proxy
from benchmarks.service.rank import losses_of, run_rank, steps_of
from benchmarks.service.registries import KINDS, stack_of
from recd_dsi.service.coordinator import Coordinator
from recd_dsi.service.coordinator_callers import join
from recd_dsi.service.credentials import NO_CREDENTIALS
from recd_dsi.service.local_backend import LocalBackend
from recd_dsi.service.worker import Worker, WorkerOptions
from recd_plugins.launch.environment import die_with_parent
from recd_plugins.stack import load

__all__ = ["Service", "prepare", "trial", "trials"]

WORKERS = 2
SOON = 0.1
"""The most seconds between a step and the fault that it starts."""
DEADLINE = 900.0
"""The seconds within which a run must end, on a machine that is busy with other work."""
MIB = 1 << 20
MOST_HELD = 2 * MIB
"""The most bytes that may wait in the rank: 1 MiB, and what is on its way."""
CLOCK = "clock"
"""The name of the file that says by how much the wall clocks of all processes are off."""
PRELOADED = [jumping_clock.__name__, Worker.__module__, run_rank.__module__]


class Service:
    """The processes of one run, and what faults need to know of them."""

    def __init__(self, folder: Path, kind: str, fault: Fault, chance: random.Random) -> None:
        """`folder` has the run's own copy of the tables."""
        self._folder, self._fault, self.chance = folder, fault, chance
        (self.file,) = (folder / "train").glob("*.parquet")
        self.cache, self.clock = folder / "cache", folder.parent.parent / CLOCK
        self.wrong: list[str] = []
        """What else was wrong, beside losses."""
        self.ended: list[str] = []
        """The messages with which the rank ended."""
        self.open: list[socket.socket] = []
        self.strangers: list[Worker] = []
        self._context = multiprocessing.get_context("forkserver")
        self._timers: list[threading.Timer] = []
        self._closed = threading.Event()
        self._proxies: dict[str, Proxy] = {}
        self._kept = (folder / "kept").with_suffix(".parquet")
        shutil.copy(self.file, self._kept)
        self._port = 0
        self.coordinator = self._coordinate()
        self.address = f"127.0.0.1:{self._port}"
        reader = {
            "use": "service",
            "coordinator": self.address,
            "workers": WORKERS + 1,
            "prefetch_mib": 1,
            "hedge": 0.3,
            "when_none_answers": "fail",
            # A run that may end waits no longer for a worker that no longer starts.
            "patience": 10 if fault.may_end else 120,
        }
        self.registry = registry_of(folder, kind, reader)
        self.delivery = load(self.registry).delivery()
        options = WorkerOptions(
            buffer_bytes=1 if fault.cache else MIB,
            disk=self.cache if fault.cache else None,
            join=None if fault.proxied else self.address,
        )
        self._backend = LocalBackend(self.delivery, options, WORKERS, self._changed)
        self._backend.wait()
        threading.Thread(target=self._keep_coordinator, daemon=True).start()
        self.rank: BaseProcess = self.coordinator

    def workers(self) -> list[int]:
        """The workers' processes."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            found = [pid for pid in self._backend.pids if pid is not None]
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError("no worker was started again")

    def proxies(self) -> list[Proxy]:
        """The proxies of the workers that are there."""
        return list(self._proxies.values())

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something from another thread."""
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def run(self, at: set[int]) -> list[str]:
        """Train, with the fault at these steps. Returns each step's loss and batch."""
        until = time.monotonic() + DEADLINE
        while self._run(at, until) != "done":
            self._recover()
        return steps_of(self._folder)

    def close(self) -> None:
        """End everything."""
        self._closed.set()
        for timer in self._timers:
            timer.join()
        self._backend.close()
        for process in (self.rank, self.coordinator):
            process.kill()
            process.join()
        for proxy in self._proxies.values():
            proxy.close()
        for connection in self.open:
            connection.close()
        for worker in self.strangers:
            worker.stop()

    def _run(self, at: set[int], until: float) -> str:
        """Wait until the rank's process ends. Returns how it ended."""
        pipe, theirs = self._context.Pipe()
        given = (self.registry, self._folder, sorted(at), theirs)
        self.rank = self._context.Process(target=run_rank, args=given, daemon=True)
        self.rank.start()
        theirs.close()
        with pipe, contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
            while True:
                if not pipe.poll(max(0.0, until - time.monotonic())):
                    self.rank.kill()
                    raise AssertionError(f"the rank did not end within {DEADLINE:g} s")
                word, _, text = pipe.recv_bytes().decode().partition(" ")
                if word == "holds":
                    if int(text) > MOST_HELD:
                        self.wrong.append(f"{text} bytes waited in the rank")
                    continue
                if word == "at":
                    at.discard(int(text))
                    if self._fault.paused:
                        self._happen()
                    else:
                        self.later(self.chance.uniform(0, SOON), self._happen)
                    pipe.send_bytes(b"go on")
                    continue
                self.rank.join()
                if word == "error":
                    self.ended.append(text)
                    if not self._fault.may_end:
                        raise AssertionError(f"the rank ended: {text}")
                return word
        self.rank.join()
        return "killed"

    def _happen(self) -> None:
        try:
            self._fault.happen(self)
        except Exception as error:
            self.wrong.append(f"{self._fault.name}: {type(error).__name__}: {error}")

    def _recover(self) -> None:
        """Do what an operator would: restore the file, and end workers that read another one."""
        for timer in self._timers:
            timer.join()
        if self._fault.may_end:
            shutil.copy(self._kept, self.file)
            for pid in self._backend.pids:
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def _coordinate(self) -> BaseProcess:
        pipe, theirs = self._context.Pipe()
        process = self._context.Process(target=_coordinate, args=(self._port, theirs), daemon=True)
        process.start()
        theirs.close()
        with pipe, contextlib.suppress(EOFError):
            self._port = int(pipe.recv_bytes())
        return process

    def _keep_coordinator(self) -> None:
        while not self._closed.is_set():
            self.coordinator.join(0.1)
            if self.coordinator.exitcode is not None and not self._closed.is_set():
                time.sleep(self.chance.uniform(0, 1.0))
                self.coordinator = self._coordinate()

    def _changed(self, there: dict[int, str]) -> None:
        """If a fault needs proxies, workers join with the addresses of their proxies."""
        if not self._fault.proxied:
            return
        for address in there.values():
            if address not in self._proxies:
                proxy = self._proxies[address] = Proxy(address)
                join(_Behind(proxy, self.delivery.digest), self.address, NO_CREDENTIALS)


class _Behind:
    def __init__(self, proxy: Proxy, delivery: str) -> None:
        self._about = {"id": proxy.address, "address": proxy.address, "delivery": delivery}

    def about(self) -> dict[str, str]:
        return self._about


def _coordinate(port: int, pipe: Connection) -> None:
    die_with_parent()
    server = Coordinator(port=port)
    pipe.send_bytes(str(server.port).encode())
    server.serve()


def registry_of(folder: Path, kind: str, reader: dict[str, Any]) -> dict[str, Any]:
    """A registry over the tables of a folder."""
    return {
        "plugins": ["recd_dlrm", "recd_dedup", "recd_dsi"],
        "folder": str(folder / "made"),
        "dataset": {
            "use": "parquet",
            "train": str(folder / "train"),
            "test": str(folder / "test"),
        },
        "preprocess": [{"use": "sigrid_hash", "features": "*", "modulo": 1_000}],
        "reader": reader,
        "train": {"batch_size": 64, "device": "cpu"},
        **KINDS[kind],
    }


def trial(folder: Path, fault: Fault, seed: int) -> str:
    """What was wrong in one run; if it is empty, nothing was. `folder` has what `prepare` made."""
    chance = random.Random(f"{fault.name} {seed}")
    kind = chance.choice(list(KINDS))
    expected = (folder / f"losses of {kind}").read_text().splitlines()
    own = folder / f"trial {seed}"
    for split in ("train", "test"):
        shutil.copytree(folder / split, own / split)
    service = None
    try:
        service = Service(own, kind, fault, chance)
        at = chance.sample(range(1, len(expected) - 1), fault.times)
        found = service.run({*at})
        if found != expected:
            service.wrong.append(f"{_differ(found, expected)} steps differ")
        return "; ".join(service.wrong)
    except AssertionError as error:
        return str(error)
    finally:
        if service is not None:
            service.close()
        shutil.rmtree(own)


def prepare(folder: Path, samples: int) -> None:
    """Make the tables, and the results of an undisturbed rank. Processes are forked from one that
    has imported everything that they import."""
    folder.mkdir(exist_ok=True)
    multiprocessing.set_forkserver_preload(PRELOADED)
    multiprocessing.forkserver.ensure_running()
    stack = stack_of(folder / "made", "KJT", {"use": "local"}, samples=samples, batch_size=64)
    tables = stack.delivery().open().tables
    for split in ("train", "test"):
        shutil.copytree(Path(str(tables[split].path)), folder / split)
    for kind in KINDS:
        alone = folder / f"alone {kind}"
        found = losses_of(registry_of(folder, kind, {"use": "local"}), alone)
        (folder / f"losses of {kind}").write_text("\n".join(found))


def trials(folder: Path, count: int, *, seed: int = 0, faults: Sequence[Fault] = FAULTS) -> Figure:
    """This many runs, with the faults in turn."""
    jumping_clock.begin(folder / CLOCK)
    prepare(folder / "trials", samples=6_000)
    done: Counter[str] = Counter()
    same = 0
    for number in range(count):
        fault = faults[number % len(faults)]
        began = time.monotonic()
        wrong = trial(folder / "trials", fault, seed * 1_000 + number)
        done[fault.name] += 1
        same += not wrong
        took = time.monotonic() - began
        outcome = wrong or "the same losses and batches"
        print(f"trial {number + 1}: {fault.name}: {outcome} ({took:.0f} s)", file=sys.stderr)
    return Figure(
        name="trials of random faults whose losses and batches were all the undisturbed run's",
        value=same,
        unit=f"of {count}",
        target=count,
        note=f"seed {seed}; " + ", ".join(f"{name} {times}" for name, times in done.items()),
    )


def _differ(found: Sequence[str], expected: Sequence[str]) -> int:
    same = sum(one == other for one, other in zip(found, expected, strict=False))
    return max(len(found), len(expected)) - same
