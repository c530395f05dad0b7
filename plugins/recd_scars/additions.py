"""The additions to a registry that SCARS offers `recd advise`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recd_plugins.api import Addition, NotHere, Situation

__all__ = ["ADDITIONS"]


def _hot_batches(situation: Situation) -> Mapping[str, Any] | NotHere:
    if situation.cluster.world_size == 1:
        return NotHere("there is one rank, and for it every batch is hot")
    if not situation.tables:
        return NotHere("the model has no TorchRec table")
    if situation.tiers:
        return {"cache": {"use": "scars", "size": "plan"}}
    if situation.budget_gb <= 0:
        return NotHere(
            "cached rows take memory, but the budget has none: give --budget-gb, the memory that a "
            "rank may take beyond TorchRec's own plan"
        )
    size = {"size": "budget", "budget_gb": situation.budget_gb}
    return {"cache": {"use": "scars", **size}}


ADDITIONS = (
    Addition(
        name="hot batches",
        summary="Samples whose rows are all on every rank train together, without an all-to-all.",
        add=_hot_batches,
        after=("tiers",),
    ),
)
