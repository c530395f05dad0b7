"""What the processes of a job hold, read from /proc while it trains."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recd_plugins.launch.processes import with_those_below

__all__ = ["Held", "Watched", "watch"]

LOOKS = 120
"""Looks at a job in all of its time."""
STARTS = 900.0
"""Seconds for a job to begin to train."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What all processes of a job hold at one moment."""

    step: int
    memory: float
    """Resident bytes of no file. Ranks and workers are forked and share pages with each other until
    one of them writes: such a page counts once, in equal parts among those that have it."""
    shared: float
    """Bytes of shared memory, counted once too."""
    handles: int
    threads: int
    processes: int


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A job's whole time."""

    looks: Sequence[Held]
    code: int
    left: Sequence[str]
    """Temporary files that outlived it."""
    printed: str = ""
    """The end of what it printed."""


def watch(job: Mapping[str, Any], seconds: float, folder: Path) -> Watched:
    """Train the job in a folder for so long, then have it stop as by Ctrl-C."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    text = yaml.safe_dump(json.loads(json.dumps({**job, "folder": "data"})), sort_keys=False)
    (folder / "registry.yaml").write_text(text)
    metrics = folder / "runs/latest/metrics.jsonl"
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "recd_plugins", "train"],
            cwd=folder,
            # Torch keeps a cache among the temporary files, for all jobs to come.
            env=os.environ | {"TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": str(folder)},
            stdout=printed,
            stderr=printed,
        )
        try:
            _wait(lambda: _steps(metrics) > 0, process, folder, STARTS)
            began, looks = time.monotonic(), list[Held]()
            while time.monotonic() - began < seconds:
                _wait(lambda: True, process, folder, 1)
                looks.append(_held(process.pid, _steps(metrics)))
                time.sleep(seconds / LOOKS)
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=STARTS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return Watched(
        looks=looks,
        code=code,
        left=sorted(one.name for one in temporary.iterdir()),
        printed=(folder / "printed").read_text()[-2_000:],
    )


def _wait(
    done: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path, seconds: float
) -> None:
    ends = time.monotonic() + seconds
    while True:
        if process.poll() is not None or time.monotonic() > ends:
            raise SystemExit(f"a job does not train: {(folder / 'printed').read_text()[-3_000:]}")
        if done():
            return
        time.sleep(0.2)


def _steps(metrics: Path) -> int:
    """The step of the latest whole line."""
    if not metrics.exists():
        return 0
    lines = [line for line in metrics.read_text().splitlines(keepends=True) if line[-1] == "\n"]
    return json.loads(lines[-1])["step"] if lines else 0


def _held(launcher: int, step: int) -> Held:
    memory = shared = 0.0
    handles = threads = processes = 0
    for pid in with_those_below(launcher):
        with contextlib.suppress(OSError, KeyError):  # a worker that ends just now
            pages, status = _named(pid, "smaps_rollup"), _named(pid, "status")
            handles += len(os.listdir(f"/proc/{pid}/fd"))
            memory += 1024 * int(pages["Pss_Anon"].split()[0])
            shared += 1024 * int(pages["Pss_Shmem"].split()[0])
            threads += int(status["Threads"])
            processes += 1
    return Held(
        step=step,
        memory=memory,
        shared=shared,
        handles=handles,
        threads=threads,
        processes=processes,
    )


def _named(pid: int, file: str) -> dict[str, str]:
    """A file of /proc: what each of its lines names, by the name."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}
