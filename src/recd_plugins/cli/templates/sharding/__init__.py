"""A planner: every table row-wise, a share of its rows on each rank."""

from __future__ import annotations

from torch import nn
from torch.distributed import ProcessGroup
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from recd_plugins.api import Config, Context, ShardingRecord, Topology, hookimpl
from recd_plugins.api.planning import Proposes, sharded_modules


class NewPlugin(Proposes):
    """Plans alike on every rank, so that no rank need ask another."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.explanation = "No plan has been made yet."

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        return self.propose(model, topology, group.size())

    def propose(self, model: nn.Module, topology: Topology, world_size: int) -> ShardingPlan:
        """The plan for so many ranks, which `recd plan` asks for without having them."""
        plans, tables = {}, 0
        for path, module, sharder in sharded_modules(model, self.sharders()):
            names = sharder.shardable_parameters(module)
            tables += len(names)
            plans[path] = construct_module_sharding_plan(
                module,
                {name: row_wise(compute_kernel="fused") for name in names},
                sharder=sharder,
                local_size=topology.ranks_per_node or world_size,
                world_size=world_size,
                device_type=self.context.device,
            )
        self.explanation = f"new_plugin: {tables} tables row-wise over {world_size} ranks."
        return ShardingPlan(plan=plans)

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The trainer's own, for this plan needs no others."""
        return self.context.sharders()

    def explain(self) -> str:
        return self.explanation


def build(config: Config, context: Context) -> NewPlugin:
    return NewPlugin(context)


@hookimpl
def recd_sharding() -> list[ShardingRecord[Config]]:
    return [
        ShardingRecord(
            name="new_plugin",
            summary="Every table row-wise.",
            config=Config,
            build=build,
        )
    ]
