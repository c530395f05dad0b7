"""The environment of a rank of one machine: its variables, where ranks meet, whom it ends with."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from recd_plugins.errors import CapabilityError, shown
from recd_plugins.launch.fork_server import remove_folder_made_here

__all__ = [
    "AGENTS_STORE",
    "ELASTIC",
    "HOST",
    "LOOPBACK",
    "PARENT",
    "STOPS",
    "check_rank",
    "die_with_parent",
    "launchers_store",
    "loopback_store",
    "meeting_place",
    "rank_environment",
    "ranks_of_a_node",
    "stops_here",
]

HOST = "127.0.0.1"
LAST_PORT = 2**16 - 1
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
AGENTS_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable with which ranks join the store of whoever started them: torchrun's, or ours."""
ELASTIC = "TORCHELASTIC_RUN_ID"
"""A variable that only torchrun sets for its ranks."""
LOOK = 0.5
"""Seconds between two looks at whether the parent is there."""
STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""The signals that ask a job to stop."""
PARENT = "RECD_PARENT_PIPE"
"""The variable that names the end of a pipe whose other end the launcher holds open."""
LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
)
"""The variables by which torchrun, Open MPI, MPICH, MVAPICH and Cray's launcher tell a rank how
many there are on its node."""
TASKS, TASKS_PER_NODE = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"
"""The variables by which srun does; it also sets them for programs that are no ranks."""


def rank_environment(
    rank: int,
    world_size: int,
    *,
    ranks_per_node: int | None = None,
    address: str = HOST,
    port: int | None = None,
    interface: str = LOOPBACK,
    threads: int = 1,
) -> dict[str, str]:
    """torchrun's variables for a rank; those of the store only where its `port` is known."""
    ranks_per_node = ranks_per_node or world_size
    variables: dict[str, str | int] = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": rank % ranks_per_node,
        "LOCAL_WORLD_SIZE": ranks_per_node,
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": threads,
    }
    if port is not None:
        variables |= {"MASTER_ADDR": address, "MASTER_PORT": port}
    return {name: str(value) for name, value in variables.items()}


def ranks_of_a_node(world_size: int) -> int | None:
    """The ranks of a node, as their launcher says; None if it says nothing, or nodes differ."""
    for name in LOCAL_SIZES:
        if (text := os.environ.get(name, "")).isdecimal() and int(text):
            return int(text)
    if os.environ.get(TASKS) == str(world_size):
        one = re.fullmatch(r"(\d+)(\(x\d+\))?", os.environ.get(TASKS_PER_NODE, ""))
        return int(one[1]) if one else None
    return None


def check_rank() -> None:
    """`CapabilityError` if a variable that torchrun sets beside `RANK` is missing, or is not a
    valid number."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        text = os.environ.get(name)
        if text is None and name == "LOCAL_WORLD_SIZE":
            continue  # older launchers know none
        most = LAST_PORT if name == "MASTER_PORT" else 2**31 - 1
        if text is None or re.fullmatch("[0-9]{1,10}", text) is None or int(text) > most:
            what = f"is {shown(text)}, no number from 0 to {most}" if text else "is not set"
            raise CapabilityError(
                f"RANK is set, so this is one rank of a job, but {name} {what}. Start ranks with "
                "torchrun, which sets all that they need; or unset RANK, and the ranks of this "
                "machine are started here."
            )
    for number, of in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if of in os.environ and int(os.environ[number]) >= int(os.environ[of]):
            raise CapabilityError(
                f"{number} is {os.environ[number]}, and {of} {os.environ[of]}: ranks are counted "
                "from 0. Start them with torchrun, which sets both."
            )
    if not os.environ.get("MASTER_ADDR"):
        raise CapabilityError(
            "RANK is set, so this is one rank of a job, but MASTER_ADDR is not set, so it is "
            "unknown where the ranks meet. Start them with torchrun; or unset RANK."
        )


def meeting_place() -> str:
    """The address and port at which the ranks of this process's job meet, once `check_rank` has
    passed."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def loopback_store(world_size: int) -> Any:
    """A TCPStore in this process, on a loopback port of the system's choice."""
    from torch.distributed import TCPStore

    listener = socket.socket()
    try:
        listener.bind((HOST, 0))
        port = listener.getsockname()[1]
        with socket.socket(type=socket.SOCK_DGRAM) as caller:
            caller.connect((HOST, port))  # sends nothing; torch would try for minutes to get there
    except OSError as error:
        listener.close()
        raise CapabilityError(
            f"ranks of this machine cannot meet at {HOST} ({error.strerror}). Check that the "
            f"loopback interface is up: `ip link set {LOOPBACK} up`."
        ) from None
    return TCPStore(
        HOST,
        port,
        world_size,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def launchers_store(seconds: float) -> Any:
    """The store of the launcher of this rank, torchrun or `launch`; None if it has none.

    Requests to it wait at most so many seconds.
    """
    if os.environ.get(AGENTS_STORE) != "True":
        return None
    from torch.distributed import TCPStore

    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=seconds),
    )


def stops_here() -> list[signal.Signals]:
    """The signals by which a job in this process stops. SIGHUP is one only where it would end the
    process: under `nohup` it stays ignored, and another's answer to it stays."""
    hangs_up = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    return [number for number in STOPS if number != signal.SIGHUP or hangs_up]


def die_with_parent(*, only: bool = False) -> None:
    """End this process as soon as the one that started it is gone, however it went.

    A process that leads a session of its own, as ranks do, takes all that it started with it.
    The parent is multiprocessing's, `launch`, or an agent of torchrun, which ends its ranks in
    every way but where it is killed itself. A process that none of them started lives on.

    With `only`, a worker of multiprocessing ends in no other way: torchrun and schedulers send
    SIGINT and SIGTERM to all processes of a job, and a rank that then saves a checkpoint needs its
    workers until it is there. Either signal still ends the worker if its parent sends it.
    """
    parent = multiprocessing.parent_process()
    if only and parent is not None and sys.platform != "darwin":  # which does not say who sent it
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        threading.Thread(target=_end_by, args=(parent.pid,), daemon=True).start()
    wait: Callable[[], object]
    if parent is not None:
        wait = parent.join
    elif PARENT in os.environ:
        # Nobody writes: the read returns when the launcher's end closes.
        wait = partial(os.read, int(os.environ.pop(PARENT)), 1)
    elif ELASTIC in os.environ:
        wait = partial(_outlive, os.getppid())
    else:
        return

    def watch() -> None:
        wait()
        if os.getpgrp() == os.getpid():
            remove_folder_made_here()
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="die-with-parent").start()


if sys.platform != "darwin":

    def _end_by(parent: int | None) -> None:
        """End this process by a signal of its parent's; those of others are for the parent."""
        while signal.sigwaitinfo(STOPS).si_pid != parent:
            pass
        os._exit(128 + signal.SIGTERM)


def _outlive(parent: int) -> None:
    """Return once the process that started this one is gone: this process then has another
    parent."""
    while os.getppid() == parent:
        time.sleep(LOOK)
