"""Tables that others want row-wise, in plans of TorchRec's planner."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = ["make_row_wise", "offers_row_wise"]


def offers_row_wise(
    model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]], device: str
) -> set[str]:
    """The tables for which TorchRec's planner has row-wise plans: on the CPU not those of bags."""
    return {
        table
        for _, module, sharder in _sharded(model, sharders)
        if "row_wise" in sharder.sharding_types(device)
        for table in sharder.shardable_parameters(module)
    }


def make_row_wise(
    plan: ShardingPlan,
    model: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    tables: Collection[str],
    *,
    device: str,
    world_size: int,
    ranks_per_node: int,
) -> None:
    """Have these tables row-wise over all ranks, with TorchRec's fused kernel, in the plan."""
    from torchrec.distributed.sharding_plan import row_wise

    generate = row_wise(compute_kernel="fused")
    for path, module, sharder in _sharded(model, sharders):
        for table, parameter in sharder.shardable_parameters(module).items():
            if table in tables:
                plan.plan[path][table] = generate(
                    parameter, ranks_per_node, world_size, device, sharder
                )


def _sharded(
    model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]
) -> Iterator[tuple[str, nn.Module, ModuleSharder[nn.Module]]]:
    for path, module in model.named_modules():
        for sharder in sharders:
            if isinstance(module, sharder.module_type):
                yield path, module, sharder
