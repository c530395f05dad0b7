"""Programs that start at once: forked from a process that has imported TorchRec.

That takes an interpreter of its own some five seconds, which show nothing. What a test says of
starting, of signals or of imports it says of a process of its own, by `subprocess`.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recd_plugins.launch.environment import die_with_parent
from recd_plugins.testing.gloo import PRELOADED_FOR_TESTS

__all__ = ["Done", "run_module", "start_server"]


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


def run_module(
    module: str,
    *arguments: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = 900.0,
) -> Done:
    """`python -m module arguments` in a folder; `environment` is beside this process's own."""
    start_server()
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(prefix="recd-forked-") as name:
        printed = Path(name)
        variables = dict(os.environ) | dict(environment or {})
        given = (module, arguments, str(folder), variables, printed)
        process = context.Process(target=_watch_the_program, args=given)
        process.start()
        process.join(timeout)
        if process.is_alive() and process.pid is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        code = process.exitcode
        assert code is not None
        process.close()
        return Done(code, (printed / "out").read_text(), (printed / "err").read_text())


def _watch_the_program(
    module: str, arguments: tuple[str, ...], folder: str, variables: dict[str, str], printed: Path
) -> None:
    """End as it ends, and let it end with us: it has no thread of ours, as a fresh one has none."""
    os.setsid()  # what it starts is killed with it
    given = (module, arguments, folder, variables, printed)
    program = multiprocessing.get_context("fork").Process(target=_be_the_program, args=given)
    program.start()
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
    runpy.run_module(module, run_name="__main__", alter_sys=True)
