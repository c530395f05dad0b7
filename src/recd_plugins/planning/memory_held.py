"""What a plan has the ranks of this machine hold in its memory, whatever room there is: TorchRec's
planner takes a rank to have 128 GB where nobody says what it has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.replica_factor import state_bytes
from recd_plugins.planning.sharders import fused_by_table, sharded_modules
from recd_plugins.planning.torchrec_planner import ranks_of_machine

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = ["bytes_held", "neighbours"]

DENSE_COPIES = 2
"""A table that every rank has whole has a gradient of its size."""


def neighbours(rank: int, world_size: int) -> range:
    """The ranks of this rank's machine, itself among them."""
    each = ranks_of_machine(world_size) or world_size
    first = rank // each * each
    return range(first, min(first + each, world_size))


def bytes_held(
    plan: ShardingPlan,
    model: nn.Module,
    sharders: Sequence[ModuleSharder[Any]],
    ranks: Collection[int],
    planner: object,
) -> float:
    """The bytes that these ranks have in host memory of tables and their optimizer's state: by the
    planner's own report, which has replicas too, or else by the plan's shards."""
    in_files: Collection[str] = ()
    all_mapped = isinstance(planner, Tiered) and planner.all_mapped
    if isinstance(planner, Tiered):
        if planner.report is not None:
            ledger = planner.report.ledger
            return len(ranks) * (ledger.replica_memory if all_mapped else ledger.static_memory)
        in_files = planner.mapped
    fused = fused_by_table(model, sharders)
    size = 0.0
    for path, module, sharder in sharded_modules(model, sharders):
        places: Any = plan.plan.get(path, {})
        for name, table in sharder.shardable_parameters(module).items():
            if name not in places or name in in_files:
                continue
            spec, element = places[name].sharding_spec, table.element_size()
            if spec is None:
                size += len(ranks) * DENSE_COPIES * table.numel() * element
                continue
            for shard in () if all_mapped else spec.shards:
                rows, columns = shard.shard_sizes
                here = shard.placement.rank() in ranks and shard.placement.device().type == "cpu"
                if here and columns:
                    size += rows * (columns * element + state_bytes(fused[name], columns))
    return size
