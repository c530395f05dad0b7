"""Two models, and the registries that lead from plain TorchRec to all papers at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recd_train.workload import TrainSide, TrainWorkload

__all__ = [
    "ALL",
    "CLUSTER_MODELS",
    "OWN",
    "PLAIN",
    "SINGLE",
    "Addition",
    "ClusterModel",
    "OnCluster",
]

BEST: Mapping[str, Any] = {"use": "torchrec"}
BUDGET_GB = 0.25
"""Over TorchRec's own plan, a rank: so that time decides."""
COALESCED: Mapping[str, Any] = {
    "use": "flexshard",
    "goal": "auto",
    "tiers": 2,
    "budget_gb": 1e-6,
}
TIERS: Mapping[str, Any] = {"use": "flexshard", "goal": "auto", "budget_gb": BUDGET_GB}
PAPER_TIERS: Mapping[str, Any] = {"use": "flexshard", "goal": "memory_neutral", "tiers": 3}
HOT: Mapping[str, Any] = {"use": "scars", "size": "plan", "window": 4}
PAPER_CACHE: Mapping[str, Any] = {
    "use": "scars",
    "size": "budget",
    "budget_gb": BUDGET_GB,
    "window": 4,
}


@dataclass(frozen=True, kw_only=True)
class Addition(TrainSide):
    """A way to train the model, and to shard it."""

    sharding: Mapping[str, Any] | None = None
    """By default TorchRec's planner, held to row-wise tables."""
    cache: Mapping[str, Any] | None = None


PLAIN, OWN = "plain row-wise", "TorchRec's own best plan"
RECD = "+ pooling on unique samples"
ALL = "+ hot batches"
IN_TIME = Addition(clustered=False, dedup=False, pool_unique=False)
"""Batches as a table in the order of time has them."""
BESIDE: Mapping[str, Addition] = {
    OWN: Addition(clustered=False, dedup=False, pool_unique=False, sharding=BEST),
    "FlexShard alone, as in its paper": Addition(
        clustered=False, dedup=False, pool_unique=False, sharding=PAPER_TIERS
    ),
    "SCARS alone": Addition(clustered=False, dedup=False, pool_unique=False, cache=PAPER_CACHE),
}
"""What the way to all papers is held against."""


def _way(*, sequences: bool) -> dict[str, Addition]:
    """Each has what the one before has, and one thing more; RecD alone is the last one before
    coalescing."""
    pooled_on_unique = {RECD: Addition()} if sequences else {}
    return {
        PLAIN: IN_TIME,
        "+ clustering": Addition(dedup=False, pool_unique=False),
        "+ IKJT": Addition(pool_unique=not sequences),
        **pooled_on_unique,
        "+ coalescing, each table its way": Addition(sharding=COALESCED),
        "+ tiers": Addition(sharding=TIERS),
        ALL: Addition(sharding=TIERS, cache=HOT),
    }


@dataclass(frozen=True, kw_only=True)
class ClusterModel:
    """A model of benchmarks/models, and how it is brought to this machine."""

    scale: float
    quick_scale: float
    row_wise: str
    """The tables that are row-wise in the plain plan; TorchRec's planner places the others."""
    recd: str
    """The addition with which RecD is whole."""
    way: Mapping[str, Addition]

    @property
    def sides(self) -> dict[str, Addition]:
        return {PLAIN: self.way[PLAIN], **BESIDE, **self.way}


CLUSTER_MODELS: Mapping[str, ClusterModel] = {
    "rm1": ClusterModel(
        scale=1 / 6,
        quick_scale=1 / 8,
        row_wise="t_[!ui]*",  # the sequences' tables
        recd=RECD,
        way=_way(sequences=True),
    ),
    "dlrm": ClusterModel(
        scale=1 / 2, quick_scale=1 / 4, row_wise="*", recd="+ IKJT", way=_way(sequences=False)
    ),
}
SINGLE = ("FlexShard alone, as in its paper", "SCARS alone")
"""The papers alone, beside RecD's."""


@dataclass(frozen=True, kw_only=True)
class OnCluster(TrainWorkload):
    """A workload whose additions are planned for a cluster."""

    topology: Path
    """What `recd topology measure` found of it."""
    ranks: int

    def registry(self, side: TrainSide) -> dict[str, Any]:
        values = super().registry(side)
        values["topology"] = str(self.topology)
        values["train"]["ranks"] = self.ranks
        if isinstance(side, Addition):
            values["plugins"] = ["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"]
            row_wise = {
                "use": "torchrec",
                "search": "greedy",
                "constraints": {
                    CLUSTER_MODELS[self.model].row_wise: {"sharding_types": ["row_wise"]}
                },
            }
            values["sharding"] = dict(side.sharding or row_wise)
            if side.cache is not None:
                values["cache"] = dict(side.cache)
        return values
