"""Ranks that start in milliseconds: forked from a copy of the launcher that has imported TorchRec.

With an interpreter of its own, each rank would spend seconds of a processor on imports that are the
same in all of them. The copy is made while the launcher has one thread, before it computes
anything: so no lock is held, no pool of threads is lost, and ranks are forked from a process that
knows no device yet.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from recd_plugins.launch.environment import STOPS
from recd_plugins.launch.fork_server import keep_quiet_of_threads, thread_count, torch_is_for_cpu

__all__ = ["ForkedProgram", "RankServer", "rank_server"]

LOOK = 0.25
"""Seconds after which the server looks for ranks that ended while a child of theirs lives on."""


@dataclass(frozen=True, kw_only=True)
class _Program:
    """`python -m <command>`, as a process finds it."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    path: Sequence[str]
    """The folders in which modules are looked for: as the launcher does, and so not in the folder
    that it happens to be called in."""


@contextlib.contextmanager
def rank_server(
    imports: Sequence[str], first: Callable[[], object] = lambda: None
) -> Iterator[RankServer | None]:
    """A server of ranks that has imported these modules, if this process can be copied.

    `first` is called before the imports, which take seconds, and may refuse the job. What it
    imports may start threads; whether this process has one alone is seen before.

    A process can be copied if it is no rank and has one thread, on Linux, with a build of torch for
    the CPU: the GPU's share of a rank's start is longer than that of imports, and nobody else knows
    what its libraries do on import. If it cannot be copied, `launch` starts interpreters.
    """
    alone = "RANK" not in os.environ and thread_count() == 1
    first()
    with _no_garbage_sought():
        for module in imports:
            importlib.import_module(module)
    if not (alone and torch_is_for_cpu()):
        yield None
        return
    server = RankServer()
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def _no_garbage_sought() -> Iterator[None]:
    """Inside, Python seeks no garbage: what modules leave stays, and to look through it again and
    again, as it grows, takes a quarter of the time of the imports."""
    sought = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if sought:
            gc.enable()


class RankServer:
    """A copy of this process, from which ranks are forked."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()  # a rank that looked for garbage among imports would get them all copied
        keep_quiet_of_threads()
        context = multiprocessing.get_context("fork")
        self._requests, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._requests))
        self._process.start()
        theirs.close()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], *, out: int, err: int
    ) -> ForkedProgram:
        """Start `python -m <command>` in this folder, in a process group of its own, without an
        input; it prints to two open files."""
        reports, theirs = multiprocessing.Pipe(duplex=False)
        with theirs:
            self._requests.send(
                _Program(
                    command=command,
                    environment=environment,
                    folder=os.getcwd(),
                    path=tuple(sys.path),
                )
            )
            for file in (out, err, theirs.fileno()):
                send_handle(self._requests, file, self._process.pid)
        return ForkedProgram(reports)

    def close(self) -> None:
        """End it, and the ranks with it. It is asked to, for a child that a plugin has forked may
        hold our end of the pipe open."""
        with contextlib.suppress(OSError):
            self._requests.send(None)
        self._requests.close()
        self._process.join()
        self._process.close()


class ForkedProgram:
    """A program that the server started: what `launch` needs of subprocess.Popen."""

    def __init__(self, reports: Connection) -> None:
        self._reports = reports
        self._code: int | None = None
        self.pid: int = reports.recv()

    def send_signal(self, number: int) -> None:
        """Send a signal to it alone, while it runs."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The way it ended: its exit code, or minus the signal; None while it runs."""
        if self._code is None and self._reports.poll():
            self._end()
        return self._code

    def wait(self) -> int:
        """The way it ended, once it has."""
        if self._code is None:
            wait([self._reports])
            self._end()
        assert self._code is not None
        return self._code

    def _end(self) -> None:
        try:
            self._code = self._reports.recv()
        except EOFError:  # the server was killed, and its ranks end with it
            self._code = -signal.SIGKILL
        self._reports.close()


def _serve(requests: Connection, launchers: Connection) -> None:
    """Fork what is asked for and report how it ended, until the launcher says that it is done, or
    is gone."""
    launchers.close()
    os.setsid()  # Ctrl-C is the launcher's business
    # Schedulers send signals to all processes of a job, and ranks save a checkpoint first.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    nothing = os.open(os.devnull, os.O_RDWR)  # who reads what the launcher prints may see its end
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    running: dict[BaseProcess, Connection] = {}
    while True:
        # A child that a rank leaves behind may hold its sentinel open: so look often.
        watched: list[Any] = [requests, *(process.sentinel for process in running)]
        ready = wait(watched, timeout=LOOK if running else None)
        ended = [one for one in running if one.exitcode is not None]
        # One that was killed comes first: another that failed of it may have ended by now, too.
        for process in sorted(ended, key=lambda one: one.exitcode or 0):
            with running.pop(process) as reports, contextlib.suppress(OSError):
                reports.send(process.exitcode)
            process.close()
        if requests in ready:
            try:
                program: _Program | None = requests.recv()
                if program is None:
                    break
                out, err, number = (recv_handle(requests) for _ in range(3))
            except (EOFError, OSError):
                break
            reports = Connection(number, readable=False)
            arguments = (program, out, err, [requests, reports, *running.values()])
            process = multiprocessing.get_context("fork").Process(
                target=_be_the_program, args=arguments
            )
            process.start()
            assert process.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.setpgid(process.pid, process.pid)  # whoever of the two comes first
            os.close(out)
            os.close(err)
            running[process] = reports
            with contextlib.suppress(OSError):
                reports.send(process.pid)
    for process in running:
        assert process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _be_the_program(program: _Program, out: int, err: int, others: Sequence[Connection]) -> None:
    """Run the program as an interpreter of its own would: it has only its parent's imports."""
    os.setpgid(0, 0)  # what it starts is ended with it
    for connection in others:
        connection.close()
    for number, file in ((1, out), (2, err)):
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.folder)
    sys.path[:] = program.path
    if (torch := sys.modules.get("torch")) is not None:  # it read the variable when it was imported
        torch.set_num_threads(int(program.environment["OMP_NUM_THREADS"]))
    # It warns of a module that the launcher has imported too.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    module, *sys.argv[1:] = program.command
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:
        raise
    except KeyboardInterrupt:  # as an interpreter ends by it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
