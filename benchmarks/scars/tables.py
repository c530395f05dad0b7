"""What the suite looks up: tables whose rows follow a law, and Criteo's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from recd_dlrm.datasets.criteo.raw_rows import CATEGORIES, read_rows
from recd_plugins.planning.access.distribution import Integers, RowDistribution
from recd_plugins.planning.access.parametric import exponential, half_normal, uniform, zipf

__all__ = ["LAWS", "UNIFORM", "CriteoColumns", "Law", "TableLookups", "criteo"]

CRITEO = ("kaggle_8k.tsv", "kaggle_2k.tsv")
LAWS = {
    "Zipf 1.05": lambda rows, lookups: zipf(rows, lookups, 1.05),
    "exponential": exponential,
    "half-normal": half_normal,
}
UNIFORM = "uniform"
"""No skew at all: nothing to gain."""


class TableLookups(Protocol):
    """Samples that are drawn by their distributions."""

    @property
    def rows(self) -> Mapping[str, RowDistribution]:
        """The rows of each table; their ids are their ranks or `ids`."""

    @property
    def lookups(self) -> int:
        """Lookups of a sample in each table."""

    def draw(self, batch_size: int, seed: int) -> Mapping[str, Tensor]:
        """[batch_size * lookups] ids of each table."""


@dataclass(frozen=True)
class Law:
    """One table; row i of its distribution has the id i."""

    name: str
    """One of LAWS, or uniform."""
    num_rows: int
    lookups: int

    @cached_property
    def rows(self) -> Mapping[str, RowDistribution]:
        law = uniform if self.name == UNIFORM else LAWS[self.name]
        return {"table": law(self.num_rows, self.lookups)}

    def draw(self, batch_size: int, seed: int) -> Mapping[str, Tensor]:
        rows, draw = self.rows["table"], np.random.default_rng(seed)
        # Lookups fall on runs of like rows, and evenly within one.
        chance = rows.counts * rows.p
        starts = np.cumsum(rows.counts) - rows.counts
        run = draw.choice(len(chance), batch_size * self.lookups, p=chance / chance.sum())
        within = (draw.random(len(run)) * rows.counts[run]).astype(np.int64)
        return {"table": torch.from_numpy(starts[run] + within)}


@dataclass(frozen=True, eq=False)
class CriteoColumns:
    """A table for each column of a log, from which samples are drawn repeatedly."""

    ids: Sequence[Integers]
    """The ids of each column, one for every sample, counted from 0."""
    lookups: int = field(default=1, init=False)

    @cached_property
    def rows(self) -> Mapping[str, RowDistribution]:
        return {f"cat_{i}": _counted(column) for i, column in enumerate(self.ids)}

    def draw(self, batch_size: int, seed: int) -> Mapping[str, Tensor]:
        samples = np.random.default_rng(seed).integers(0, len(self.ids[0]), batch_size)
        return {
            name: torch.from_numpy(column[samples])
            for name, column in zip(self.rows, self.ids, strict=True)
        }


def criteo(folder: Path) -> CriteoColumns | None:
    """The categories of 10,000 rows of Criteo Kaggle; None if the files are not there."""
    if not all((folder / name).exists() for name in CRITEO):
        return None
    blocks = [rows for name in CRITEO for rows in read_rows(folder / name, 0, 1 << 30)]
    columns = [np.concatenate([one.categories[i] for one in blocks]) for i in range(CATEGORIES)]
    return CriteoColumns([np.unique(column, return_inverse=True)[1] for column in columns])


def _counted(ids: Integers) -> RowDistribution:
    counts = np.bincount(ids)
    order = np.argsort(-counts, kind="stable")
    ones = np.ones(len(counts), np.int64)
    return RowDistribution.of(ones, counts[order] / len(ids), ids=order)
