"""What a planner answers, checked against what its bases promise: the planner may be a stranger's,
and a wrong answer would fail far from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from recd_plugins.errors import check_made
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.planner_bases import HoldsRowWise, Proposes

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = [
    "explanation",
    "having_in_files",
    "having_row_wise",
    "may_be_row_wise",
    "proposal",
    "sharders_of",
]


def proposal(
    planner: Proposes, model: nn.Module, topology: Topology, world_size: int
) -> ShardingPlan:
    """The plan that it proposes."""
    from torchrec.distributed.types import ShardingPlan

    found = planner.propose(model, topology, world_size)
    check_made(found, ShardingPlan, _whose(planner, "propose"), "Return TorchRec's.")
    return found


def sharders_of(planner: HoldsRowWise) -> list[ModuleSharder[nn.Module]]:
    """The sharders that it brings."""
    found: Any = planner.sharders()
    fix = "Return context.sharders(), as they are or wrapped."
    check_made(found, Sequence, _whose(planner, "sharders"), fix)
    return list(found)


def may_be_row_wise(planner: HoldsRowWise, table: str) -> bool:
    """Whether it may have a table row-wise."""
    found: Any = planner.may_be_row_wise(table)
    whose = _whose(planner, "may_be_row_wise")
    check_made(found, bool if not isinstance(found, np.bool_) else np.bool_, whose, "Return one.")
    return bool(found)


def having_row_wise(
    planner: HoldsRowWise, tables: Iterable[str], kernels: Mapping[str, TableConstraint]
) -> HoldsRowWise:
    """A planner like it, which has these tables row-wise."""
    found = planner.row_wise(tables, kernels)
    check_made(found, HoldsRowWise, _whose(planner, "row_wise"), "Return a planner like it.")
    return found


def having_in_files(planner: HoldsRowWise, tables: Collection[str]) -> HoldsRowWise:
    """A planner like it, which counts these tables as in mapped files."""
    found = planner.in_files(tables)
    check_made(found, HoldsRowWise, _whose(planner, "in_files"), "Return a planner like it.")
    return found


def explanation(planner: HoldsRowWise) -> str:
    """Why its last plan is what it is."""
    found = planner.explain()
    fix = "Return why the plan is as it is, in words."
    check_made(found, str, _whose(planner, "explain"), fix)
    return found


def _whose(planner: object, part: str) -> str:
    return f"the planner {type(planner).__name__}: its `{part}` returned"
