"""What all tests share: markers, threads, how hypothesis draws, where the real data lies."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drawn import FEW
from hypothesis import Phase, settings

from recd_plugins.hooks.process_state import OF_RANKS
from recd_plugins.launch.environment import AGENTS_STORE, TASKS, TASKS_PER_NODE
from recd_plugins.launch.machine_cores import machine_cores
from recd_plugins.launch.machine_memory import machine_memory
from recd_plugins.testing.gloo import PRELOADED_FOR_TESTS

# Where colours are asked for, as on GitHub, options come out with codes between their letters;
# where a terminal is narrow, lines end elsewhere; a proxy that is for the web would be asked for
# pages of this machine, and gRPC takes https_proxy for calls in the clear as well; and what a shell
# has from a job would make each `recd train` a rank that waits for others.
COLOURS = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
OF_A_JOB = (*OF_RANKS, AGENTS_STORE, TASKS, TASKS_PER_NODE)
for name in (*COLOURS, "COLUMNS", "LINES", *PROXIES, *map(str.upper, PROXIES), *OF_A_JOB):
    os.environ.pop(name, None)

# Beside other workers, threads of one worker wait for each other more than they compute; and those
# of programs that are started with several would take the processor while they wait.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Gloo's thread polls while the rank's own holds the lock of a connection; where it woke in the
    # rank's place, the two waited for each other, a fifth of all processor time. As batch work,
    # nothing that wakes takes another's place, in ranks and programs that are started too. Some
    # containers allow no such choice, and macOS has none.
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

# What programs of the tests import, beside what ranks do, before what is there is frozen: a `recd
# train` of two steps spent a third of its processor time on that.
PRELOADED_FOR_TESTS[-1:-1] = [
    "filelock",
    "recd_plugins.cli.main",
    "recd_plugins.data.reader.local_loader",
    "recd_plugins.hooks.defaults",
    "recd_plugins.planning.torchrec_plan.torchrec_search",
    "recd_plugins.testing.preload_kernels",
    "recd_dedup",
    "recd_dlrm",
    "recd_flexshard",
    "recd_scars",
    "recd_scars.hot_batches",
    "rich.progress",
    "rich.table",
    "torch.utils.tensorboard",
    "torchrec.metrics.metric_module",  # of extra metrics
    "torchrec.models.dlrm",
    "typer._adapters",  # which has pydantic imported once a command line has an option
]

# The same examples in every run; and a busy machine is slow, not wrong. `make test-fast` draws
# fewer.
settings.register_profile("recd", deadline=None, derandomize=True)
settings.register_profile("fast", settings.get_profile("recd"), max_examples=FEW)
# A change that is noticed needs no smallest example (benchmarks/mutants.py).
settings.register_profile(
    "mutants", settings.get_profile("recd"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("recd")

WORKER_BYTES = 5 << 30
"""The most that a worker of pytest takes, with the ranks, servers and programs of its tests."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One for each processor, and two for one alone, as far as memory has room for them."""
    room = (machine_memory() or 0) // WORKER_BYTES
    return max(1, min(max(2, machine_cores()), room, 8))


WHOLE_PROGRAMS = ("examples", "benchmarks")
"""Folders of tests that run whole programs, which takes each of them seconds."""
SERVERS = {"endpoint", "brokers"}
"""Fixtures that start a server, an S3 endpoint or brokers of Kafka, for which tests then wait."""


def pytest_configure(config: pytest.Config) -> None:
    """Each worker begins to collect at another folder, so that what one compiles of the tests the
    others read."""
    tests = Path(__file__).parent
    worker, workers = (os.environ.get(f"PYTEST_XDIST_WORKER{of}") for of in ("", "_COUNT"))
    if worker and workers and [Path(one).absolute() for one in config.args] == [tests]:
        folders = sorted(str(one) for one in tests.iterdir() if one.is_dir())
        first = len(folders) * int(worker.removeprefix("gw")) // int(workers)
        config.args = folders[first:] + folders[:first]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`ranks` are the tests that ask for the pool, or for `workers` of the reader; `slow` are those
    that run whole programs: all in two folders, and those that ask for a server."""
    items.sort(key=lambda item: item.path)  # which workers collected in other orders
    for item in items:
        workers = getattr(item, "callspec", None) and item.callspec.params.get("workers")
        asks = set(getattr(item, "fixturenames", ()))
        if workers or "gloo_pool" in asks:
            item.add_marker("ranks")
        if item.path.parent.name in WHOLE_PROGRAMS or asks & SERVERS:
            item.add_marker("slow")
    # Files are dealt out in this order: whole programs, which mostly wait, by turns with ranks,
    # which mostly compute; single values last.
    files: dict[Path, tuple[bool, bool]] = {}
    for item in items:
        slow, ranks = files.get(item.path, (False, False))
        marks = {mark.name for mark in item.iter_markers()}
        files[item.path] = (slow or "slow" in marks, ranks or "ranks" in marks)
    turns: dict[Path, tuple[bool, int, bool]] = {}
    for programs in (True, False):
        same = [path for path, (slow, _) in files.items() if slow == programs]
        same.sort(key=lambda path: files[path], reverse=True)
        for turn, path in enumerate(same):
            turns[path] = (not any(files[path]), turn, not programs)
    items.sort(key=lambda item: turns[item.path])


def pytest_collection() -> None:
    """What is imported and collected stays: nobody looks for garbage among it meanwhile."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Nor after: it takes 0.2 s to look at all that was imported. And tests leave little garbage
    that lives: it is looked for less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What the tests of a file imported stays too."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch runs on one thread: on a busy machine several mostly wait for each other over tensors
    as small as those of tests."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def real_data(pytestconfig: pytest.Config) -> Callable[[str], Path]:
    """`real_data("criteo/kaggle_8k.tsv")`: its path; a skip where it is absent."""

    def find(name: str) -> Path:
        path = pytestconfig.rootpath.parent / "shared" / "data" / name
        if not path.exists():
            pytest.skip(f"needs the real {name} beside the project, in ../shared/data")
        return path

    return find
