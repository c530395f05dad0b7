"""Suites in copies of one process: a fresh `import torchrec`, of a suite and of its ranks' server,
takes five seconds each, which all suites of a quick run together do not have."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence

from benchmarks.harness import have_allocator
from recd_plugins.compat.copied_server import copy_as_fork_server

__all__ = ["import_for_all", "run_in_a_copy"]

IMPORTED = (
    *("pyarrow.dataset", "pyarrow.parquet", "torchrec", "torchrec.models.dlrm"),
    *("recd_plugins.testing.preload", "recd_plugins.planning.torchrec_plan.torchrec_search"),
    *("recd_dedup", "recd_dlrm", "recd_dsi", "recd_flexshard", "recd_scars"),
)
"""What most suites import."""


def import_for_all() -> None:
    """Give this process what its copies need: the allocator of suites, and imports."""
    have_allocator()
    for module in IMPORTED:
        importlib.import_module(module)


def run_in_a_copy(command: Sequence[str]) -> tuple[int | None, str]:
    """`python -m <command>`: its exit code, and what it printed."""
    with tempfile.TemporaryFile("w+") as printed:
        arguments = (printed.fileno(), *command)
        suite = multiprocessing.get_context("fork").Process(target=_be_the_suite, args=arguments)
        suite.start()
        suite.join()
        printed.seek(0)
        return suite.exitcode, printed.read()


def _be_the_suite(printed: int, module: str, *arguments: str) -> None:
    os.dup2(printed, 1)
    copy_as_fork_server()  # for its ranks and workers
    sys.argv = [module, *arguments]
    atexit._clear()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:  # which a forked process leaves out as it ends
        atexit._run_exitfuncs()
