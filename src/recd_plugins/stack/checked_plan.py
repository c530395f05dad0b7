"""Checks of the plan that a registry's planner returned: against what TorchRec takes, the memory
here and what the trainer wants."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.compat.packages import DISTRIBUTION
from recd_plugins.errors import CapabilityError, check_made, listed, so_many
from recd_plugins.launch.machine_memory import device_memory, machine_memory
from recd_plugins.notices import GivesNotices
from recd_plugins.planning.cluster.machines import neighbours, on_machines
from recd_plugins.planning.fused_params import fused_by_table
from recd_plugins.planning.kernels_without_rows import row_wise_tables, without_rows
from recd_plugins.planning.memory_held import bytes_held, most_on_a_device
from recd_plugins.planning.plan_check import check_plan, check_same, dense_tables
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.sharders import left_whole
from recd_plugins.planning.tables.model_tables import ambiguous, model_tables
from recd_plugins.planning.tables.planned_tables import planned_tables
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.torchrec_plan.given_constraints import not_kept
from recd_plugins.stack.planner import RegistryPlanner
from recd_plugins.stack.usage import Usage

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingPlan

    from recd_plugins.planning.cluster.topology import Topology

__all__ = ["PartsWithoutRows", "check_for_torchrec", "check_is_plan", "compare_with_trainer"]


class PartsWithoutRows(CapabilityError):
    """Parts of a collection of unique samples would have no row on some rank."""

    def __init__(self, who: str, modules: frozenset[str], tables: str, world_size: int) -> None:
        """`modules` are the collections' paths in the model, `tables` those of the parts, in
        words."""
        self.modules = modules
        self.why = (
            f"{tables} would be row-wise, in a kernel without a row on some of "
            f"{so_many(world_size, 'rank')}"
        )
        super().__init__(
            f"{who}: {self.why}, where the first batch fails and the other ranks wait: collections "
            "of unique samples have a kernel for each of their parts. Name the features of tables "
            "with more rows in the same groups of `dedup`, or in none, or have your sharder and "
            "constraints allow table_wise, too."
        )


def check_is_plan(planning: RegistryPlanner, plan: object, part: str) -> None:
    """`PluginError` where that part of the planner did not return a plan."""
    from torchrec.distributed.types import ShardingPlan

    check_made(plan, ShardingPlan, _whose(planning, part), "Return TorchRec's, of every table.")


def _whose(planning: RegistryPlanner, part: str) -> str:
    """How errors begin about what that part of the planner returned."""
    return f"{planning.choice.who}: its `{part}` returned"


def check_for_torchrec(
    plan: ShardingPlan,
    model: nn.Module,
    planning: RegistryPlanner,
    usage: Usage,
    topology: Topology,
    *,
    device: Literal["cpu", "cuda"],
    group: ProcessGroup,
) -> None:
    """`PluginError` where TorchRec would not take what the planner's `plan` returned, or ranks have
    different plans; and a notice where this machine, or its GPU, has no memory for it, or where a
    stranger's planner gave a rank more than the topology says."""
    whose = _whose(planning, "plan")
    check_plan(plan, model, planning.sharders(), group.size(), whose, device)
    check_same(plan, group, whose)
    if device == "cpu":
        _check_rows_on_all(plan, model, planning, group)
    if device == "cuda":
        on_machines(plan, group.size())
        if has := device_memory():
            held = most_on_a_device(plan, model, planning.sharders(), planning.planner())
            usage.too_large_for_a_device(planning.choice, held, has)
    elif has := machine_memory():
        here = neighbours(group.rank(), group.size())
        held = bytes_held(plan, model, planning.sharders(), here, planning.planner())
        usage.too_large(planning.choice, held, has, len(here))
    if planning.choice.provider.distribution != DISTRIBUTION:  # ours keep to the topology
        _hold_to_topology(plan, model, planning, usage, topology, device, group.size())


def _hold_to_topology(
    plan: ShardingPlan,
    model: nn.Module,
    planning: RegistryPlanner,
    usage: Usage,
    topology: Topology,
    device: Literal["cpu", "cuda"],
    world_size: int,
) -> None:
    sharders, planner = planning.sharders(), planning.planner()
    if device == "cuda" and topology.device_memory_gb is not None:
        held = most_on_a_device(plan, model, sharders, planner)
        usage.beyond_topology(planning.choice, held, "device_memory_gb", topology.device_memory_gb)
    if device == "cpu" and topology.host_memory_gb is not None:
        held = max(bytes_held(plan, model, sharders, [rank], planner) for rank in range(world_size))
        usage.beyond_topology(planning.choice, held, "host_memory_gb", topology.host_memory_gb)


def _check_rows_on_all(
    plan: ShardingPlan, model: nn.Module, planning: RegistryPlanner, group: ProcessGroup
) -> None:
    """`CapabilityError` where a kernel of row-wise tables has no row on some rank, since fbgemm
    looks nothing up there; `PartsWithoutRows` where unique samples put bags into such a kernel."""
    every = model_tables(model)
    if ambiguous(model):  # a plan's tables are found by their names
        return
    parted = {one.module for one in every.values() if one.part}
    planner = planning.planner()
    tiers = planner.tier_plan if isinstance(planner, Tiered) else None
    row_wise = {
        name: TableSizes(
            coalesce=tiers.tables[name].coalesce if tiers and name in tiers.tables else "none"
        )
        for name in row_wise_tables(plan, every)
        if every[name].pooled or every[name].module not in parted
    }
    in_files: Collection[str] = ()
    if isinstance(planner, Tiered):
        in_files = every if planner.all_mapped else planner.mapped
    fused: Mapping[str, Any] = fused_by_table(model, planning.sharders())
    lacking = without_rows(row_wise, every, group.size(), in_files, fused)
    of_parts = [name for name in lacking if every[name].module in parted]
    if of_parts:
        modules = frozenset(every[name].module for name in of_parts)
        tables = listed(of_parts, kind="table")
        raise PartsWithoutRows(planning.choice.who, modules, tables, group.size())
    if lacking:
        raise CapabilityError(
            f"{planning.choice.who}: {listed(lacking, kind='table')} would be row-wise, in a "
            f"kernel without a row on some of {so_many(group.size(), 'rank')}, where the first "
            "batch would fail while the other ranks wait. Name another type: by `constraints` of "
            f"`sharding: torchrec`, `{{{lacking[0]}: {{sharding_types: [table_wise]}}}}`, or in a "
            f"trainer of your own, whose sharder must allow it, `{{{lacking[0]!r}: "
            "ParameterConstraints(sharding_types=['table_wise'])}`. Or give it more rows."
        )


def compare_with_trainer(
    plan: ShardingPlan,
    model: nn.Module,
    planning: RegistryPlanner,
    usage: Usage,
    constraints: Mapping[str, ParameterConstraints],
) -> None:
    """Notices of tables that the plan does not place as the trainer's constraints and sharders
    ask."""
    choice, sharders = planning.choice, planning.sharders()
    usage.not_kept(choice, not_kept(plan, constraints))
    planned = {name for _, name, _ in planned_tables(plan)}
    if planned:  # of a model without tables the planner has said so
        usage.of_no_table(sorted(constraints.keys() - planned), planned)
        if planned == {*dense_tables(plan)}:
            usage.optimizer_of_no_table()
    if not isinstance(planning.planner(), GivesNotices):  # else it says so itself
        fused: Mapping[str, Any] = fused_by_table(model, sharders)
        dense = [name for name in dense_tables(plan) if fused.get(name)]
        usage.stepped_densely(choice, dense)
    usage.left_whole(choice, left_whole(model, sharders, plan))
