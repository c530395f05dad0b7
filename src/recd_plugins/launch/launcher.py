"""`recd train --ranks N`: a small torchrun for one machine.

Ranks are processes of the same command with torchrun's environment; the store that they
meet at lives here, on the loopback interface. What any rank but rank 0 prints is kept, and
is shown if that rank fails.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import listed
from recd_plugins.launch.environment import (
    AGENTS_STORE,
    LOOPBACK,
    PARENT,
    STOPS,
    loopback_store,
    rank_environment,
    stops_here,
)
from recd_plugins.launch.first_failure import first_to_fail
from recd_plugins.launch.processes import stat_of
from recd_plugins.launch.rank_server import ForkedProgram, RankServer
from recd_plugins.notices import NOTICE

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["EXPLAINED", "Failure", "launch"]

EXPLAINED = 3
"""The exit code of a rank that ended the job and has written why, in words for people."""

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a command line that Ctrl-C ended."""

OWN_CODES = (0, 1, 2, EXPLAINED, INTERRUPTED, 128 + signal.SIGTERM)
"""The exit codes with which Python, and this project, end a rank, alone or since its peers fail."""

GRACE = 30.0
"""Seconds that a rank which says that it failed first gets to end, once another has ended of it."""

SHOWN = 8_000
"""Characters of a failed rank's output that are shown."""


@dataclass(frozen=True)
class Failure:
    """The end of the first rank that failed."""

    rank: int
    code: int
    output: str
    before: tuple[int, ...] = ()
    """The other ranks that had ended by then without a word, which may be why it failed."""

    @property
    def explained(self) -> bool:
        """Whether its output is a message, of a user's error or of the job's end."""
        return self.code in (2, EXPLAINED)

    def __str__(self) -> str:
        how = signal.Signals(-self.code).name if self.code < 0 else f"exit code {self.code}"
        output = f"; it said:\n{self.output}" if self.output else " and said nothing"
        return f"rank {self.rank} ended with {how}{output}{self._left_alone()}"

    def _left_alone(self) -> str:
        if not self.before:
            return ""
        return (
            f"\n{listed(self.before, kind='rank')} had ended before that, without a word. Unless "
            "the job was at its end, some code has ended the process (os._exit): a plugin, or what "
            "it calls. Let it raise an error instead."
        )


STOPPING = "stopping after this step; a Ctrl-C from now on kills"
UNREAD = "stopped, since nobody reads what the job prints; there was nothing to save yet"


def launch(
    command: Sequence[str],
    ranks: int,
    *,
    threads: int,
    quiet: bool = False,
    stopping: str = STOPPING,
    server: RankServer | None = None,
    stopped_for: float = 0.0,
    trial: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Failure | None:
    """Run `python -m <command>` on ranks until all end; returns the first failure, or None.

    When a rank fails the others are killed. The first Ctrl-C (or SIGTERM, or SIGHUP where it would
    end this process) is passed on, so that all ranks stop after the same step, and `stopping` is
    printed; a Ctrl-C after it kills them. A SIGHUP ends this process once the ranks have ended.

    KeyboardInterrupt is raised where a signal has ended the ranks: the first one, before they had
    come to where they stop by themselves, or one that was sent to a single rank. After a Ctrl-C a
    `trial` raises it even if its ranks had come to their end, since nobody wants to know how it
    ended. BrokenPipeError is raised instead where nobody reads what rank 0 prints any more, since
    that is why it ends.

    `quiet` keeps rank 0's lines too, except for notices, which go to standard error at the end.
    Ranks are forked from `server`, if there is one; else each is an interpreter of its own. They
    have these `variables` beside this process's own. A rank that has been stopped (SIGSTOP) for
    `stopped_for` seconds, if that is not 0, counts as failed, since it does not end by itself.
    """
    store = loopback_store(ranks)
    ours, theirs = os.pipe()
    shared = os.environ | variables | {AGENTS_STORE: "True"}  # ranks join our store
    place = partial(
        rank_environment,
        world_size=ranks,
        port=store.port,
        interface=os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK),
        threads=threads,
    )
    processes: list[_Rank] = []
    hung_up = Event()
    try:
        # Before any rank starts, for one that is started while we ignore a signal, as shells have
        # what runs in their background do, would ignore it too.
        with _forwarded(processes, stopping, hung_up) as asked:
            for rank in range(ranks):  # those that have started are ended if the next cannot
                processes.append(_Rank(rank, speaks=rank == 0 and not quiet))
                processes[-1].start(command, shared | place(rank), ours, server)
            failure = _wait(processes, store, stopped_for)
            if failure is not None and (stopped := _stopped(processes, failure, asked.is_set())):
                unread = not quiet and not asked.is_set() and _is_unread(1)
                with contextlib.suppress(OSError):
                    print(UNREAD if unread else stopped, file=sys.stderr, flush=True)
                raise BrokenPipeError if unread else KeyboardInterrupt
            if trial and asked.is_set():
                raise KeyboardInterrupt
            if quiet and failure is None:
                for line in processes[0].notices():
                    print(line, file=sys.stderr, flush=True)
            return failure
    finally:
        for process in processes:
            process.kill()
        os.close(ours)
        os.close(theirs)
        if hung_up.is_set():
            signal.raise_signal(signal.SIGHUP)


class _Rank:
    """One process and what it printed."""

    def __init__(self, rank: int, *, speaks: bool) -> None:
        self.rank = rank
        self._speaks = speaks
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # until killed
        self._process: subprocess.Popen[bytes] | ForkedProgram | None = None
        self._signals: list[int] = []
        """The signals that are for it, while there is no process yet that could be sent them."""

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        parent: int,
        server: RankServer | None,
    ) -> None:
        """It ends with its parent: the server, or whoever holds the other end of a pipe."""
        out = 1 if self._speaks else self._printed.fileno()
        if server is not None:
            err = self._printed.fileno()
            self._process = server.start(command, environment, out=out, err=err)
        else:
            self._process = subprocess.Popen(
                # A module that happens to lie in this folder is not a rank's, unless it is ours.
                [sys.executable, *([] if _looks_here() else ["-P"]), "-m", *command],
                env={**environment, PARENT: str(parent)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=self._printed,
                pass_fds=[parent],
                start_new_session=True,  # Ctrl-C reaches it through us alone
            )
        self._send_signals()

    def poll(self) -> int | None:
        """The way it ended; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def interrupt(self) -> None:
        """Pass Ctrl-C on, once it has started: a handler of signals calls this at any moment."""
        self._signals.append(signal.SIGINT)
        self._send_signals()

    def _send_signals(self) -> None:
        """Each once, though the handler may come in the midst of this."""
        while self._process is not None and self._signals:
            with contextlib.suppress(IndexError):
                self._process.send_signal(self._signals.pop())

    def stopped(self) -> bool:
        """Whether it is kept from running, by SIGSTOP and the like, as far as the system tells."""
        assert self._process is not None
        try:
            return stat_of(self._process.pid).state == "T"
        except OSError:
            return False

    def why_stopped(self, seconds: float) -> str:
        assert self._process is not None
        return (
            f"error: rank {self.rank} (process {self._process.pid}) has been stopped, by SIGSTOP "
            f"or SIGTSTP, for {seconds:g} s: the job cannot go on and has ended. `recd train "
            "--resume` goes on from its latest checkpoint, if it has one."
        )

    def output(self) -> str:
        self._printed.seek(0)
        text = self._printed.read().decode(errors="replace").strip()
        return text if len(text) <= SHOWN else f"[...]{text[-SHOWN:]}"

    def notices(self) -> list[str]:
        """The lines that are for whoever started it, of those that were kept."""
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.startswith(NOTICE)]

    def kill(self) -> None:
        """End it and the processes that it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._printed.close()


def _stopped(processes: Sequence[_Rank], failure: Failure, asked: bool) -> str:
    """The line for a job that was asked to stop while it started, if this failure is its end;
    either the launcher was `asked`, or only a rank."""
    if asked and any(_interrupted(process.poll()) for process in processes):
        return "stopped; there was nothing to save yet"
    if _interrupted(failure.code):
        ctrl_c = failure.code in (INTERRUPTED, -signal.SIGINT)
        by = "Ctrl-C" if ctrl_c else signal.Signals(-failure.code).name
        return f"stopped by {by} to rank {failure.rank}; there was nothing to save yet"
    return ""


def _is_unread(file: int) -> bool:
    """Whether a file is a pipe that nobody reads any more; one that was closed is none."""
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(file).st_mode)
    except OSError:
        return False
    poll = select.poll()
    poll.register(file, 0)
    return is_pipe and bool(poll.poll(0))


def _interrupted(code: int | None) -> bool:
    """Whether a rank ended as programs do by a signal that they do not handle."""
    return code in (INTERRUPTED, *(-number for number in STOPS))


def _looks_here() -> bool:
    """Whether this process looks for modules in the folder that it is called in."""
    return not {"", os.getcwd()}.isdisjoint(sys.path)


def _wait(processes: list[_Rank], store: Store, stopped_for: float) -> Failure | None:
    waiting = list(processes)
    stopped = dict.fromkeys(processes, 0)
    """Looks in a row at which a rank was stopped: seconds in which we were not stopped too."""
    looked = time.monotonic()
    while waiting:
        for process in list(waiting):
            code = process.poll()
            if code is None:
                continue
            waiting.remove(process)
            if code != 0:
                cause = _cause(process, processes, store)
                silent = _ended_silently(cause, processes)
                return Failure(cause.rank, cause.poll() or 0, cause.output(), silent)
        if stopped_for and time.monotonic() - looked > 1:
            looked = time.monotonic()
            for process in waiting:
                stopped[process] = stopped[process] + 1 if process.stopped() else 0
                if stopped[process] > stopped_for:
                    return Failure(process.rank, EXPLAINED, process.why_stopped(stopped_for))
        time.sleep(0.05)
    return None


def _cause(found: _Rank, processes: list[_Rank], store: Store) -> _Rank:
    """The rank because of which the others failed, once a failed rank is found."""
    first = first_to_fail(store)
    ends = time.monotonic() + GRACE
    while time.monotonic() < ends:
        codes = [process.poll() for process in processes]
        for process, code in zip(processes, codes, strict=True):
            # It could say nothing. By SIGABRT libraries end a process whose peers do not answer.
            if code is not None and code < 0 and code != -signal.SIGABRT:
                return process
            # Nor could it if code of its own called `os._exit`.
            if first not in (None, process.rank) and code is not None and code not in OWN_CODES:
                return process
        if first is None or codes[first] is not None:
            break
        time.sleep(0.05)
    return processes[first] if first is not None and processes[first].poll() else found


def _ended_silently(cause: _Rank, processes: Sequence[_Rank]) -> tuple[int, ...]:
    """The ranks but `cause` that have ended by themselves and printed nothing of an error."""
    others = {one.rank: (one, one.poll()) for one in processes if one is not cause}
    return tuple(
        rank
        for rank, (one, code) in others.items()
        if code == 0 or (code is not None and code > 0 and not one.output())
    )


@contextlib.contextmanager
def _forwarded(processes: list[_Rank], stopping: str, hung_up: Event) -> Any:
    """Pass the first signal on; die by Ctrl-C after it. Yields whether there was one; `hung_up` is
    set if SIGHUP was among them.

    SIGTERM and SIGHUP ask to stop however often they come: a scheduler sends them to all processes,
    and what stands between sends them on.
    """
    asked = Event()

    def forward(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            hung_up.set()
        if asked.is_set():
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        asked.set()
        for process in processes:
            process.interrupt()
        with contextlib.suppress(OSError):  # whoever reads it may have ended by the same signal
            print(f"\n{stopping}", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, forward) for number in stops_here()}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
