"""`recd train --ranks N`: a small torchrun for one machine.

Ranks are processes of the same command with torchrun's environment; the store that they
meet at lives here, on the loopback interface. What a rank but rank 0 prints is kept and
shown if it fails.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import IO, Any

from recd_plugins.launch.environment import (
    LOOPBACK,
    PARENT,
    loopback_store,
    rank_environment,
)

__all__ = ["Failure", "launch"]

SHOWN = 8_000
"""Characters of a failed rank's output that are shown."""


@dataclass(frozen=True)
class Failure:
    """How the first failing rank ended."""

    rank: int
    code: int
    output: str

    def __str__(self) -> str:
        how = signal.Signals(-self.code).name if self.code < 0 else f"exit code {self.code}"
        output = f"; it said:\n{self.output}" if self.output else " and said nothing"
        return f"rank {self.rank} ended with {how}{output}"


STOPPING = "stopping after this step; once more to kill"


def launch(
    command: Sequence[str],
    ranks: int,
    *,
    threads: int,
    quiet: bool = False,
    stopping: str = STOPPING,
) -> Failure | None:
    """Run `python -m <command>` on ranks until all end; the first failure.

    When a rank fails the others are killed. The first Ctrl-C (or SIGTERM) is passed on, so
    that all ranks stop after the same step, and `stopping` is printed; the second
    kills them. `quiet` keeps rank 0's lines too.
    """
    store = loopback_store(ranks)
    ours, theirs = os.pipe()
    shared = os.environ | {
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # ranks join our store and open none
        PARENT: str(ours),
    }
    place = partial(
        rank_environment,
        world_size=ranks,
        port=store.port,
        interface=os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK),
        threads=threads,
    )
    processes: list[_Rank] = []
    try:
        processes.extend(  # one by one: those that have started are ended if the next cannot
            _Rank(rank, command, shared | place(rank), ours, quiet=quiet or rank > 0)
            for rank in range(ranks)
        )
        with _forwarded(processes, stopping):
            return _wait(processes)
    finally:
        for process in processes:
            process.kill()
        os.close(ours)
        os.close(theirs)


class _Rank:
    """One process and what it printed."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environment: dict[str, str],
        parent: int,
        *,
        quiet: bool,
    ) -> None:
        self.rank = rank
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # until killed
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._printed if quiet else None,
            stderr=self._printed,
            pass_fds=[parent],
            start_new_session=True,  # Ctrl-C reaches it through us alone
        )

    def output(self) -> str:
        self._printed.seek(0)
        text = self._printed.read().decode(errors="replace").strip()
        return text if len(text) <= SHOWN else f"[...]{text[-SHOWN:]}"

    def kill(self) -> None:
        """End it and the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._printed.close()


def _wait(processes: list[_Rank]) -> Failure | None:
    waiting = list(processes)
    while waiting:
        for process in list(waiting):
            code = process.process.poll()
            if code is None:
                continue
            waiting.remove(process)
            if code != 0:
                return Failure(process.rank, code, process.output())
        time.sleep(0.05)
    return None


@contextlib.contextmanager
def _forwarded(processes: list[_Rank], stopping: str) -> Any:
    """Pass the first signal on; die by the second."""
    asked = False

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print(f"\n{stopping}", file=sys.stderr, flush=True)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.process.send_signal(signal.SIGINT)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
