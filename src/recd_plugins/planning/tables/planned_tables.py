"""The tables that a plan of TorchRec's places, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from torchrec.distributed.types import ParameterSharding, ShardingPlan

__all__ = ["planned_tables"]


def planned_tables(plan: ShardingPlan) -> Iterator[tuple[str, str, ParameterSharding]]:
    """The path of each table's module in the model, the table's name, and how it is sharded."""
    for path, tables in plan.plan.items():
        # TorchRec's type of a module's plan does not say that it is a mapping of these.
        for name, sharding in cast("Mapping[str, ParameterSharding]", tables).items():
            yield path, name, sharding
