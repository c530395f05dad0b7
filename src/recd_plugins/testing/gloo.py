"""Ranks to test on: processes spawned once, joined by a fresh gloo group in every call.

A rank imports torch and torchrec once and then serves calls. All sockets are on the
loopback interface; the store's port is picked by the system and held from then on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import io
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__

__all__ = ["GlooPool", "RanksFailed"]

T = TypeVar("T")

HOST = "127.0.0.1"
START_LIMIT = 180.0
"""Seconds for a rank to import torch and torchrec, on a busy machine."""
GRACE = 5.0
"""Seconds that ranks get to end once one of them has failed."""
SHOWN = 20_000
"""Characters of a rank's output that an error shows."""


class RanksFailed(Exception):
    """At least one rank raised, died or was late; `ranks` says what became of each such rank."""

    def __init__(self, what: str, ranks: dict[int, str]) -> None:
        self.ranks = ranks
        parts = [f"---- rank {rank} {text.rstrip()}" for rank, text in ranks.items()]
        super().__init__("\n".join([f"{what}, first to fail first:", *parts]))


@dataclass(frozen=True)
class _Call:
    """What a rank is told; `payload` is the pickled (function, args, kwargs)."""

    rank: int
    world_size: int
    port: int
    timeout: timedelta
    folder: str
    path: list[str]
    modules: dict[str, tuple[str, str]]
    payload: bytes


class GlooPool:
    """Runs a function on gloo ranks and returns what each of them returned.

    Ranks are started when first needed, live until `close` and die with their parent.
    """

    def __init__(self, *, deadline: float = 60.0) -> None:
        self.deadline = deadline
        self._ranks: list[_Rank] = []

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
        set. Arguments and results travel pickled: plain data and tensors.

        If a rank raises, dies or is not done `deadline` seconds after all were ready,
        `RanksFailed` shows every traceback, the stacks of those that hang, and what they
        printed. What ranks printed in a call that went well is printed here.
        """
        __tracebackhide__ = True
        deadline = self.deadline if deadline is None else deadline
        name = getattr(function, "__qualname__", repr(function))
        payload, modules = _pickle((function, args, kwargs))
        ranks = self._ready(world_size)
        store = _store(world_size)
        try:
            for rank, process in enumerate(ranks):
                process.call(
                    _Call(
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
            results, failures = _collect(ranks, deadline)
        except BaseException:
            self.close()  # whatever they were doing, nobody waits for it any more
            raise
        if failures:
            raise RanksFailed(f"{name} failed on {len(failures)} of {world_size} ranks", failures)
        for rank, process in enumerate(ranks):
            if text := process.output():
                print(f"[rank {rank}] {text.rstrip()}")
        return [results[rank] for rank in range(world_size)]

    def close(self) -> None:
        """End all ranks."""
        for process in self._ranks:
            process.kill()
        self._ranks.clear()

    def __enter__(self) -> GlooPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ready(self, world_size: int) -> list[_Rank]:
        """The first `world_size` ranks, alive; those that died are started anew."""
        for process in [process for process in self._ranks if not process.alive()]:
            process.kill()
            self._ranks.remove(process)
        new = [_Rank() for _ in range(world_size - len(self._ranks))]
        self._ranks += new
        try:
            _, failures = _collect(new, START_LIMIT)
        except BaseException:
            self.close()
            raise
        if failures:
            raise RanksFailed("ranks could not be started", failures)
        return self._ranks[:world_size]


class _Rank:
    """One spawned process, as its parent sees it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the rank
        self._start = 0
        serve = (
            f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import _serve; "
            f"_serve({theirs.fileno()}, {os.getpid()})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", serve],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its own children can be killed with it
            env=os.environ
            | {
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
            },
        )
        theirs.close()

    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, call: _Call) -> None:
        self._start = os.fstat(self._printed.fileno()).st_size
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
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return "failed", f"died ({cause})"

    def release(self) -> None:
        """Let it leave the group: what it held open for its peers closes."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(b"")

    def dump_stacks(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)

    def output(self) -> str:
        """What it printed since it was called, or the last of it."""
        size = os.fstat(self._printed.fileno()).st_size
        start = max(self._start, size - SHOWN)
        text = os.pread(self._printed.fileno(), SHOWN, start).decode(errors="replace")
        return text if start == self._start else f"[...]{text}"

    def kill(self) -> None:
        """End it and the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()
        self._printed.close()


def _collect(ranks: list[_Rank], deadline: float) -> tuple[dict[int, Any], dict[int, str]]:
    """What each rank returned, and why ranks failed, in that order.

    Ranks that hang are killed; the others are released.
    """
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
            process.release()  # now, so that its peers see it go
    _dump_stacks(list(waiting.values()))
    failures |= dict.fromkeys(waiting, late)
    for rank, why in failures.items():
        if text := ranks[rank].output():
            failures[rank] = f"{why.rstrip()}\n  It printed:\n{text}"
    for rank, process in enumerate(ranks):
        if rank in waiting:
            process.kill()
        elif rank in results:
            process.release()
    return results, failures


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


def _store(world_size: int) -> TCPStore:
    """A store in this process on a loopback port of the system's choice, open from the start."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__

    listener = socket.socket()
    listener.bind((HOST, 0))
    port = listener.getsockname()[1]
    return TCPStore(
        HOST,
        port,
        world_size,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


class _Pickler(pickle.Pickler):
    """Notes which file each module comes from that it refers to, so that a rank finds it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: dict[str, tuple[str, str]] = {}

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType):
            if "<" in value.__qualname__:
                raise pickle.PicklingError(
                    f"{value.__qualname__} of {value.__module__} cannot be sent to a rank: "
                    "define it at the top of its module."
                )
            module = sys.modules.get(value.__module__)
            file = getattr(module, "__file__", None)
            if file is not None:
                spec = getattr(module, "__spec__", None)
                main = "__mp_main__" if value.__module__ == "__main__" else value.__module__
                self.modules[value.__module__] = (spec.name if spec else main, file)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Imports modules that only pytest knew how to import, by their file."""

    def __init__(self, call: _Call) -> None:
        super().__init__(io.BytesIO(call.payload))
        self._modules = call.modules

    def find_class(self, module: str, name: str) -> Any:
        if module in self._modules:
            module, file = self._modules[module]
            _import(module, file)
        return super().find_class(module, name)


def _pickle(value: object) -> tuple[bytes, dict[str, tuple[str, str]]]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.modules


def _import(name: str, file: str) -> None:
    """Have module `name` from `file`: by its name if that leads there, else by its path."""
    if name not in sys.modules and name != "__mp_main__":
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if getattr(sys.modules.get(name), "__file__", None) == file:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _serve(channel: int, parent: int) -> None:
    """The life of a rank: report, wait to be released, take the next call."""
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    import torch
    import torch.distributed as dist
    import torchrec  # noqa: F401  # paid for here, once

    torch.set_num_threads(1)
    connection = Connection(channel)
    report = pickle.dumps(("done", None))
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closed the pool
        while True:
            connection.send_bytes(report)
            connection.recv_bytes()
            if dist.is_initialized():
                dist.destroy_process_group()
            gc.collect()
            report = _answer(pickle.loads(connection.recv_bytes()))


def _answer(call: _Call) -> bytes:
    """What the function returned, or its traceback, pickled."""
    try:
        return pickle.dumps(("done", _run(call)))
    except BaseException as error:  # SystemExit too: the rank lives on
        lines = traceback.format_exception(error)
        return pickle.dumps(("failed", "raised\n" + "".join(lines)))


def _run(call: _Call) -> Any:
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__

    sys.path[:] = call.path
    os.chdir(call.folder)
    place = {"RANK": call.rank, "LOCAL_RANK": call.rank}
    size = {"WORLD_SIZE": call.world_size, "LOCAL_WORLD_SIZE": call.world_size}
    os.environ.update({name: str(value) for name, value in (place | size).items()})
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo",
        store=TCPStore(HOST, call.port, is_master=False, timeout=call.timeout),
        rank=call.rank,
        world_size=call.world_size,
        timeout=call.timeout,
    )
    function, args, kwargs = _Unpickler(call).load()
    return function(*args, **kwargs)


def _die_with(parent: int) -> None:
    """End this rank and what it started as soon as its parent has gone, however it went."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)
