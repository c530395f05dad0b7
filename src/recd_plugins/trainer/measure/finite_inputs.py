"""Whether the numbers that batches bring are finite: a loss that is not has one of two causes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch

__all__ = ["FiniteInputs"]

SHOWN = 4
"""Columns that a message names."""


class FiniteInputs:
    """Keeps one sum per column and step, which is finite where all of its numbers are."""

    def __init__(self, *, lacking: bool = False) -> None:
        """`lacking`: labels that some samples lack are not a number there, as they should be."""
        self._lacking = lacking
        self._steps: list[int] = []
        self._sums: list[Tensor] = []

    def add(self, step: int, batch: Batch) -> None:
        """A batch as it was read, the one that makes `step`."""
        labels = batch.labels.nansum() if self._lacking else batch.labels.sum()
        rest = torch.stack([labels, batch.weights.sum()])
        self._steps.append(step)
        self._sums.append(torch.cat([batch.dense.sum(0), rest]))

    def clear(self) -> None:
        self._steps.clear()
        self._sums.clear()

    def culprit(self, dense: Sequence[str]) -> str:
        """The first step whose batch, on any rank, held what is not finite, and the columns.

        Nothing where all was finite. `dense`: the columns' names. Every rank must call it.
        """
        if not self._sums:
            return ""
        wrong = ~torch.stack(self._sums).isfinite()  # [S, D + 2]
        everywhere = wrong.to(torch.uint8)
        dist.all_reduce(everywhere, op=dist.ReduceOp.MAX)
        steps = everywhere.any(1).nonzero().flatten().tolist()
        if not steps:
            return ""
        numbered = [f"dense column {index}" for index in range(wrong.shape[1] - 2)]
        named = [repr(name) for name in dense] if len(dense) == len(numbered) else numbered
        names = [*named, "the label", "the weights"]
        columns = everywhere.any(0).nonzero().flatten().tolist()
        more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
        listed = ", ".join(names[column] for column in columns[:SHOWN])
        return f"the batch of step {self._steps[steps[0]]} holds NaN or infinity in {listed}{more}"
