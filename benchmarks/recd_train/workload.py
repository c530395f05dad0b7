"""What is trained, and the sides of a comparison: registries that differ in nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from benchmarks import models
from recd_plugins.stack import load

__all__ = ["CLUSTERED", "O5_O6", "PLAIN", "RECD", "TrainSide", "TrainWorkload"]

RANKS = 2


@dataclass(frozen=True, kw_only=True)
class TrainSide:
    """A way to train a model."""

    clustered: bool = True
    """O2: the table is clustered by session, and batches keep sessions whole."""
    dedup: bool = True
    """O5, O6: lookups on unique samples, expanded."""
    pool_unique: bool = True
    """O7: poolings on unique samples too."""
    batch: int = 1
    """The batch size, as a multiple of the model's."""
    route: Literal["padded", "vbe"] = "padded"
    """How lookups take unique samples: as ours do, or in TorchRec's variable-batch form (CUDA)."""
    dense_once: bool = False
    """Whether dense gradients may cross nodes once."""
    both_ways: bool = False
    """Whether exchanges between nodes may send in both directions at once, where gloo lets these
    take turns."""
    bags_of_one: bool = True
    """Whether rows of sequences are looked up as bags of one."""
    codecs: Mapping[str, Any] = field(default_factory=dict)
    """The precisions in which floats are sent, as in `train.codecs`; float32 by default."""
    index_dedup: bool = False
    """Whether TorchRec looks up each different id of sequences once (CUDA)."""


RECD = TrainSide()
O5_O6 = TrainSide(pool_unique=False)
CLUSTERED = TrainSide(dedup=False, pool_unique=False)
"""The same batches as RECD's, as plain KJTs."""
PLAIN = TrainSide(clustered=False, dedup=False, pool_unique=False)


@dataclass(frozen=True, kw_only=True)
class TrainWorkload:
    """One of the paper's models at a scale, and its table."""

    model: str
    scale: float
    folder: Path
    samples: int
    samples_per_session: float | None = None
    """S; the model's own by default."""
    items: bool = True
    """Whether it has item features: without them, all its features are deduplicated."""
    seed: int = 0
    ranks: int = RANKS
    device: str = "cpu"

    def registry(self, side: TrainSide) -> dict[str, Any]:
        values = models.registry(self.model, self.scale)
        dataset, train = values["dataset"], values["train"]
        dataset |= {"samples": self.samples, "test_fraction": 1e-3, "seed": self.seed}
        if self.samples_per_session is not None:
            dataset["samples_per_session"] = self.samples_per_session
        if not self.items:
            dataset["features"] = [f for f in dataset["features"] if f["kind"] == "user"]
        values["folder"] = str(self.folder)
        values["dedup"] = {"use": "exact", "groups": models.groups(values)}
        if not side.dedup:
            del values["dedup"]
        if not side.clustered:
            del values["etl"], values["reader"]
        train |= {"ranks": self.ranks, "batch_size": side.batch * train["batch_size"]}
        train |= {"device": self.device, "bags_of_one": side.bags_of_one}
        train["codecs"] = dict(side.codecs)
        return values

    @property
    def batch_size(self) -> int:
        size: int = self.registry(RECD)["train"]["batch_size"]
        return size

    def prepare(self) -> float:
        """Make the table, and return its measured S."""
        table = load(self.registry(CLUSTERED)).prepare().train
        sessions = {
            session
            for file in table.files
            for session in pq.read_table(file, columns=["session_id"])[0].to_pylist()
        }
        return table.num_rows / len(sessions)
