"""Ranks that live from one call to the next, and what happens to each when one of them fails.

They are forked from a server process that has imported torch and torchrec, so that a rank costs
milliseconds. A rank takes calls over a pipe, answers, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import logging
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, TypeVar

from recd_plugins.errors import so_many
from recd_plugins.launch.environment import HOST, die_with_parent, rank_environment
from recd_plugins.launch.fork_server import fork_server
from recd_plugins.launch.packed import ModuleFiles, pack, unpack

__all__ = ["PRELOADED", "Group", "RankStart", "Ranks", "RanksFailed"]

T = TypeVar("T")

START_LIMIT = 600.0
"""Seconds for a rank to start: it may have to import torch and torchrec on a busy machine."""
GRACE = 5.0
"""Seconds that ranks get to end once one of them has failed."""
DEATH = 0.1
"""Seconds in which a rank's death is seen, after a peer has failed because of it."""
SHOWN = 20_000
"""How many of the last bytes of a rank's output an error shows."""
PRELOADED = ["torchrec", __name__]
"""What the server process imports before it forks the first rank; one server forks all."""

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""The variable by which torch asks the driver how many devices there are without beginning to
use one. fbgemm's CUDA build asks on import, and what is forked from a process that uses CUDA
cannot use it."""


@dataclass(frozen=True, kw_only=True)
class RankStart:
    """How the process of a rank is started."""

    environment: Mapping[str, str]
    """Variables that are set before the rank imports torch."""
    enter: Callable[[], None] | None = None
    """Called first of all, while the rank has one thread."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process group for one call: a rank joins it before the call, and leaves it afterwards."""

    rank: int
    world_size: int
    port: int
    """The port of a store on loopback, which the calls of the same ranks share."""
    call: int
    """The number of the call among those."""
    timeout: timedelta

    def join(self) -> None:
        """Meet the others on loopback, with seeds of 0; they have all joined when this returns.

        So a rank that ends in the call ends no peer that is still joining: each failure is its own.
        """
        import numpy as np
        import torch
        import torch.distributed as dist
        from torch.distributed import PrefixStore

        os.environ.update(rank_environment(self.rank, self.world_size))
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        store = PrefixStore(f"call {self.call}", _connected(self.port))
        store.set_timeout(self.timeout)
        dist.init_process_group(
            "gloo",
            store=store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=self.timeout,
        )
        if store.add("joined", 1) == self.world_size:
            store.set("all joined", "")
        store.wait(["all joined"])


@cache
def _connected(port: int) -> Any:
    """This process's connection to a store, which it has once: torch asks the name server for the
    name of loopback in each, and where that is silent waits for seconds."""
    from torch.distributed import TCPStore

    return TCPStore(HOST, port, is_master=False)


class RanksFailed(Exception):
    """The error of ranks that raised, died or were late; `ranks` says what became of each such
    rank."""

    def __init__(self, what: str, ranks: dict[int, str]) -> None:
        self.ranks = ranks
        parts = [f"---- rank {rank} {text.rstrip()}" for rank, text in ranks.items()]
        super().__init__("\n".join([f"{what}, first to fail first:", *parts]))


class Ranks:
    """Processes that take the same calls, one after another; all of them end if a call fails."""

    def __init__(self, starts: Sequence[RankStart], *, preload: Sequence[str] = PRELOADED) -> None:
        self._processes: list[_Process] = []
        try:
            for start in starts:
                self._processes.append(_Process(start, preload))
            _collect(self._processes, START_LIMIT, "starting a rank")
        except BaseException:
            self.close()
            raise
        for process in self._processes:
            process.release()

    def alive(self) -> bool:
        return bool(self._processes) and all(process.alive() for process in self._processes)

    def run(
        self,
        function: Callable[..., T],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        deadline: float,
        groups: Sequence[Group] = (),
    ) -> list[T]:
        """Call `function(*args, **kwargs)` on every rank, in its group of `groups`, if any;
        returns the results, by rank.

        `function` stands at the top of a module. If a rank raises, dies or is not done within
        `deadline` seconds, all are ended and `RanksFailed` has every traceback, the stacks of those
        that hang, and what they printed.
        """
        __tracebackhide__ = True
        payload, modules = pack((function, tuple(args), dict(kwargs or {})))
        name = getattr(function, "__qualname__", repr(function))
        try:
            for rank, process in enumerate(self._processes):
                process.call(
                    _Call(
                        group=groups[rank] if groups else None,
                        folder=os.getcwd(),
                        path=sys.path,
                        modules=modules,
                        payload=payload,
                    )
                )
            results = _collect(self._processes, deadline, name)
            for process in self._processes:
                process.release()
        except BaseException:
            self.close()
            raise
        return results

    def printed(self) -> list[str]:
        """The output that each rank printed in the latest call."""
        return [process.output() for process in self._processes]

    def close(self) -> None:
        """End all of them, and what they started."""
        while self._processes:
            self._processes.pop().close()


class _Process:
    """One rank's process, as its parent sees it."""

    def __init__(self, start: RankStart, preload: Sequence[str]) -> None:
        os.environ.setdefault(NVML_CHECK, "1")  # for the server, which inherits it
        context = fork_server(*preload)
        self.connection, theirs = context.Pipe()
        # In the folder of the server's socket, which the server removes if this process is killed.
        self._folder = tempfile.TemporaryDirectory(prefix="recd-rank-", dir=get_temp_dir())
        self._printed = Path(self._folder.name) / "printed"
        self._printed.touch()
        self._printed_before = 0
        self._process = context.Process(target=_serve, args=(theirs, self._printed, start))
        self._process.start()
        theirs.close()

    def alive(self) -> bool:
        return self._process.is_alive()

    def call(self, call: _Call) -> None:
        self._printed_before = self._printed.stat().st_size
        with contextlib.suppress(OSError):  # it died since it was ready: `report` says so
            self.connection.send_bytes(pickle.dumps(call))

    def report(self) -> tuple[str, Any] | None:
        """("done", result), ("raised", why), ("died", why), or None while it runs."""
        ended = not self.alive()  # asked first: what it sent before its end is still read
        if self.connection.poll():
            try:
                report: tuple[str, Any] = pickle.loads(self.connection.recv_bytes())
                return report
            except (EOFError, ConnectionError):
                ended = True
        if not ended:
            return None
        self._process.join()
        code = self._process.exitcode or 0
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return "died", f"died ({cause})"

    def release(self) -> None:
        """Let it leave the group: what it held open for its peers closes."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(b"")

    def dump_stacks(self) -> None:
        self._signal(os.kill, signal.SIGUSR1)

    def output(self) -> str:
        """The output that it printed since it was called, or the last of it."""
        with self._printed.open("rb") as file:
            start = max(self._printed_before, file.seek(0, os.SEEK_END) - SHOWN)
            file.seek(start)
            text = file.read().decode(errors="replace")
        return text if start == self._printed_before else f"[...]{text}"

    def kill(self) -> None:
        """End it and the processes that it started."""
        self._signal(os.kill, signal.SIGKILL)  # as long as it has no process group of its own
        self._signal(os.killpg, signal.SIGKILL)
        self._process.join()

    def close(self) -> None:
        self.kill()
        self._process.close()
        self.connection.close()
        self._folder.cleanup()

    def _signal(self, send: Callable[[int, int], None], which: signal.Signals) -> None:
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            send(self._process.pid, which)


def _collect(ranks: list[_Process], deadline: float, what: str) -> list[Any]:
    """The report of each rank, by rank. Raises `RanksFailed` if not all of them report a result."""
    late = f"was still running when the deadline of {deadline:g} s expired"
    ends = time.monotonic() + deadline
    waiting = dict(enumerate(ranks))
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    while waiting and (left := ends - time.monotonic()) > 0:
        # Death shows on the connection, unless a child of the rank holds it: so look often.
        wait([process.connection for process in waiting.values()], timeout=min(left, 0.25))
        found = _reports(waiting)
        if not failures and any(kind == "raised" for kind, _ in found.values()):
            # It may have failed of another's death, which shows by now, or in a moment.
            time.sleep(DEATH)
            found |= _reports({rank: waiting[rank] for rank in waiting.keys() - found.keys()})
        for rank, (kind, value) in sorted(found.items(), key=lambda one: one[1][0] != "died"):
            process = waiting.pop(rank)
            if kind == "done":
                results[rank] = value
                continue
            if not failures:
                late = f"still waited {GRACE:g} s after rank {rank} had failed"
                ends = min(ends, time.monotonic() + GRACE)
            failures[rank] = value
            process.kill()  # so that its peers see it go
    _dump_stacks(list(waiting.values()))
    failures |= dict.fromkeys(waiting, late)
    for rank, why in failures.items():
        if text := ranks[rank].output():
            failures[rank] = f"{why.rstrip()}\n  It printed:\n{text}"
    if failures:
        where = f"{len(failures)} of {so_many(len(ranks), 'rank')}"
        raise RanksFailed(f"{what} failed on {where}", failures)
    return [results[rank] for rank in range(len(ranks))]


def _reports(ranks: Mapping[int, _Process]) -> dict[int, tuple[str, Any]]:
    """The reports so far, by rank."""
    reports = {rank: process.report() for rank, process in ranks.items()}
    return {rank: report for rank, report in reports.items() if report is not None}


def _dump_stacks(ranks: list[_Process]) -> None:
    """Have ranks that hang print their stacks, and wait until they have."""
    for process in ranks:
        process.dump_stacks()
    ends = time.monotonic() + GRACE
    while ranks and time.monotonic() < ends:
        time.sleep(0.1)
        # faulthandler writes the main thread's frames last, and of those the module's, or dots.
        if all(process.output().endswith((" in <module>\n", "  ...\n")) for process in ranks):
            break


@dataclass(frozen=True)
class _Call:
    """The call that a rank makes; `payload` is the pickled (function, args, kwargs)."""

    group: Group | None
    folder: str
    path: list[str]
    modules: ModuleFiles
    payload: bytes


def _serve(connection: Connection, printed: Path, start: RankStart) -> None:
    """Report, wait to be released, take the next call; until the parent closes or dies."""
    os.setsid()  # Ctrl-C is the parent's business; and what a rank starts is killed with it
    if start.enter is not None:
        start.enter()  # before there is a second thread, which would stay outside
    die_with_parent()
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
    os.environ.update(start.environment)
    import torch
    import torch.distributed as dist
    import torchrec  # noqa: F401  # its seconds pass here, not in a call

    torch.set_num_threads(1)
    # TorchRec 1.8 calls what torch 2.13 deprecates, several times a step.
    warnings.simplefilter("ignore", FutureWarning)
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    _collect_and_freeze()
    report, joined = pickle.dumps(("done", None)), False
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closed the ranks
        while True:
            connection.send_bytes(report)
            connection.recv_bytes()
            if joined and dist.is_initialized():
                dist.destroy_process_group()
            _collect_and_freeze()
            call: _Call = pickle.loads(connection.recv_bytes())
            report, joined = _answer(call), call.group is not None


def _collect_and_freeze() -> None:
    """Free the garbage there is, and look no more at what lives: most of it came with imports, and
    a call that imports more would have each later one look through that for 0.1 s and more."""
    gc.collect()
    gc.freeze()


def _answer(call: _Call) -> bytes:
    """The result that the function returned, or its traceback, pickled."""
    try:
        return pack(("done", _run(call)))[0]
    except BaseException as error:  # SystemExit too: the rank lives on
        return pickle.dumps(("raised", "raised\n" + "".join(traceback.format_exception(error))))


def _run(call: _Call) -> Any:
    sys.path[:] = call.path
    os.chdir(call.folder)
    if call.group is not None:
        call.group.join()
    function, args, kwargs = unpack(call.payload, call.modules)
    return function(*args, **kwargs)
