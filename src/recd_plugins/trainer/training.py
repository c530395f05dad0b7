"""A run as its callbacks see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recd_plugins.data.batch import Batch
from recd_plugins.errors import shown
from recd_plugins.registry.settings import TrainSettings

if TYPE_CHECKING:
    from torchrec.optim.keyed import KeyedOptimizer

    from recd_plugins.data.schema import Label

__all__ = ["Training"]

OF_A_LINE = ("kind", "step")
"""What a line of metrics.jsonl has beside its values."""
OF_THE_RUN = ("train", "test", "cost", "repeats", "calibration", "period", "profile")
"""The kinds of lines that a run writes itself, and reads when it is resumed or reported."""


@dataclass(kw_only=True)
class Training:
    """A run, as a callback may see and change it.

    A callback may change the parameters of `model` between two steps, their gradients in
    `before_update`, and the learning rates of `dense` and `tables` in `before_step`: all of them
    alike on every rank, to which checkpoints hold parameters and rates. It may only read all else.
    """

    model: nn.Module
    """The sharded model."""
    dense: torch.optim.Optimizer
    """The optimizer of the dense parameters."""
    tables: KeyedOptimizer
    """The tables' fused optimizers. A rate that is set in a group of its `param_groups` holds from
    the next step on, for replicas too."""
    settings: TrainSettings
    """The `train` key of registry.yaml."""
    device: torch.device
    """The device that this rank computes on."""
    rank: int
    """This rank's number, from 0."""
    world_size: int
    """The number of ranks."""
    run: Path
    """The run's folder, of all ranks."""
    step: int
    """The number of steps trained so far; 0 in the first `before_step` of a new run."""
    batch: Batch | None = None
    """The batch of the latest step, as it was read; None before the first."""
    labels: tuple[Label, ...] = ()
    """The labels that the model learns: outputs and labels are [B], or [B, T] of T labels."""
    outputs: tuple[Tensor, ...] = ()
    """Loss, logits, labels and weights of the latest batch, without a graph."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The latest metrics of training."""
    stopping: str = ""
    """Why this rank asks the run to end; empty if it does not."""
    lines: list[str | tuple[str, int, Mapping[str, Any]]] = field(default_factory=list)
    """The lines and values of callbacks that are not reported yet."""

    def say(self, text: str) -> None:
        """Print a line on rank 0's console, in `on_metrics` after the line of the metrics."""
        if not isinstance(text, str):
            raise TypeError(f"training.say takes a text, but was given {shown(text)}")
        self.lines.append(text)

    def log(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write a line of `kind` to rank 0's metrics.jsonl, and its numbers to TensorBoard."""
        _check_logged(kind, values)
        self.lines.append((kind, self.step, values))

    def stop(self, reason: str) -> None:
        """End the run after the next step, for `reason`, in words; one rank's call is enough for
        all."""
        if not isinstance(reason, str) or not reason.strip():
            raise TypeError(
                "training.stop takes the reason why the run ends, in words, but was given "
                f"{shown(reason)}: it ends after the next step, whenever it is called, as in `if "
                "training.step == 3: training.stop('enough')`; `train.steps` says how many steps "
                "there are"
            )
        self.stopping = self.stopping or reason


def _check_logged(kind: object, values: object) -> None:
    """`TypeError` or `ValueError` unless the kind and the values can be a line of metrics.jsonl."""
    if not isinstance(kind, str) or not isinstance(values, Mapping):
        raise TypeError(
            "training.log takes the kind of a line and a mapping of values, but was given "
            f"{shown(kind)} and {shown(values)}"
        )
    if kind in OF_THE_RUN:
        raise ValueError(
            f"training.log was given the kind {kind!r}, which the run itself uses: choose another "
            "name"
        )
    if taken := [name for name in OF_A_LINE if name in values]:
        raise ValueError(
            f"training.log was given a value named {taken[0]!r}, as each line has one: give it "
            "another name"
        )
    try:
        json.dumps(values)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"training.log was given values that cannot be written as JSON ({error}): keep "
            "numbers, texts, lists and mappings in them"
        ) from error
