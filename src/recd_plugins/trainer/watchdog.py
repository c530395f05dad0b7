"""A watch over the ranks of a run: if none of them makes progress, the job ends and says which rank
hangs, and where.

Before the first step nobody knows how long things take: tables are made, a checkpoint of any size
is read. During that time a rank makes progress as long as its processes compute or read. Ranks that
wait for it learn of that through the group's store, and count as making progress too.

Each rank has a thread that checks how long ago the rank last marked a step. Ranks step together, so
one that hangs stops all of them, and each notices it by itself at about the same time: nothing is
sent as long as all goes well. Then each rank says through the group's store where it stands. A rank
that says nothing is stopped, or cannot run Python. A rank of the same host then looks at the state
of its process, and has faulthandler write its stacks, which needs no Python.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import Store

from recd_plugins.compat.pytorch import own_store
from recd_plugins.launch.first_failure import leave_failure
from recd_plugins.launch.launcher import EXPLAINED
from recd_plugins.launch.processes import stat_of, with_those_below
from recd_plugins.storage.whole_file import write_whole
from recd_plugins.trainer.standing import Standing, main_frames, titled, verdict, waits

__all__ = ["Watchdog"]

T = TypeVar("T")

REFUSES = 5.0
"""Seconds after which a store, a disk or a process counts as not answering."""
ANSWERS = 3.0
"""Seconds that a rank gets, at the least, to say where it stands."""
FIRST = 120.0
"""Seconds that what comes before a second step may take at least: it imports, compiles, and starts
to read."""
STATES = {
    "T": "is stopped (SIGSTOP or SIGTSTP)",
    "t": "is stopped by a debugger",
    "D": "waits for a disk or a mount, and cannot be interrupted",
    "Z": "has died",
    "X": "has died",
}
"""What the system says of a process that does not answer."""
LEAST = (0.02, 1 << 16)
"""A process works if it computes for this share of a second, or reads and writes so many bytes in
one. A process that waits does less of both: its threads look around now and then."""
BUSY = "runs, and keeps Python from running in it"
DUMP = getattr(signal, "SIGRTMAX", None)
"""The signal by which faulthandler writes a rank's stacks; one that no scheduler sends. None where
there is none such, as on macOS."""

_numbers = count()


class Watchdog:
    """Ends the job if no rank has set a mark for `limit` seconds; every rank must have one.

    `limit` 0 watches nothing. Stacks of all ranks are written to `folder`. Time for which a whole
    process was stopped, as by a scheduler that suspends the job, does not count. From the watch's
    beginning, and after a mark that says so, the ranks are starting: then they may go at least
    `first` seconds without any of them working.
    """

    def __init__(self, limit: float, folder: Path, *, first: float = FIRST) -> None:
        self.folder = folder
        self._limit = limit
        self._first = max(limit, first)
        self._grace = min(30.0, max(ANSWERS, limit / 10))
        """Seconds that the others get to say where they stand once this rank has noticed: they may
        have set their latest mark that much later."""
        self._prefix = f"watchdog/{next(_numbers)}"
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._since = time.monotonic()
        self._marks = 0
        self._doing = "starting"
        self._starting = True
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def mark(self, doing: str, *, starting: bool = False) -> None:
        """Note that this rank makes progress: it begins something that all ranks do and mark."""
        self._since = time.monotonic()
        self._marks += 1
        self._doing = doing
        self._starting = starting

    def __enter__(self) -> Watchdog:
        if self._limit:
            self._file = tempfile.TemporaryFile()  # until the watch ends
            if DUMP is not None:
                faulthandler.register(DUMP, self._file, all_threads=True)
            self._store = own_store()
            self._host = socket.gethostname()
            process = {
                "host": self._host,
                "pid": os.getpid(),
                "file": self._file.fileno(),
                "thread": threading.main_thread().ident,
            }
            self._store.set(f"{self._prefix}/process/{self._rank}", json.dumps(process))
            self.mark(self._doing, starting=True)
            self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            if DUMP is not None:
                faulthandler.unregister(DUMP)
            self._file.close()

    def _watch(self) -> None:
        pause = min(1.0, self._limit / 10)
        woke = time.monotonic()
        start = _Start(self._store, f"{self._prefix}/works", max(1.0, self._limit / 10))
        while not self._ended.wait(pause):
            now = time.monotonic()
            if (stood := now - woke - pause) > 1:
                self._since += stood  # this process stood still, not its main thread alone
            woke = now
            if self._starting and start.gets_on(now):
                self._since = now
            limit = self._first if self._starting else self._limit
            if now - self._since > limit:
                self._end_job(limit)

    def _end_job(self, limit: float) -> None:
        """Say where this rank stands, hear where the others stand, report it, and end the
        process."""
        # Whatever fails on this way, the job ends: it hangs.
        text = f"no rank has made a step for {limit:g} s (train.hang_after)"
        try:
            standings = _within(self._grace + 3 * REFUSES, self._gathered)
            if standings is None:
                text = _unreachable(limit)
            else:
                text = verdict(standings, limit, self.folder)
                if self._rank != _leader(standings):
                    time.sleep(self._grace)  # the leader's end is the job's, and it has the message
                elif not _within(REFUSES, lambda: _write(standings, self.folder)):
                    text = "\n\n".join([*(titled(one) for one in standings), text])
        finally:
            os.write(2, f"error: {text}\n".encode())
            _within(REFUSES, leave_failure)
            os._exit(EXPLAINED)

    def _gathered(self) -> list[Standing]:
        """The place where each rank stands, by rank."""
        self._say(self._rank, self._standing())
        missing = self._missing(range(self._world_size), self._grace)
        for rank in missing:
            if self._is_witness(rank, missing):
                self._say(rank, self._inspected(rank))
        unseen = self._missing(missing, REFUSES)
        return [
            self._unseen(rank) if rank in unseen else self._heard(rank)
            for rank in range(self._world_size)
        ]

    def _standing(self) -> Standing:
        faulthandler.dump_traceback(self._file, all_threads=True)
        stacks = os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size, 0).decode()
        at = main_frames(stacks, threading.main_thread().ident or 0)
        return Standing(
            rank=self._rank,
            host=self._host,
            pid=os.getpid(),
            marks=self._marks,
            doing=self._doing,
            waits=bool(at) and waits(at[0]),
            stacks=stacks,
            at=at,
        )

    def _inspected(self, rank: int) -> Standing:
        """The state of a rank of this host that does not answer, as far as it can be seen from
        outside."""
        process = self._process(rank)
        pid = process["pid"]
        state = _state(pid)
        stacks = ""
        if DUMP is not None and state not in "ZX":
            with (
                contextlib.suppress(OSError),
                # Open before it goes on, for it may then close the file.
                Path(f"/proc/{pid}/fd/{process['file']}").open(errors="replace") as file,
            ):
                os.kill(pid, DUMP)
                os.kill(pid, signal.SIGCONT)  # one that is stopped takes the signal first of all
                ends = time.monotonic() + REFUSES / 2
                while time.monotonic() < ends:  # it writes line by line, other threads first
                    time.sleep(0.1)
                    more = file.read()
                    stacks += more
                    if not more and main_frames(stacks, process["thread"]):
                        break
                if state == "T":  # or it would train on, and fail when the others end
                    os.kill(pid, signal.SIGSTOP)
        return Standing(
            rank=rank,
            host=process["host"],
            pid=pid,
            silent=STATES.get(state, BUSY),
            stacks=stacks,
            at=main_frames(stacks, process["thread"]),
        )

    def _unseen(self, rank: int) -> Standing:
        process = self._process(rank)
        return Standing(
            rank=rank,
            host=process.get("host", "an unknown host"),
            pid=process.get("pid", 0),
            silent="does not answer: its host is down or stopped, or the network to it",
        )

    def _is_witness(self, rank: int, missing: Sequence[int]) -> bool:
        """Whether this rank is the first of those on `rank`'s host that answer."""
        answering = [one for one in range(self._world_size) if one not in missing]
        host = self._process(rank).get("host", "")
        there = [one for one in answering if self._process(one)["host"] == host]
        return there[:1] == [self._rank]

    def _process(self, rank: int) -> dict[str, Any]:
        """A rank's host, process and open file; empty if it has not begun to watch."""
        key = f"{self._prefix}/process/{rank}"
        if not self._store.check([key]):
            return {}
        process: dict[str, Any] = json.loads(self._store.get(key))
        return process

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/stands/{rank}"

    def _say(self, rank: int, standing: Standing) -> None:
        self._store.set(self._key(rank), json.dumps(asdict(standing)))

    def _heard(self, rank: int) -> Standing:
        values = json.loads(self._store.get(self._key(rank)))
        return Standing(**{**values, "at": tuple(values["at"])})

    def _missing(self, ranks: Sequence[int], seconds: float) -> list[int]:
        """Those of these ranks that have not answered after so many seconds."""
        ends = time.monotonic() + seconds
        missing = list(ranks)
        while True:
            missing = [rank for rank in missing if not self._store.check([self._key(rank)])]
            if not missing or time.monotonic() > ends:
                return missing
            time.sleep(0.2)


class _Start:
    """Whether a starting job makes progress: this rank's processes work, or those of another rank.

    On CUDA a rank that waits for others computes too; NCCL's own watchdog ends such a job.
    """

    def __init__(self, store: Store, key: str, every: float) -> None:
        self._store, self._key, self._every = store, key, every
        self._looked = time.monotonic()
        self._work = _work()
        self._heard = 0

    def gets_on(self, now: float) -> bool:
        """Asks every so many seconds; between them nothing is known."""
        if (seconds := now - self._looked) < self._every:
            return False
        before, self._work, self._looked = self._work, _work(), now
        works = any(
            after - was > least * seconds
            for after, was, least in zip(self._work, before, LEAST, strict=True)
        )
        # A store that does not answer says nothing.
        heard = _within(REFUSES, lambda: self._store.add(self._key, int(works)))
        others = heard is not None and heard - works > self._heard
        self._heard = self._heard if heard is None else heard
        return works or others


def _work() -> tuple[float, float]:
    """Seconds that this process and those below it have computed, and bytes that they have read and
    written; pages of mapped files count when they are read from a disk."""
    seconds, size = time.process_time(), 0.0
    for pid in with_those_below(os.getpid()):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = stat_of(pid)
            if pid != os.getpid():
                seconds += stat.seconds
            size += stat.major_faults * os.sysconf("SC_PAGE_SIZE")
            for line in Path(f"/proc/{pid}/io").read_text().splitlines()[:2]:
                size += int(line.partition(":")[2])
    return seconds, size


def _write(standings: Sequence[Standing], folder: Path) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    for one in standings:
        write_whole(folder / f"rank-{one.rank}.txt", titled(one))
    return True


def _unreachable(limit: float) -> str:
    return (
        f"no rank has made a step for {limit:g} s (train.hang_after), and the store at which the "
        f"ranks meet does not answer ({os.environ.get('MASTER_ADDR', 'address unknown')}, port "
        f"{os.environ.get('MASTER_PORT', 'unknown')}): its process, rank 0's or the launcher's, or "
        "its host is stopped. `recd train --resume` goes on from the latest checkpoint."
    )


def _leader(standings: Sequence[Standing]) -> int:
    return min(one.rank for one in standings if not one.silent)


def _within(seconds: float, function: Callable[[], T]) -> T | None:
    """The result of a call; None if it fails or does not return in time. A call that hangs is left
    behind."""
    results: list[T] = []

    def call() -> None:
        with contextlib.suppress(Exception):
            results.append(function())

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def _state(pid: int) -> str:
    """A process's state as the letter of ps(1); X if there is no such process, R if the system has
    no such states."""
    if not Path("/proc/self/stat").exists():
        return "R"
    try:
        return stat_of(pid).state
    except OSError:
        return "X"
