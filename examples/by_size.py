"""Your own sharding in one file: large tables row-wise, each small one on one rank."""

from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan

from recd_plugins.api import Config, ShardingRecord, hookimpl
from recd_plugins.api.planning import Proposes, sharded_modules

LARGE = 10_000
"""The fewest rows with which a table is worth an exchange with every rank."""


class BySize(Proposes):
    def __init__(self, context):
        self.context, self.explanation = context, "No plan has been made yet."

    def plan(self, model, topology, group):
        return self.propose(model, topology, group.size())

    def propose(self, model, topology, world_size):
        modules = [*sharded_modules(model, self.sharders())]
        tables = [
            (weight, path, name.split(".")[1])
            for path, module, _ in modules
            for name, weight in module.named_parameters()
        ]
        held, ways = [0] * world_size, {path: dict[str, object]() for path, _, _ in modules}
        for weight, path, table in sorted(tables, key=lambda each: -each[0].numel()):
            if len(weight) >= LARGE:
                ways[path][table] = row_wise(compute_kernel="fused")
                continue
            rank = held.index(min(held))  # the largest remaining table goes to the emptiest rank
            held[rank] += weight.numel()
            ways[path][table] = table_wise(rank=rank, compute_kernel="fused")
        self.explanation = f"by_size: {', '.join(map('{:,}'.format, held))} numbers in whole tables"
        plans = {
            path: construct_module_sharding_plan(
                module,
                ways[path],
                sharder=sharder,
                local_size=topology.ranks_per_node or world_size,
                world_size=world_size,
                device_type=self.context.device,
            )
            for path, module, sharder in modules
        }
        return ShardingPlan(plan=plans)

    def sharders(self):
        return self.context.sharders()

    def explain(self):
        return self.explanation


@hookimpl
def recd_sharding():
    build = lambda config, context: BySize(context)  # noqa: E731
    return [ShardingRecord(name="by_size", summary="By size.", config=Config, build=build)]
