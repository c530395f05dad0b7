"""The life of a rank: it takes calls over a pipe, joins their group, answers, leaves."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import io
import logging
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import traceback
import warnings
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType
from typing import Any

__all__ = ["HOST", "Call", "Reference", "pack", "serve"]

HOST = "127.0.0.1"

Reference = dict[str, tuple[str, str]]
"""Module as pickled to (module to import, its file): where a rank finds what it is sent."""


@dataclass(frozen=True)
class Call:
    """What a rank is told; `payload` is the pickled (function, args, kwargs)."""

    rank: int
    world_size: int
    port: int
    timeout: timedelta
    folder: str
    path: list[str]
    modules: Reference
    payload: bytes


class _Pickler(pickle.Pickler):
    """Notes which file each module comes from that it refers to."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: Reference = {}

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
                name = "__mp_main__" if value.__module__ == "__main__" else value.__module__
                self.modules[value.__module__] = (spec.name if spec else name, file)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Imports modules that only pytest knew how to import, by their file."""

    def __init__(self, call: Call) -> None:
        super().__init__(io.BytesIO(call.payload))
        self._modules = call.modules

    def find_class(self, module: str, name: str) -> Any:
        if module in self._modules:
            module, file = self._modules[module]
            _import(module, file)
        return super().find_class(module, name)


def pack(value: object) -> tuple[bytes, Reference]:
    """`value` pickled, and where the modules come from that it refers to."""
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


def serve(connection: Connection, printed: Path) -> None:
    """Report, wait to be released, take the next call; until the parent closes or dies."""
    os.setsid()  # Ctrl-C is the parent's business; and what a rank starts is killed with it
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    import torch
    import torch.distributed as dist
    import torchrec  # noqa: F401  # paid for here, not in a call

    torch.set_num_threads(1)
    # TorchRec 1.8 calls what torch 2.13 deprecates, several times a step.
    warnings.simplefilter("ignore", FutureWarning)
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    gc.collect()
    gc.freeze()  # what the imports left: collecting after each call takes 1 ms, not 200
    report = pickle.dumps(("done", None))
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closed the pool
        while True:
            connection.send_bytes(report)
            connection.recv_bytes()
            if dist.is_initialized():
                dist.destroy_process_group()
            gc.collect()
            report = _answer(pickle.loads(connection.recv_bytes()))


def _answer(call: Call) -> bytes:
    """What the function returned, or its traceback, pickled."""
    try:
        return pickle.dumps(("done", _run(call)))
    except BaseException as error:  # SystemExit too: the rank lives on
        return pickle.dumps(("failed", "raised\n" + "".join(traceback.format_exception(error))))


def _run(call: Call) -> Any:
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore

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


def _die_with_parent() -> None:
    """End this rank and all that it started as soon as its parent has gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)
