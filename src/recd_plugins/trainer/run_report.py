"""The report of rank 0: it writes metrics.jsonl, TensorBoard events and a summary into the run's
folder, and prints the lines."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.errors import RecdError
from recd_plugins.notices import NoticeWarning
from recd_plugins.storage.whole_file import FULL, of_path, write_whole

if TYPE_CHECKING:
    from recd_plugins.trainer.checkpoints.checkpoint import ReachedState

__all__ = ["RunReport", "defined"]

STANDARD_METRICS = ("loss", "ne", "auc", "samples", "samples_per_second")
"""The metrics of every run; a line shows after them those that callbacks added."""


class RunReport:
    """The report of rank 0; the other ranks' reports are silent."""

    def __init__(
        self,
        run: Path,
        *,
        speaks: bool,
        steps: int,
        reached: ReachedState | None = None,
        again: bool = False,
        on_full: Literal["stop", "go_on"] = "stop",
    ) -> None:
        """Open the files of a run that begins, or goes on where `reached` says.

        The lines of metrics that were there when the checkpoint was made are kept, and later ones
        of its step, unless an evaluation writes them `again`. The summary of its earlier end is
        removed: whoever finds one can rely on it as that of the run's latest end. With
        `on_full="go_on"` lines that the disk has no room for are left out.
        """
        self._speaks = speaks
        self._run = run
        self._steps = steps
        self._start = start = reached.step if reached else 0
        self._on_full = on_full
        self._left_out: set[str] = set()
        """The files of the run that lack something that their disk had no room for."""
        self.before: list[dict[str, Any]] = []
        """The lines of metrics that stay; none on a rank that is silent."""
        self.lines = 0
        """The number of lines that metrics.jsonl has."""
        self._began = time.monotonic()
        if not speaks:
            return
        from torch.utils.tensorboard import SummaryWriter

        run.mkdir(parents=True, exist_ok=True)
        (run / "summary.json").unlink(missing_ok=True)
        file = run / "metrics.jsonl"
        if reached:
            text, self.before = _lines_before(file, start, reached.so_far.get("lines"), again)
            self.lines = len(self.before)
            write_whole(file, text)
        self._file = file.open("ab", buffering=0)
        if not reached:
            self._file.truncate(0)
        # Events from its step on are hidden: what came after the checkpoint comes again.
        _leave_out_traceback_of("_AsyncWriterThread")
        self._board: SummaryWriter | None = SummaryWriter(
            str(run / "tensorboard"), purge_step=start or None
        )
        for line in self.before:
            if line["step"] == start:
                self._draw(**line)

    def say(self, text: str) -> None:
        if self._speaks:
            with of_path(Path("standard output")):
                print(text, flush=True)

    def metrics(self, kind: str, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write one line of metrics of `kind` (train or test), everywhere; None is a callback's
        metric without a value now."""
        if not self._speaks:
            return
        self.values(kind, step, metrics)
        more = "".join(
            f"  {name} {'undefined' if value is None else f'{value:.4g}'}"
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
        """Write a line of `kind` to metrics.jsonl and its numbers to TensorBoard, nothing to the
        console."""
        if not self._speaks:
            return
        line = json.dumps(defined({"kind": kind, "step": step, **values})) + "\n"
        with self._as_room_is("metrics.jsonl"):
            _append(self._file, line.encode())
            self.lines += 1
        self._draw(kind, step, **values)

    def _draw(self, kind: str, step: int, **values: Any) -> None:
        if (board := self._board) is None:
            return
        with self._as_room_is("tensorboard"):
            self._board = None  # it takes nothing more once it has failed
            for name, value in _numbers(kind, values):
                board.add_scalar(name, value, step)
            self._board = board

    @contextmanager
    def _as_room_is(self, name: str, *, may_lack: bool = True) -> Iterator[None]:
        """Inside, what the disk has no room for in a file of the run is left out, and it says so
        once; or it ends the run, as `train.on_full` has it, or as a run may not lack it."""
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            what = f"{self._run / name}: the disk has no room for it ({error.strerror})"
            if self._on_full == "stop" or not may_lack:
                also = " With train.on_full=go_on a run trains on without such lines." * may_lack
                raise RecdError(
                    f"{what}. Make room, and `recd train --resume` goes on from the latest "
                    f"checkpoint, if there is one.{also}"
                ) from error
            if name not in self._left_out:
                self._left_out.add(name)
                warnings.warn(f"{what}: lines are left out", NoticeWarning, stacklevel=2)

    def keep(self, name: str, text: str) -> None:
        """Write a file of the run beside its metrics, completely or not at all."""
        if self._speaks:
            write_whole(self._run / name, text)

    def sync(self) -> None:
        """Write every reported line through to the disk: a checkpoint relies on them."""
        if self._speaks:
            with self._as_room_is("metrics.jsonl"):
                os.fsync(self._file.fileno())

    def close(self, summary: Mapping[str, Any]) -> None:
        if not self._speaks:
            return
        with self._as_room_is("summary.json", may_lack=False):
            write_whole(self._run / "summary.json", json.dumps(defined(summary), indent=1) + "\n")
        self._file.close()
        with self._as_room_is("tensorboard"):
            if self._board is not None:
                self._board.close()
        sys.stdout.flush()


def _append(file: FileIO, line: bytes) -> None:
    """Append a line whole, or none of it: a torn one would end what a resumed run reads."""
    before, left = os.fstat(file.fileno()).st_size, line
    try:
        while left:
            left = left[file.write(left) or 0 :]
    except OSError:
        os.ftruncate(file.fileno(), before)
        raise


def defined(values: Any) -> Any:
    """The value with null for each NaN, which JSON does not have, at any depth."""
    if isinstance(values, Mapping):
        return {name: defined(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [defined(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


class _NoTracebacksOf:
    """A `threading.excepthook` that leaves out threads of one class."""

    def __init__(self, kind: str, before: Callable[[threading.ExceptHookArgs], object]) -> None:
        self._kind = kind
        self._before = before

    def __call__(self, error: threading.ExceptHookArgs) -> None:
        if type(error.thread).__name__ != self._kind:
            self._before(error)


def _leave_out_traceback_of(kind: str) -> None:
    """Print none if a thread of this class fails from now on: TensorBoard's keeps the error of a
    file that it cannot write, and the next call of its writer raises it."""
    if not isinstance(threading.excepthook, _NoTracebacksOf):  # by an earlier run of this process
        threading.excepthook = _NoTracebacksOf(kind, threading.excepthook)


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
    them up to the step of its checkpoint, unless they will be written `again`."""
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
