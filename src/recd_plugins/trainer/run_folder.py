"""A run's folder: it is kept when a new run takes its name, and checked before it is resumed.

A lock beside it, freed as the process ends, gives it to one job at a time. Rank 0 reports of the
run there: metrics.jsonl, TensorBoard events, a summary; the console has its lines.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from recd_plugins.config.whole_file import write_whole
from recd_plugins.errors import RegistryError

if TYPE_CHECKING:
    from recd_plugins.trainer.checkpoints.checkpoint import Reached

__all__ = [
    "STEPS",
    "RunLock",
    "RunReport",
    "check_free",
    "check_is_run",
    "check_makes_files",
    "check_resumable",
    "defined",
    "set_aside",
]

STEPS = "step-????????"
"""The folders of a run's checkpoints, by a pattern: as they are sorted, the newest is last."""

STANDARD_METRICS = ("loss", "ne", "auc", "samples", "samples_per_second")
"""The metrics of every run; a line shows those that callbacks added beside them."""


OF_A_RUN = ("metrics.jsonl", "summary.json", "checkpoints", "tensorboard")
"""What a folder is known by as a run's: any of these, and nothing that is hidden counts."""


def check_is_run(run: Path) -> None:
    """`RegistryError` where the folder is there and is somebody else's: it is left as it is; and
    where none can be made."""
    here = Path.cwd()
    if Path(os.path.realpath(run)) in (here, *here.parents):
        raise RegistryError(
            f"train.run: {run} is the folder that this is called in, or one that it is in. Name "
            "one for the run, as runs/first."
        )
    if not run.exists():
        check_makes_files(run, "train.run")
        return
    if not run.is_dir():
        raise RegistryError(f"train.run: {run} is no folder. Name another.")
    held = sorted(one.name for one in run.iterdir() if not one.name.startswith("."))
    if held and not set(held) & set(OF_A_RUN):
        raise RegistryError(
            f"train.run: {run} is no run: it holds {', '.join(held[:3])}"
            f"{' and more' if len(held) > 3 else ''}. Name a folder that is empty, or not there."
        )


def check_makes_files(path: Path, option: str) -> None:
    """`RegistryError` where no file or folder of this name can be made."""
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise RegistryError(f"{option}: {path} is a link that leads to itself. Name another.")
    folder = next(one for one in real.parents if one.exists())
    try:
        # Asking for permission is not enough: root has it where nothing can be written.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RegistryError(
            f"{option}: {path} cannot be written, for {folder} takes no files ({error.strerror}). "
            "Name another."
        ) from None


def set_aside(run: Path) -> Path | None:
    """Rename a run that is there to `<name>.<n>`, so that a new one loses nothing; checkpoints that
    a kill left half are removed."""
    check_is_run(run)
    if not run.exists() or not any(run.iterdir()):
        return None
    for part in (run / "checkpoints").glob(f"{STEPS}.part"):
        shutil.rmtree(part, ignore_errors=True)  # a kill left it: nobody can go on from it
    number = 1
    while (target := run.with_name(f"{run.name}.{number}")).exists():
        number += 1
    run.rename(target)
    return target


def check_resumable(run: Path) -> None:
    """`RegistryError` where a run holds no checkpoint to go on from."""
    checkpoints = run / "checkpoints"
    if not any(checkpoints.glob(STEPS)):
        raise RegistryError(
            f"--resume: {checkpoints} holds no checkpoint. Train without --resume, or name the "
            "run's folder with train.run=..."
        )


class RunReport:
    """The report of rank 0; the other ranks' reports are silent."""

    def __init__(
        self,
        run: Path,
        *,
        speaks: bool,
        steps: int,
        reached: Reached | None = None,
        again: bool = False,
    ) -> None:
        """Open the files of a run that begins, or goes on where `reached` says.

        Of metrics those lines stay that were there when the checkpoint was made; and those of its
        step that came later, unless an evaluation makes them `again`.
        """
        self._speaks = speaks
        self._run = run
        self._steps = steps
        self._start = start = reached.step if reached else 0
        self.before: list[dict[str, Any]] = []
        """The lines of metrics that stay; none on a rank that is silent."""
        self.lines = 0
        """The number of lines that metrics.jsonl has."""
        self._began = time.monotonic()
        if not speaks:
            return
        from torch.utils.tensorboard import SummaryWriter

        run.mkdir(parents=True, exist_ok=True)
        file = run / "metrics.jsonl"
        if reached:
            text, self.before = _lines_before(file, start, reached.so_far.get("lines"), again)
            self.lines = len(self.before)
            write_whole(file, text)
        self._file = file.open("a" if reached else "w", buffering=1)
        self._board = SummaryWriter(
            str(run / "tensorboard"), purge_step=start + 1 if start else None
        )

    def say(self, text: str) -> None:
        if self._speaks:
            print(text, flush=True)

    def metrics(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """One line of metrics of `kind` (train or test), everywhere."""
        if not self._speaks:
            return
        self.values(kind, step, metrics)
        more = "".join(
            f"  {name} {value:.4g}"
            for name, value in metrics.items()
            if name not in STANDARD_METRICS
        )
        tail = ""
        if (rate := metrics.get("samples_per_second")) is not None:
            done = step - self._start
            left = (time.monotonic() - self._began) / done * (self._steps - step)
            tail = f"  {rate:>9,.0f} samples/s  {_clock(left)} left"
        self.say(
            f"{kind:<5} step {step:>{len(str(self._steps))}}/{self._steps}  "
            f"loss {metrics['loss']:.4f}  NE {metrics['ne']:.4f}  AUC {metrics['auc']:.4f}"
            f"{more}{tail}"
        )

    def values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """A line of `kind` in metrics.jsonl, its numbers on TensorBoard, nothing on the console."""
        if not self._speaks:
            return
        self._file.write(json.dumps({"kind": kind, "step": step, **defined(values)}) + "\n")
        self.lines += 1
        for name, value in _numbers(kind, values):
            self._board.add_scalar(name, value, step)

    def keep(self, name: str, text: str) -> None:
        """A file of the run beside its metrics, whole or not at all."""
        if self._speaks:
            write_whole(self._run / name, text)

    def sync(self) -> None:
        """The disk has every line that was reported: a checkpoint counts on them."""
        if self._speaks:
            os.fsync(self._file.fileno())

    def close(self, summary: Mapping[str, Any]) -> None:
        if not self._speaks:
            return
        write_whole(self._run / "summary.json", json.dumps(summary, indent=1) + "\n")
        self._file.close()
        self._board.close()
        sys.stdout.flush()


def defined(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no NaN: what is not a number becomes null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers of a tree of mappings, by their paths."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(f"{name}/{key}", part)
    elif isinstance(value, int | float):
        yield name, value


def _lines_before(
    file: Path, step: int, count: int | None, again: bool
) -> tuple[str, list[dict[str, Any]]]:
    """The lines that a resumed run keeps, as text and as values: the first `count`, and those after
    them up to the step of its checkpoint, unless they come `again`."""
    if not file.exists():
        return "", []
    kept, values = [], []
    for number, line in enumerate(file.read_text().splitlines(keepends=True)):
        try:
            value = json.loads(line) if line.endswith("\n") else {}
            late = count is not None and number >= count
            if value["step"] <= step and not (late and again):
                kept.append(line)
                values.append(value)
        except (ValueError, KeyError, TypeError):
            break  # a torn last line
    return "".join(kept), values


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02}"


class RunLock:
    """The lock that rank 0 of a job holds until it is left, or the process ends, be it killed.

    The lock is of the process, not of the file: what the process forks does not keep it, and
    the file that stays behind locks nothing.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Hold the run from now on; `RegistryError` names the job that has it."""
        path = _lock_of(self._run)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise _taken(self._run, file) from None
        self._file = file
        file.truncate(0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
        file.write(json.dumps(holder))
        file.flush()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def check_free(run: Path) -> None:
    """`RegistryError` where another job trains in this folder now."""
    if _lock_of(run).exists():
        with RunLock(run) as lock:
            lock.take()


def _lock_of(run: Path) -> Path:
    run = Path(os.path.realpath(run))
    return run.with_name(f".{run.name}.lock")


def _taken(run: Path, file: IO[str]) -> RegistryError:
    who = "another process"
    try:
        file.seek(0)
        holder = json.load(file)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["started"]))
        who = f"process {holder['pid']} of {holder['host']} since {when}"
    except (ValueError, KeyError, TypeError):
        pass  # it has the lock and has not written yet who it is
    return RegistryError(
        f"train.run: {run} is being trained in by {who}. Wait for its end, or name another folder "
        "with train.run=..."
    )
