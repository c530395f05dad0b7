"""What a planner answers, checked against what its bases promise: the planner may be a stranger's,
and a wrong answer would fail far from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from recd_plugins.errors import PluginError, check_made
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.fused_params import fused_in_words
from recd_plugins.planning.planner_bases import HoldsRowWise, Proposes

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = [
    "completed",
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


def completed(
    found: Sequence[ModuleSharder[nn.Module]], given: Sequence[ModuleSharder[nn.Module]], who: str
) -> list[ModuleSharder[nn.Module]]:
    """The sharders that a planner brings, with those that the trainer has `given` for other
    modules.

    `PluginError`, which names the planner as `who`, where it replaces a sharder of the trainer's by
    one that trains or exchanges otherwise.
    """
    by_type = {one.module_type: one for one in found}
    for own in given:
        other = by_type.get(own.module_type, own)
        theirs, ours = (getattr(one, "fused_params", None) or {} for one in (other, own))
        codecs = other.qcomm_codecs_registry is own.qcomm_codecs_registry
        if theirs == ours and codecs:
            continue
        what = (
            f"trains tables with {fused_in_words(theirs)}, where the trainer's have "
            f"{fused_in_words(ours)}"
            if theirs != ours
            else "leaves out the trainer's qcomm_codecs_registry"
        )
        raise PluginError(
            f"{who} brings a {type(other).__name__} of its own for {own.module_type.__name__}, "
            f"which {what}. Have its `sharders` return those of `context.sharders()`, wrapped "
            "where its plan changes modules."
        )
    return [*found, *(own for own in given if own.module_type not in by_type)]


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
