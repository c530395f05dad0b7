"""Ranks to test on: processes started once, joined by a fresh gloo group in every call.

They are forked from a server process that has imported torch and torchrec, so that a
rank costs milliseconds. All sockets are on loopback; the system picks the store's port.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, TypeVar

from recd_plugins.testing.rank import Call, pack, serve
from recd_plugins.trainer.launch import loopback_store

__all__ = ["GlooPool", "RanksFailed"]

T = TypeVar("T")

START_LIMIT = 180.0
"""Seconds for a rank to start: it may have to import torch and torchrec on a busy machine."""
GRACE = 5.0
"""Seconds that ranks get to end once one of them has failed."""
SHOWN = 20_000
"""Bytes of a rank's output that an error shows, from the end."""


class RanksFailed(Exception):
    """At least one rank raised, died or was late; `ranks` says what became of each such rank."""

    def __init__(self, what: str, ranks: dict[int, str]) -> None:
        self.ranks = ranks
        parts = [f"---- rank {rank} {text.rstrip()}" for rank, text in ranks.items()]
        super().__init__("\n".join([f"{what}, first to fail first:", *parts]))


class GlooPool:
    """Runs a function on gloo ranks and returns what each of them returned.

    Each world size has ranks of its own, which live through the same calls: TorchRec keeps
    state per process, and ranks with different pasts would wait for each other. They are
    started when first needed and after a call that failed, and die with their parent.
    """

    def __init__(self, *, deadline: float = 60.0) -> None:
        self.deadline = deadline
        self._ranks: dict[int, list[_Rank]] = {}
        # Before multiprocessing waits for its children, in a main process or a child of one.
        Finalize(self, _close, args=(self._ranks,), exitpriority=100)

    def run(
        self,
        function: Callable[..., T],
        *args: Any,
        world_size: int = 2,
        deadline: float | None = None,
        **kwargs: Any,
    ) -> list[T]:
        """`function(*args, **kwargs)` on every rank; the results, by rank.

        `function` stands at the top of a module (a test module will do) and finds the default
        process group initialised: it asks `torch.distributed.get_rank()` who it is. Seeds
        are 0, torch runs one thread, RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE are
        set; other variables are as they were when the first rank of all was started.
        Arguments and results travel pickled: plain data and tensors.

        If a rank raises, dies or is not done `deadline` seconds after all were ready,
        `RanksFailed` shows every traceback, the stacks of those that hang, and what they
        printed. What ranks printed in a call that went well is printed here.
        """
        __tracebackhide__ = True
        deadline = self.deadline if deadline is None else deadline
        name = getattr(function, "__qualname__", repr(function))
        payload, modules = pack((function, args, kwargs))
        ranks = self._ready(world_size)
        store = loopback_store(world_size)
        try:
            for rank, process in enumerate(ranks):
                process.call(
                    Call(
                        rank=rank,
                        world_size=world_size,
                        port=store.port,
                        timeout=timedelta(seconds=deadline + 60),  # our deadline comes first
                        folder=os.getcwd(),
                        path=sys.path,
                        modules=modules,
                        payload=payload,
                    )
                )
            results = _collect(ranks, deadline, name)
            for rank, process in enumerate(ranks):
                process.release()
                if text := process.output():
                    print(f"[rank {rank}] {text.rstrip()}")
        except BaseException:
            _close({world_size: self._ranks.pop(world_size)})
            raise
        return results

    def close(self) -> None:
        """End all ranks."""
        _close(self._ranks)

    def __enter__(self) -> GlooPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ready(self, world_size: int) -> list[_Rank]:
        """The ranks of this world size, alive and imported."""
        ranks = self._ranks.setdefault(world_size, [])
        if not all(process.alive() for process in ranks):
            _close({world_size: ranks})
        if not ranks:
            try:
                for _ in range(world_size):
                    ranks.append(_Rank())
                _collect(ranks, START_LIMIT, "starting a rank")
            except BaseException:
                _close({world_size: ranks})
                raise
            for process in ranks:
                process.release()
        return ranks


class _Rank:
    """One rank's process, as its parent sees it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torchrec", serve.__module__])
        self.connection, theirs = context.Pipe()
        self._folder = tempfile.TemporaryDirectory(prefix="recd-rank-")
        self._printed = Path(self._folder.name) / "printed"
        self._printed.touch()
        self._start = 0
        self._process = context.Process(target=serve, args=(theirs, self._printed))
        self._process.start()
        theirs.close()

    def alive(self) -> bool:
        return self._process.is_alive()

    def call(self, call: Call) -> None:
        self._start = self._printed.stat().st_size
        with contextlib.suppress(OSError):  # it died since it was ready: `report` says so
            self.connection.send_bytes(pickle.dumps(call))

    def report(self) -> tuple[str, Any] | None:
        """("done", result), ("failed", why), or None while it runs."""
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
        return "failed", f"died ({cause})"

    def release(self) -> None:
        """Let it leave the group: what it held open for its peers closes."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(b"")

    def dump_stacks(self) -> None:
        self._signal(os.kill, signal.SIGUSR1)

    def output(self) -> str:
        """What it printed since it was called, or the last of it."""
        with self._printed.open("rb") as file:
            start = max(self._start, file.seek(0, os.SEEK_END) - SHOWN)
            file.seek(start)
            text = file.read().decode(errors="replace")
        return text if start == self._start else f"[...]{text}"

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


def _close(ranks: dict[int, list[_Rank]]) -> None:
    while ranks:
        _, group = ranks.popitem()
        while group:
            group.pop().close()


def _collect(ranks: list[_Rank], deadline: float, what: str) -> list[Any]:
    """What each rank reports, by rank; `RanksFailed` if they do not all report a result."""
    late = f"was still running when the deadline of {deadline:g} s expired"
    ends = time.monotonic() + deadline
    waiting = dict(enumerate(ranks))
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    while waiting and (left := ends - time.monotonic()) > 0:
        # Death shows on the connection, unless a child of the rank holds it: so look often.
        wait([process.connection for process in waiting.values()], timeout=min(left, 0.25))
        for rank, process in list(waiting.items()):
            report = process.report()
            if report is None:
                continue
            del waiting[rank]
            kind, value = report
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
        raise RanksFailed(f"{what} failed on {len(failures)} of {len(ranks)} ranks", failures)
    return [results[rank] for rank in range(len(ranks))]


def _dump_stacks(ranks: list[_Rank]) -> None:
    """Make ranks that hang print their stacks, and see it done."""
    for process in ranks:
        process.dump_stacks()
    sizes: list[int] = []
    for _ in range(10 if ranks else 0):
        time.sleep(0.2)
        before, sizes = sizes, [len(process.output()) for process in ranks]
        if before == sizes and all(sizes):
            break
