"""The ranks that have each part of a table, by TorchRec's own plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrec.distributed.types import ParameterSharding, ShardingPlan

    from recd_plugins.planning.tables.model_tables import ModelTable

__all__ = ["PlannedShard", "PlannedShards", "planned_shards"]


@dataclass(frozen=True)
class PlannedShard:
    """A rank's part of a table."""

    rank: int
    rows: float
    """The share of the table's rows."""
    columns: float
    """The share of its columns."""


@dataclass(frozen=True, kw_only=True)
class PlannedShards:
    """A table as TorchRec's plan has it."""

    kind: str
    """TorchRec's `ShardingType`."""
    shards: tuple[PlannedShard, ...] = ()
    """Empty where every rank has all of it."""

    @classmethod
    def of(cls, sharding: ParameterSharding, num_rows: int, dim: int) -> PlannedShards:
        spec: Any = sharding.sharding_spec
        if spec is None:
            return cls(kind=sharding.sharding_type)
        return cls(
            kind=sharding.sharding_type,
            shards=tuple(
                PlannedShard(
                    rank=shard.placement.rank(),
                    rows=shard.shard_sizes[0] / num_rows,
                    columns=shard.shard_sizes[1] / dim,
                )
                for shard in spec.shards
            ),
        )


def planned_shards(
    plan: ShardingPlan, tables: Mapping[str, ModelTable]
) -> dict[str, PlannedShards]:
    """The shards that a plan has of each of these tables, without tables that it leaves
    unsharded."""
    found = {}
    for name, table in tables.items():
        placed: Any = plan.plan.get(table.module, {})
        if name in placed:
            found[name] = PlannedShards.of(placed[name], table.num_rows, table.dim)
    return found
