"""`recd train` as a user starts it, in a folder of its own: to its end, or to be interrupted."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from forked import Done, Forked

T = TypeVar("T")

DEADLINE = 900.0
"""Seconds for what a job does, however busy the machine is."""

WIDE = {"COLUMNS": "200"}
"""So that no line is broken."""

REGISTRY = """
plugins: [recd_dlrm]
dataset: {use: sessions, samples: 4096, test_fraction: 0.0625}
model: {use: sequence_dlrm, embedding_dim: 8, bottom: [16], top: [16]}
pooling: {history: {use: attention, hidden: [8]}}
sharding: {use: torchrec, search: greedy}
train:
  ranks: 2
  batch_size: 32
  steps: 30
  log_every: 5
  eval_every: 12
  checkpoint_every: 10
  device: cpu
"""


def write_registry(folder: Path, text: str = REGISTRY) -> None:
    (folder / "registry.yaml").write_text(text)


def start(folder: Path, *arguments: str) -> Forked:
    """`recd train <arguments>` in `folder`; its launcher is forked."""
    return Forked("recd_plugins", "train", *arguments, folder=folder, environment=WIDE)


def train(folder: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What `recd train <arguments>` printed, once it ended with `code`."""
    return printed(start(folder, *arguments).done(DEADLINE), code=code)


def printed(done: Done, *, code: int = 0) -> tuple[str, str]:
    """By a job that must have ended with `code`."""
    assert done.code == code, f"exit code {done.code}\n{done.out}\n{done.err}"
    return done.out, done.err


def wait_for_step(folder: Path, run: str, step: int, job: Forked) -> None:
    """Until `run` has logged `step`."""
    ends = time.monotonic() + DEADLINE
    while time.monotonic() < ends:
        if any(line["step"] >= step for line in metrics(folder, run)):
            return
        assert job.running(), f"ended before step {step}:\n{job.done()}"
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached in {DEADLINE} s:\n{job.done(timeout=0)}")


def metrics(folder: Path, run: str) -> list[dict[str, Any]]:
    """What metrics.jsonl says of training and tests in whole lines, without the clock's."""
    file = folder / run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    found = [line for line in found if line["kind"] in ("train", "test")]
    for line in found:
        line.pop("samples_per_second", None)
    return found


def ranks_of(job: Forked) -> list[int]:
    """The two that a launcher's server forked, or that it started itself, by rank."""
    started = children(job.pid)
    return started if len(started) > 1 else children(started[0])


def children(pid: int) -> list[int]:
    """The processes that a process started, first to last."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append((int(fields[19]), int(stat.parent.name)))
    return [child for _, child in sorted(found)]


def below(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    return [one for child in children(pid) for one in (child, *below(child))]


def until(found: Callable[[], T], right: Callable[[T], bool]) -> T:
    """What is found, once it is right."""
    ends = time.monotonic() + DEADLINE
    while not right(latest := found()):
        assert time.monotonic() < ends, latest
        time.sleep(0.02)
    return latest


def gone(pids: Sequence[int], within: float = DEADLINE) -> bool:
    """Whether all these processes end."""
    ends = time.monotonic() + within
    while time.monotonic() < ends:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
