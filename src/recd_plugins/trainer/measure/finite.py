"""The first loss of a run that is not finite, and its cause.

`FiniteLosses` keeps the batches that led to it; `FiniteInputs` names the columns that had NaN or
infinity. If none had, the weights are the cause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from recd_plugins.data.kept_batch import write_batch
from recd_plugins.data.schema import TOO_LARGE
from recd_plugins.errors import RecdError, listed

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch

__all__ = [
    "FiniteInputs",
    "FiniteLosses",
]

LAG = 2
"""A loss on a GPU is checked after so many steps, when it is there and needs no waiting."""


class FiniteLosses:
    """Checks each loss of this rank, and keeps the latest batches until their losses are known.

    Ranks agree on a stop one step after one of them asks for it, so a rank keeps one more batch. It
    also keeps the batch before the first whose loss is not finite: the update by that batch may
    have made the weights not finite.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lag = LAG if device.type == "cuda" else 0
        self._batches: deque[tuple[int, Batch]] = deque(maxlen=self._lag + 3)
        self._losses: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()
        self._first = 0

    @property
    def found(self) -> bool:
        """Whether a loss of this rank is known to be not finite."""
        return self._first > 0

    def add(self, step: int, batch: Batch, loss: Tensor) -> None:
        """Take the batch of `step`, as it was read, and its loss."""
        self._batches.append((step, batch))
        finite, event = loss.isfinite(), None
        if self._lag:
            finite = torch.empty((), dtype=torch.bool, pin_memory=True, device="cpu").copy_(
                finite, non_blocking=True
            )
            event = torch.cuda.Event()
            event.record()
        self._losses.append((step, finite, event))
        self._look(self._lag)

    def first(self) -> int:
        """The first step of any rank whose loss is not finite; 0 if there is none. Every rank must
        call it."""
        self._look(0)
        never = 2**31 - 1
        first = torch.tensor(self._first or never, dtype=torch.int32, device=self._device)
        dist.all_reduce(first, op=dist.ReduceOp.MIN)
        return int(first) % never

    def keep(self, folder: Path, step: int) -> str:
        """Write this rank's batches of `step` and the step before; returns in words which files
        these are, or why the batches could not be kept."""
        names = []
        rank = dist.get_rank()
        for number, batch in self._batches:
            if number in (step - 1, step):
                names.append(f"step-{number:08}-rank-{rank}.arrow")
                try:
                    write_batch(folder / names[-1], batch)
                except (RecdError, OSError) as error:
                    return f"The batches could not be kept ({error})"
        every = ", ".join(name.replace(f"rank-{rank}.", "rank-*.") for name in names)
        return (
            f"The batches that led there are in {folder} ({every}), for "
            "recd_plugins.api.batch.read_batch"
        )

    def too_large(self, step: int, dense: Sequence[str]) -> str:
        """The column with the largest number in the batches of `step` and of the step before, on
        any rank, and that number, in words; "" where it is not too large to be trained on.

        `dense`: the columns' names. Every rank must call it.
        """
        largest = torch.zeros(len(dense) + 2, device=self._device)
        for number, batch in self._batches:
            if number in (step - 1, step) and batch.dense.shape[1] == len(dense):
                floats = (batch.dense, batch.labels.reshape(-1, 1), batch.weights.reshape(-1, 1))
                most = torch.cat([part.abs().nan_to_num(0.0).amax(0) for part in floats])
                largest = largest.maximum(most.to(self._device))
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        column = int(largest.argmax())
        if not float(largest[column]) > TOO_LARGE:
            return ""
        return f"{_names(dense)[column]} holds up to {float(largest[column]):.3g}"

    def _look(self, lag: int) -> None:
        while len(self._losses) > lag:
            step, finite, event = self._losses.popleft()
            if event is not None:
                event.synchronize()
            if not self._first and not bool(finite):
                self._first = step


def _names(dense: Sequence[str]) -> list[str]:
    """What errors call the floats of a batch: its dense columns, and those of each sample."""
    return [*map(repr, dense), "the label", "the weights"]


class FiniteInputs:
    """Keeps one sum for each column and step, which is finite if all its numbers are."""

    def __init__(self, device: torch.device, *, lacking: bool = False) -> None:
        """`lacking`: whether samples may lack a label, which is then NaN and not an error.
        `device`: the job's device, where collectives take tensors; batches come as they were
        read."""
        self._device = device
        self._lacking = lacking
        self._steps: list[int] = []
        self._sums: list[Tensor] = []

    def add(self, step: int, batch: Batch) -> None:
        """Take the batch of `step`, as it was read."""
        labels = batch.labels.nansum() if self._lacking else batch.labels.sum()
        rest = torch.stack([labels, batch.weights.sum()])
        self._steps.append(step)
        self._sums.append(torch.cat([batch.dense.sum(0), rest]))

    def clear(self) -> None:
        self._steps.clear()
        self._sums.clear()

    def culprit(self, dense: Sequence[str]) -> str:
        """The first step whose batch had numbers that are not finite on any rank, and the columns.

        Empty if all numbers were finite. `dense`: the columns' names. Every rank must call it.
        """
        if not self._sums:
            return ""
        wrong = ~torch.stack(self._sums).isfinite()  # [S, D + 2]
        everywhere = wrong.to(self._device, torch.uint8)
        dist.all_reduce(everywhere, op=dist.ReduceOp.MAX)
        steps = everywhere.any(1).nonzero().flatten().tolist()
        if not steps:
            return ""
        names = _names(dense)
        if len(names) != wrong.shape[1]:
            numbered = [f"dense column {index}" for index in range(wrong.shape[1] - 2)]
            names = [*numbered, *names[-2:]]
        columns = everywhere.any(0).nonzero().flatten().tolist()
        where = listed(names[column] for column in columns)
        return f"the batch of step {self._steps[steps[0]]} holds NaN or infinity in {where}"
