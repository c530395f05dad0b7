"""Programs that start at once: forked from a process that has imported TorchRec.

That takes an interpreter of its own some five seconds, which show nothing. What a test says of an
interpreter's start or of imports it says of one, by `subprocess`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from recd_plugins.compat.copied_server import copy_as_fork_server
from recd_plugins.launch.environment import die_with_parent
from recd_plugins.testing.gloo import PRELOADED_FOR_TESTS

__all__ = ["AT_HOME", "TORCHRUN", "Done", "Forked", "run_module", "start_server"]


AT_HOME = "--local-addr=127.0.0.1"
"""torchrun's option by which ranks meet there: by default they do at the name of their machine, of
which nobody may know the address."""
TORCHRUN = (
    *("--standalone", "--nproc-per-node=2", AT_HOME),
    *("--start-method=fork", "--run-path"),
)
"""Arguments of the module `torch.distributed.run`, before a script and its own, by which its agent
forks two ranks from itself: they have imported what it has."""


@dataclass(frozen=True)
class Done:
    """How a program ended, and what it and those that it started printed."""

    code: int
    out: str
    err: str


def start_server() -> None:
    """Have the server, from which ranks, programs and a reader's workers are forked, import what
    they have in common; whoever comes first would have it import less."""
    multiprocessing.set_forkserver_preload(PRELOADED_FOR_TESTS)
    multiprocessing.forkserver.ensure_running()


class Forked:
    """`python -m module arguments` in a folder, running; `environment` is beside this process's
    own."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        start_server()
        context = multiprocessing.get_context("forkserver")
        self._folder = tempfile.TemporaryDirectory(prefix="recd-forked-")
        self._printed = Path(self._folder.name)
        variables = dict(os.environ) | dict(environment or {})
        started, theirs = context.Pipe(duplex=False)
        given = (module, arguments, str(folder), variables, self._printed, theirs)
        self._watcher = context.Process(target=_watch_the_program, args=given)
        self._watcher.start()
        theirs.close()
        self.pid: int = started.recv()
        started.close()

    def running(self) -> bool:
        return self._watcher.is_alive()

    def send_signal(self, number: int) -> None:
        """Send a signal to it alone; `done` was not called yet."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def done(self, timeout: float = 900.0) -> Done:
        """How it ended, once it has; it and what it started are killed if that takes longer."""
        self._watcher.join(timeout)
        if self._watcher.is_alive() and self._watcher.pid is not None:
            os.killpg(self._watcher.pid, signal.SIGKILL)
            self._watcher.join()
        code = self._watcher.exitcode
        assert code is not None
        self._watcher.close()
        with self._folder:
            out, err = ((self._printed / name).read_text() for name in ("out", "err"))
        return Done(code, out, err)


def run_module(
    module: str,
    *arguments: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = 900.0,
) -> Done:
    """`python -m module arguments` in a folder, to its end."""
    return Forked(module, *arguments, folder=folder, environment=environment).done(timeout)


def _watch_the_program(
    module: str,
    arguments: tuple[str, ...],
    folder: str,
    variables: dict[str, str],
    printed: Path,
    started: Connection,
) -> None:
    """End as it ends, and let it end with us: it has no thread of ours, as a fresh one has none."""
    os.setsid()  # what it starts is killed with it
    given = (module, arguments, folder, variables, printed)
    program = multiprocessing.get_context("fork").Process(target=_be_the_program, args=given)
    program.start()
    with started:
        started.send(program.pid)
    die_with_parent()
    program.join()
    code = program.exitcode
    assert code is not None
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _be_the_program(
    module: str, arguments: tuple[str, ...], folder: str, variables: dict[str, str], printed: Path
) -> None:
    for number, name in ((1, "out"), (2, "err")):
        with (printed / name).open("wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None  # TMPDIR may be another
    os.chdir(folder)
    ours = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [folder, *ours]
    sys.argv = [module, *arguments]
    if module == "pytest":  # whose ranks it has imported all for
        copy_as_fork_server()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
