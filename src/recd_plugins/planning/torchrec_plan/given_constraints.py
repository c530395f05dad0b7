"""The constraints that a trainer gives, as it would hand them to TorchRec's own planner: they are
checked, joined with those of registry.yaml, and compared with the plan that comes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.sharders import sharded_modules
from recd_plugins.planning.tables.planned_tables import planned_tables

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = [
    "carry_given",
    "check_known",
    "check_offered",
    "not_kept",
    "with_given",
]

CARRIED = (
    "cache_params",
    "enforce_hbm",
    "stochastic_rounding",
    "bounds_check_mode",
    "output_dtype",
    "key_value_params",
)
"""Constraints on how a table trains, which TorchRec's planner passes on to its plan."""


def check_known(given: Mapping[str, ParameterConstraints]) -> None:
    """`CapabilityError` where a trainer's constraint has fields that TorchRec's own have not, as
    for tables that grow: a plan of TorchRec's planner would leave those out."""
    from torchrec.distributed.planner.types import ParameterConstraints

    known = {one.name for one in dataclasses.fields(ParameterConstraints)}
    for table, one in given.items():
        plain = vars(type(one)())
        chosen = {name for name, value in vars(one).items() if value != plain.get(name)}
        if beyond := sorted(chosen - known):
            raise CapabilityError(
                f"stack.plan: the constraints of table {table!r}, {type(one).__name__}, say "
                f"{', '.join(beyond)}, which TorchRec's planner does not know, so its plan would "
                "leave them out. Let the planner for which they are made plan this model, without "
                "stack.plan; or make the table one of TorchRec's."
            )


def check_offered(
    constraints: Mapping[str, ParameterConstraints],
    given: Collection[str],
    model: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    device: str,
) -> None:
    """`RegistryError` where the trainer's constraints, the `given` ones among these, leave a table
    no sharding type and kernel that its sharder offers."""
    for _, module, sharder in sharded_modules(model, sharders):
        offered = {
            kind: sharder.compute_kernels(kind, device) for kind in sharder.sharding_types(device)
        }
        for name in sharder.shardable_parameters(module):
            if name not in given or name not in constraints:
                continue
            kinds = constraints[name].sharding_types or [*offered]
            kernels = constraints[name].compute_kernels
            if not any(
                kind in offered and (not kernels or {*kernels} & {*offered[kind]}) for kind in kinds
            ):
                asked = " with ".join(" or ".join(one) for one in (kinds, kernels) if one)
                offers = ", ".join(f"{kind} ({', '.join(k)})" for kind, k in offered.items())
                raise RegistryError(
                    f"stack.plan(constraints={{{name!r}: ...}}): no sharding type and kernel is "
                    f"left for the table: the constraints ask for {asked}, and on {device} its "
                    f"sharder, {type(sharder).__name__}, offers {offers}. Allow one of these, or "
                    "give stack.plan a sharder that offers what is asked for, `sharders=[...]`."
                )


def with_given(
    constraints: Mapping[str, ParameterConstraints],
    given: Mapping[str, ParameterConstraints],
    held: Collection[str],
) -> dict[str, ParameterConstraints]:
    """The constraints of a trainer's own, each over those that its table has here. Batch sizes of
    unique samples stay, and tables that are `held` keep their sharding type, kernel and cache."""
    found = {}
    for name, mine in given.items():
        if name not in constraints:
            continue  # of no table: TorchRec takes that, too
        here = constraints[name]
        chooses = name not in held
        found[name] = dataclasses.replace(
            mine,
            sharding_types=(mine.sharding_types if chooses else None) or here.sharding_types,
            compute_kernels=(mine.compute_kernels if chooses else None) or here.compute_kernels,
            # One for all of its features: TorchRec wants as many as there are pooling factors.
            batch_sizes=(here.batch_sizes or []) * len(mine.pooling_factors) or mine.batch_sizes,
            cache_params=here.cache_params or mine.cache_params,
        )
    return found


def carry_given(plan: ShardingPlan, given: Mapping[str, ParameterConstraints]) -> None:
    """Have tables that were not placed by TorchRec's planner train as the trainer says."""
    for _, name, sharding in planned_tables(plan):
        if name in given:
            for one in CARRIED:
                setattr(sharding, one, getattr(given[name], one))


def not_kept(plan: ShardingPlan, given: Mapping[str, ParameterConstraints]) -> list[str]:
    """The tables that a plan places in ways that the trainer does not allow, each with its sharding
    type and kernel."""
    found = []
    for _, name, how in planned_tables(plan):
        if name not in given:
            continue
        kinds, kernels = given[name].sharding_types, given[name].compute_kernels
        kept = how.sharding_type in (kinds or [how.sharding_type])
        if not kept or how.compute_kernel not in (kernels or [how.compute_kernel]):
            found.append(f"{name} ({how.sharding_type}, {how.compute_kernel})")
    return sorted(found)
