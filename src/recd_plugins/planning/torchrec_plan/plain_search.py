"""The sharding types that plain TorchRec would choose, searched once somebody asks for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING
from weakref import ref

from recd_plugins.errors import RecdError
from recd_plugins.planning.cluster.machines import as_launched
from recd_plugins.planning.remembered import remembered
from recd_plugins.planning.torchrec_plan.beside_plain import (
    DATA_PARALLEL,
    UNSAID_BATCH,
    sharding_types,
)
from recd_plugins.planning.torchrec_plan.constrained_search import ConstrainedSearch
from recd_plugins.planning.torchrec_plan.proposed_plan import ProposedPlan

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints

__all__ = ["plain_kinds"]


def plain_kinds(
    search: ConstrainedSearch, model: nn.Module, proposed: ProposedPlan, kinds: Mapping[str, str]
) -> Callable[[], Mapping[str, str]]:
    """A function that finds the sharding types of the tables that plain TorchRec might place
    otherwise than a proposed plan, which has these `kinds`. It does not keep the model alive.

    For tables whose optimizer is named, it also finds what TorchRec would have on every rank by the
    batch size that its planner assumes by default.
    """
    from recd_plugins.planning.torchrec_plan.torchrec_search import torchrec_topology

    # A trainer's own planner knows no rates of links. Where none are stated here either, only
    # tables whose optimizer is named can differ.
    ranks = search.ranks
    plainly = dataclasses.replace(
        ranks.topology, ranks_per_node=None, intra_node_gbps=None, inter_node_gbps=None
    )
    plainly = as_launched(plainly, ranks.world_size)
    on = torchrec_topology(plainly, ranks.world_size, ranks.device)
    tables, named, seen = proposed.may_be_dense, proposed.named, proposed.seen
    asked = named if repr(on) == repr(ranks.on) else tables
    if not asked:
        return dict
    planned_for = ref(model)

    @cache
    def plain() -> Mapping[str, str]:
        if (here := planned_for()) is None:
            return {}
        found = dict(searched(here, search.batch_size))
        if search.batch_size != UNSAID_BATCH and named & found.keys():
            unsaid = searched(here, UNSAID_BATCH)
            every = (name for name, kind in unsaid.items() if kind == DATA_PARALLEL)
            found |= dict.fromkeys(named.intersection(every), DATA_PARALLEL)
        return found

    def searched(here: nn.Module, size: int) -> Mapping[str, str]:
        sized = dataclasses.replace(search, batch_size=size)
        free = sized.constraints_of(here, may_be_dense=tables)
        undecided = {name for name in asked if _may_differ(free[name], kinds.get(name))}
        if not undecided:
            return {}
        by_default = dataclasses.replace(sized, ranks=dataclasses.replace(ranks, on=on))

        def kinds_of_best() -> Mapping[str, str]:
            try:
                return sharding_types(by_default.best(here, free)[0])
            except RecdError:  # copies on all ranks may take more memory than there is
                return {}

        wanted = ("plain", *by_default.key, sorted(free.items()), *seen)
        found = remembered(repr(wanted), kinds_of_best)
        return {name: kind for name, kind in found.items() if name in undecided}

    return plain


def _may_differ(free: ParameterConstraints, kind: str | None) -> bool:
    """Whether a plan with these `free` constraints may differ from one of this kind in having the
    table on every rank."""
    return any(
        (one == DATA_PARALLEL) != (kind == DATA_PARALLEL)
        for one in free.sharding_types or (DATA_PARALLEL,)
    )
