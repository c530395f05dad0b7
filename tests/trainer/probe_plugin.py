"""A plugin with the kit's smallest model, for registries of the trainer's tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recd_plugins import hookimpl
from recd_plugins.config import Config
from recd_plugins.slots import Context, ModelRecord
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.probe import SCHEMA, Probe


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Config):
    """What the model has beside."""

    norm: bool = False
    """Whether what goes into its last layer is normalised over a rank's batch."""
    idle: bool = False
    """Whether it has a layer that nothing goes through."""
    counts: str = ""
    """What its last layer counts its forwards in, as its extra state: a `mapping`, a `tensor`, or
    a `set`, which no checkpoint keeps."""


class Counts(nn.Linear):
    """A last layer whose outputs fall with the number of forwards, and that with the rank's."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__(width, 1)
        self.count, self.kind = 0, kind

    def forward(self, summed: Tensor) -> Tensor:
        if self.training:
            self.count += 1 + dist.get_rank()
        return super().forward(summed) / (1 + self.count)

    def get_extra_state(self) -> Any:
        kinds = {"mapping": {"counts": {0: self.count}}, "tensor": torch.tensor([self.count])}
        return kinds.get(self.kind, {self.count})

    def set_extra_state(self, state: Any) -> None:
        self.count = int(state[0]) if self.kind == "tensor" else state["counts"][0]


def build(config: ProbeConfig, context: Context) -> Probe:
    model = Probe(context.require_schema())
    if config.norm:
        width = model.over.in_features
        model.over = nn.Sequential(nn.BatchNorm1d(width), model.over)  # type: ignore[assignment]
    if config.idle:
        model.idle = nn.Linear(2, 2)
    if config.counts:
        model.over = Counts(model.over.in_features, config.counts)
    return model


@hookimpl
def recd_model() -> list[ModelRecord[Any]]:
    return [ModelRecord(name="probe", summary="The kit's.", config=ProbeConfig, build=build)]


def probe_registry(folder: Path, *, rows: int = 64, **train: Any) -> dict[str, Any]:
    """A registry that trains the probe on random tables, which it writes into `folder`."""
    random_table(folder / "train", SCHEMA, rows, rows_per_stripe=16)
    random_table(folder / "test", SCHEMA, 20, rows_per_stripe=16, seed=1)
    return {
        "plugins": [__file__],
        "folder": str(folder / "data"),
        "dataset": {
            "use": "parquet",
            "train": str(folder / "train"),
            "test": str(folder / "test"),
        },
        "reader": {"use": "local", "prefetch": False},
        "model": "probe",
        "sharding": {"use": "torchrec", "search": "greedy"},
        "train": {"device": "cpu", "batch_size": 8, "run": str(folder / "run"), **train},
    }
