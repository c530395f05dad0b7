"""Two models, and the registries that lead from plain TorchRec to all papers at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.recd_train.workload import TrainSide, TrainWorkload
from recd_plugins.advise.advice import advise
from recd_plugins.advise.goal import AdviceGoal
from recd_plugins.registry import Registry
from recd_plugins.stack import load

__all__ = [
    "ADVISED",
    "ALL",
    "CLUSTER_MODELS",
    "HALF",
    "OWN",
    "PLAIN",
    "PLAIN_HALF",
    "SINGLE",
    "Addition",
    "ClusterModel",
    "OnCluster",
]

BEST: Mapping[str, Any] = {"use": "torchrec"}
BUDGET_GB = 0.25
"""Memory per rank beyond TorchRec's own plan: enough that time decides."""
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
    """By default TorchRec's planner, restricted to the model's plain plan."""
    cache: Mapping[str, Any] | None = None
    whole: Mapping[str, Any] | None = None
    """The whole registry, in place of all other fields."""
    kept: tuple[str, ...] = ()
    """What `recd advise` has kept in the registry."""


PLAIN, OWN = "plain TorchRec", "TorchRec's own best plan"
BOTH_WAYS = "plain TorchRec, exchanges both ways at once"
AS_BAGS = "plain TorchRec, rows as bags of one"
PLAIN_HALF = "plain TorchRec, in 16 bits"
RECD = "+ pooling on unique samples"
ALL = "+ hot batches"
HALF = "+ in 16 bits"
SIXTEEN: Mapping[str, Any] = {
    "forward": "fp16",
    "backward": "fp16",
    "backward_scale": 1024.0,
    "dense": "bf16",
}
"""TorchRec's codecs, and torch's for dense gradients: numbers are sent with 16 bits."""
ADVISED = "what recd advise says"
IN_TIME = Addition(clustered=False, dedup=False, pool_unique=False, bags_of_one=False)
"""Batches of a table in the order of time."""
BESIDE: Mapping[str, Addition] = {
    BOTH_WAYS: replace(IN_TIME, both_ways=True),
    AS_BAGS: replace(IN_TIME, bags_of_one=True),
    PLAIN_HALF: replace(IN_TIME, codecs=SIXTEEN),
    OWN: replace(IN_TIME, sharding=BEST),
    "FlexShard alone, as in its paper": replace(IN_TIME, sharding=PAPER_TIERS),
    "SCARS alone": replace(IN_TIME, sharding=BEST, cache=PAPER_CACHE),
}
"""The sides with which the way to all papers is compared."""


def _way(*, sequences: bool) -> dict[str, Addition]:
    """Each addition has what the previous one has, and one thing more. RecD alone is the last one
    before coalescing."""
    recd = Addition(bags_of_one=False)
    tiers = replace(recd, sharding=TIERS)
    once = replace(tiers, dense_once=True)
    both_ways = replace(once, both_ways=True)
    bags = replace(both_ways, bags_of_one=True)
    hot = replace(bags, cache=HOT)
    pooled_on_unique = {RECD: recd} if sequences else {}
    return {
        PLAIN: IN_TIME,
        "+ clustering": replace(recd, dedup=False, pool_unique=False),
        "+ IKJT": replace(recd, pool_unique=not sequences),
        **pooled_on_unique,
        "+ coalescing, each table its way": replace(recd, sharding=COALESCED),
        "+ tiers": tiers,
        "+ dense gradients once a node": once,
        "+ exchanges both ways at once": both_ways,
        "+ rows as bags of one": bags,
        ALL: hot,
        HALF: replace(hot, codecs=SIXTEEN),
    }


@dataclass(frozen=True, kw_only=True)
class ClusterModel:
    """A model of benchmarks/models, and how it is run on this machine."""

    scale: float
    quick_scale: float
    held: Mapping[str, str]
    """The plain plan: by glob of tables, how they are sharded; TorchRec's planner places others."""
    recd: str
    """The addition with which RecD is complete."""
    faster: Mapping[int, float]
    """By megabits per second, how many times faster all together should be than plain TorchRec."""
    faster_than_own: float | None
    """The same against TorchRec's own best plan."""
    fewer_bytes: float | None
    """How many times fewer bytes should leave the nodes."""
    memory: float | None
    """What percentage of the step's memory all together should need at most."""
    way: Mapping[str, Addition]

    @property
    def sides(self) -> dict[str, Addition]:
        return {PLAIN: self.way[PLAIN], **BESIDE, **self.way}

    @property
    def of_any_width(self) -> ClusterModel:
        """The model without the targets that apply only to two nodes of two ranks."""
        return replace(self, faster={}, fewer_bytes=None, memory=None)

    @property
    def quick_sides(self) -> dict[str, Addition]:
        """The sides without the additions between RecD and all together, and without those that
        RecD consists of."""
        return {
            PLAIN: self.way[PLAIN],
            **BESIDE,
            self.recd: self.way[self.recd],
            ALL: self.way[ALL],
            HALF: self.way[HALF],
        }


CLUSTER_MODELS: Mapping[str, ClusterModel] = {
    "rm1": ClusterModel(
        scale=1 / 6,
        quick_scale=1 / 8,
        held={"t_[!ui]*": "row_wise"},  # the sequences' tables
        recd=RECD,
        faster={200: 8.0, 50: 14.0},
        faster_than_own=4.0,
        fewer_bytes=20.0,
        memory=20.0,
        way=_way(sequences=True),
    ),
    "dlrm": ClusterModel(
        scale=1 / 2,
        quick_scale=1 / 2,
        held={"*": "table_wise"},  # TorchRec's planner offers no row-wise bags on the CPU
        recd="+ IKJT",
        faster={},
        faster_than_own=None,
        fewer_bytes=None,
        memory=None,
        way=_way(sequences=False),
    ),
}
SINGLE = ("FlexShard alone, as in its paper", "SCARS alone")
"""The single papers other than RecD."""


@dataclass(frozen=True, kw_only=True)
class OnCluster(TrainWorkload):
    """A workload whose additions are planned for a cluster."""

    topology: Path
    """What `recd topology measure` found on the cluster."""
    ranks: int
    ranks_per_node: int = 2

    def registry(self, side: TrainSide) -> dict[str, Any]:
        if isinstance(side, Addition) and side.whole is not None:
            return dict(side.whole)
        values = super().registry(side)
        values["topology"] = str(self.topology)
        values["train"]["ranks"] = self.ranks
        if isinstance(side, Addition):
            values["plugins"] = ["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"]
            held = CLUSTER_MODELS[self.model].held
            constraints = {tables: {"sharding_types": [kind]} for tables, kind in held.items()}
            plain = {"use": "torchrec", "search": "greedy", "constraints": constraints}
            values["sharding"] = dict(side.sharding or plain)
            if side.cache is not None:
                values["cache"] = dict(side.cache)
        return values

    def advised(self) -> Addition:
        """What `recd advise` makes of plain TorchRec's registry, once its table is made."""
        plain = Registry.load(self.registry(replace(IN_TIME, bags_of_one=True)))
        goal = AdviceGoal(budget_gb=BUDGET_GB)
        advice = advise(plain, goal, ranks_here=self.ranks, with_what_ifs=False)
        load(advice.values).prepare()
        # Dense gradients, exchanges and lookups are as `recd train` has them.
        return Addition(whole=advice.values, kept=advice.walk.kept, dense_once=True, both_ways=True)
