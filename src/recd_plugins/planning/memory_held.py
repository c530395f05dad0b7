"""The memory that a plan takes: on this machine, for all of its ranks, and on a rank's accelerator.

There may be less: TorchRec's planner assumes that a rank has 128 GB of a machine and 32 GB of an
accelerator, unless the topology says what it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.planning.fused_params import fused_by_table, state_bytes
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.sharders import sharded_modules

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = ["bytes_held", "most_on_a_device"]

WITH_GRADIENT = 2
"""The memory of a data-parallel table over that of its rows: its gradient is of the same size."""


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
    for name, table, place in _placed(plan, model, sharders):
        if name in in_files:
            continue
        spec, element = place.sharding_spec, table.element_size()
        if spec is None:
            size += len(ranks) * WITH_GRADIENT * table.numel() * element
            continue
        for shard in () if all_mapped else spec.shards:
            rows, columns = shard.shard_sizes
            here = shard.placement.rank() in ranks and shard.placement.device().type == "cpu"
            if here and columns:
                size += rows * (columns * element + state_bytes(fused[name], columns))
    return size


def most_on_a_device(
    plan: ShardingPlan, model: nn.Module, sharders: Sequence[ModuleSharder[Any]], planner: object
) -> float:
    """The bytes of tables, of their optimizer's state and of replicas on an accelerator, of the
    rank that has the most. Of a table in host memory, only the rows that are cached count."""
    fused = fused_by_table(model, sharders)
    every, each = 0.0, Counter[int]()
    if isinstance(planner, Tiered) and planner.tier_plan is not None and planner.report is not None:
        every += planner.report.ledger.replica_memory
    for name, table, place in _placed(plan, model, sharders):
        spec, element = place.sharding_spec, table.element_size()
        if spec is None:
            every += WITH_GRADIENT * table.numel() * element
            continue
        here = _share_on_device(place)
        for shard in spec.shards:
            rows, columns = shard.shard_sizes
            if columns and shard.placement.device().type == "cuda":
                width = columns * element + state_bytes(fused[name], columns)
                each[shard.placement.rank()] += int(here * rows * width)
    return every + max(each.values(), default=0)


def _placed(
    plan: ShardingPlan, model: nn.Module, sharders: Sequence[ModuleSharder[Any]]
) -> Iterator[tuple[str, Tensor, Any]]:
    """Each table that the plan places, by name, and its ParameterSharding."""
    for path, module, sharder in sharded_modules(model, sharders):
        places: Any = plan.plan.get(path, {})
        for name, table in sharder.shardable_parameters(module).items():
            if name in places:
                yield name, table, places[name]


def _share_on_device(place: Any) -> float:
    """The share of a table's rows that its kernel keeps on the accelerator."""
    if place.compute_kernel in ("fused", "dense"):
        return 1.0
    cached = place.compute_kernel == "fused_uvm_caching" and place.cache_params is not None
    return float(place.cache_params.load_factor or 0.0) if cached else 0.0
