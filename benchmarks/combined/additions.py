"""RM1, and the registries that lead from plain TorchRec to all papers at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.recd_train.workload import TrainSide, TrainWorkload

__all__ = ["ADDITIONS", "OWN", "PLAIN", "Addition", "OnCluster"]

ROW_WISE: Mapping[str, Any] = {
    "use": "torchrec",
    "search": "greedy",
    "constraints": {"t_[!ui]*": {"sharding_types": ["row_wise"]}},  # the sequences' tables
}
BEST: Mapping[str, Any] = {"use": "torchrec"}
BUDGET_GB = 0.25
"""Over TorchRec's own plan, a rank: so that time decides."""


@dataclass(frozen=True, kw_only=True)
class Addition(TrainSide):
    """A way to train the model, and to shard it."""

    sharding: Mapping[str, Any] = field(default_factory=lambda: ROW_WISE)
    cache: Mapping[str, Any] | None = None


PLAIN, OWN = "plain, sequences row-wise", "TorchRec's own best plan"
COALESCED = {"use": "flexshard", "goal": "auto", "tiers": 2, "budget_gb": 1e-6}
TIERS = {"use": "flexshard", "goal": "auto", "budget_gb": BUDGET_GB}
HOT = {"use": "scars", "size": "plan", "window": 4}
ADDITIONS: Mapping[str, Addition] = {
    PLAIN: Addition(clustered=False, dedup=False, pool_unique=False),
    OWN: Addition(clustered=False, dedup=False, pool_unique=False, sharding=BEST),
    "+ clustering": Addition(dedup=False, pool_unique=False),
    "+ IKJT": Addition(pool_unique=False),
    "+ pooling on unique samples": Addition(),
    "+ coalescing, each table its way": Addition(sharding=COALESCED),
    "+ tiers": Addition(sharding=TIERS),
    "+ hot batches": Addition(sharding=TIERS, cache=HOT),
}
"""Each has what the one before has, but for `OWN`, which is beside the others."""


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
            values["sharding"] = dict(side.sharding)
            if side.cache is not None:
                values["cache"] = dict(side.cache)
        return values
