"""What can go wrong in a service: each fault hits processes at random times during a run."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.service import jumping_clock
from recd_dsi.service.coordinator_callers import join
from recd_dsi.service.credentials import NO_CREDENTIALS
from recd_dsi.service.worker import Worker, WorkerOptions
from recd_plugins.errors import RegistryError

if TYPE_CHECKING:
    from benchmarks.service.trials import Service

__all__ = ["FAULTS", "Fault"]

LARGEST_FILE = 1 << 16
"""The most bytes of a file of the cache, as if the disk were full."""
FLAT = 1 << 18
"""If memory grows by fewer bytes than this in half a second, it counts as not growing."""
PATIENCE = 60.0
"""The seconds within which memory must stop growing."""
HANGS = 1.5
"""The seconds for which a process hangs."""
DAY = 86_400.0


class Fault(NamedTuple):
    """A fault, and what a run with it may do."""

    name: str
    happen: Callable[[Service], None]
    times: int = 3
    """How often the fault happens in a run."""
    may_end: bool = False
    """Whether the run may end with a message, and be started again where it was."""
    proxied: bool = False
    """Whether calls to workers go through proxies."""
    paused: bool = False
    """Whether the rank takes no batch while the fault happens."""
    cache: bool = False
    """Whether workers have a cache on disk, and memory for one batch."""


def _kill(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _stop(service: Service, pid: int | None) -> None:
    """The process hangs, and continues later."""

    def send(which: signal.Signals) -> None:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)

    send(signal.SIGSTOP)
    service.later(service.chance.uniform(0.2, HANGS), lambda: send(signal.SIGCONT))


def kill_worker(service: Service) -> None:
    _kill(service.chance.choice(service.workers()))


def kill_workers(service: Service) -> None:
    for pid in service.workers():
        _kill(pid)


def kill_coordinator(service: Service) -> None:
    _kill(service.coordinator.pid)


def kill_rank(service: Service) -> None:
    _kill(service.rank.pid)


def stop_worker(service: Service) -> None:
    _stop(service, service.chance.choice(service.workers()))


def stop_workers(service: Service) -> None:
    for pid in service.workers():
        _stop(service, pid)


def stop_coordinator(service: Service) -> None:
    _stop(service, service.coordinator.pid)


def stop_rank(service: Service) -> None:
    _stop(service, service.rank.pid)


def truncate_file(service: Service) -> None:
    """The table's file is cut short in place."""
    os.truncate(service.file, service.chance.randrange(service.file.stat().st_size))


def replace_file(service: Service) -> None:
    """Another file with equally many rows takes its name, and a new worker opens it."""
    other = service.file.with_suffix(".other")
    with pq.ParquetFile(service.file) as file, pq.ParquetWriter(other, file.schema_arrow) as sink:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group)
            sink.write_table(rows.take(pa.array(range(len(rows))[::-1])), row_group_size=len(rows))
    other.rename(service.file)
    kill_worker(service)


def fill_disk(service: Service) -> None:
    """From now on, each write of a file of the cache fails halfway."""
    most = service.chance.randrange(LARGEST_FILE)
    for pid in service.workers():
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))


def damage_cache(service: Service) -> None:
    """A bit of each file of the cache is flipped, or the file is cut short."""
    for path in service.cache.iterdir():
        with contextlib.suppress(OSError):
            whole = bytearray(path.read_bytes())
            if not whole:  # it is being written
                continue
            at = service.chance.randrange(len(whole))
            if service.chance.random() < 0.5:
                whole[at] ^= 1 << service.chance.randrange(8)
                path.write_bytes(whole)
            else:
                os.truncate(path, at)


def consume_slowly(service: Service) -> None:
    """The rank takes no batch until no process's memory grows. Then it reports how much waits in
    it."""
    pids = [service.rank.pid, *service.workers()]
    until, before, flat = time.monotonic() + PATIENCE, -FLAT, 0
    while flat < 3 and time.monotonic() < until:
        time.sleep(0.5)
        now = sum(map(_resident, pids))
        flat = flat + 1 if now - before < FLAT else 0
        before = now
    if flat < 3:
        service.wrong.append(f"memory grows after {PATIENCE:g} s in which nobody takes")


def cut_connections(service: Service) -> None:
    """Connections to a worker die without notice, and others are opened that send nothing."""
    proxies = service.proxies()
    if proxies:
        service.chance.choice(proxies).cut(service.chance.uniform(0.0, HANGS))
    for address in (service.address, *(proxy.target for proxy in proxies)):
        host, _, port = address.rpartition(":")
        for text in (b"", b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\n\r\n"):
            with contextlib.suppress(OSError):
                one = socket.create_connection((host, int(port)))
                one.sendall(text)
                service.open.append(one)


def jump_clocks(service: Service) -> None:
    """The wall clock of each process jumps to another day."""
    jumping_clock.jump(service.clock, service.chance.uniform(-999, 999) * DAY)


def join_another_registry(service: Service) -> None:
    """A worker that makes other batches claims to make these."""
    values = service.delivery.values
    other = replace(service.delivery, values={**values, "train": {**values["train"], "seed": 77}})
    worker = Worker(other, WorkerOptions())
    threading.Thread(target=worker.serve, daemon=True).start()
    service.strangers.append(worker)
    join(_Liar(worker.address, service.delivery.digest), service.address, NO_CREDENTIALS)


def start_another_version(service: Service) -> None:
    """A worker whose plugins are of other versions does not start."""
    providers = {slot: f"{one}.1" for slot, one in service.delivery.providers.items()}
    try:
        Worker(replace(service.delivery, providers=providers), WorkerOptions())
    except RegistryError as error:
        if "Install the same versions" in str(error):
            return
    service.wrong.append("a worker of other versions started")


class _Liar:
    """A worker that claims another delivery than it has."""

    def __init__(self, address: str, delivery: str) -> None:
        self._about = {"id": f"liar {address}", "address": address, "delivery": delivery}

    def about(self) -> dict[str, str]:
        return self._about


def _resident(pid: int | None) -> int:
    """The bytes of memory of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


FAULTS = (
    Fault("kill -9 of a worker", kill_worker),
    Fault("kill -9 of all workers", kill_workers),
    Fault("kill -9 of the coordinator", kill_coordinator),
    Fault("kill -9 of the rank", kill_rank),
    Fault("a worker hangs", stop_worker),
    Fault("all workers hang", stop_workers),
    Fault("the coordinator hangs", stop_coordinator),
    Fault("the rank hangs", stop_rank),
    Fault("a file cut short", truncate_file, times=1, may_end=True),
    Fault("a file replaced", replace_file, times=1, may_end=True),
    Fault("a full disk under the cache", fill_disk, cache=True),
    Fault("damaged files in the cache", damage_cache, cache=True),
    Fault("a slow rank", consume_slowly, paused=True),
    Fault("half-open connections", cut_connections, proxied=True),
    Fault("clocks jump", jump_clocks),
    Fault("a worker of another registry", join_another_registry, times=1),
    Fault("a worker of another version", start_another_version, times=1),
)
