"""The additions to a registry that FlexShard offers `recd advise`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recd_plugins.api import Addition, NotHere, Situation

__all__ = ["ADDITIONS"]

Values = Mapping[str, Any]
NEXT_TO_NOTHING = 1e-6
"""GB: room for the differences of shards in their last rows, so that time alone decides on the ways
of tables."""


def _coalesced(situation: Situation) -> Values | NotHere:
    return _sharded(situation, {"goal": "auto", "tiers": 1, "budget_gb": NEXT_TO_NOTHING})


def _tiered(situation: Situation) -> Values | NotHere:
    if situation.objective == "memory":
        return _sharded(situation, {"goal": "max_memory_saving", "coalesce": "rank"})
    if situation.budget_gb <= 0:
        return NotHere(
            "a replica takes memory, but the budget has none: give --budget-gb, the memory that a "
            "rank may take beyond TorchRec's own plan"
        )
    return _sharded(situation, {"goal": "auto", "budget_gb": situation.budget_gb})


def _sharded(situation: Situation, options: Mapping[str, Any]) -> Values | NotHere:
    if situation.cluster.world_size == 1 and situation.fits:
        return NotHere("there is one rank, which exchanges nothing")
    if not situation.tables:
        return NotHere("the model has no TorchRec table")
    now = situation.options("sharding")
    behind = now.get("others") if situation.use("sharding") == "flexshard" else now
    others = {} if not behind or behind == {"use": "torchrec"} else {"others": behind}
    return {"sharding": {"use": "flexshard", **options, **others}}


ADDITIONS = (
    Addition(
        name="coalescing",
        summary="Of each table the way that is fastest: TorchRec's own, or ids sent once; and its "
        "home, where memory has no room for all.",
        add=_coalesced,
        after=("unique samples",),
    ),
    Addition(
        name="tiers",
        summary="Hot rows on every rank or in every node, as many as the budget has room for.",
        add=_tiered,
        after=("coalescing",),
    ),
)
