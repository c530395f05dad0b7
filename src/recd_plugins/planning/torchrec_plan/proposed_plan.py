"""A plan that TorchRec's planner proposes, as it is made, with the tables row-wise that others need
so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import RecdError
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.fused_params import fused_by_table
from recd_plugins.planning.kernels_without_rows import row_wise_tables, without_rows
from recd_plugins.planning.remembered import remembered
from recd_plugins.planning.sharders import sharded_modules
from recd_plugins.planning.tables.model_tables import ambiguous, model_tables
from recd_plugins.planning.torchrec_plan.beside_plain import DATA_PARALLEL, UNSAID_BATCH
from recd_plugins.planning.torchrec_plan.constrained_search import ConstrainedSearch
from recd_plugins.planning.torchrec_plan.given_constraints import carry_given

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = ["ProposedPlan"]


class ProposedPlan:
    """One model's plan by one search.

    Tables that a planner in front needs row-wise are held so by TorchRec's planner, if it offers
    such plans of them; the others are made row-wise once it has planned.
    """

    def __init__(
        self,
        search: ConstrainedSearch,
        model: nn.Module,
        row_wise: Mapping[str, TableConstraint],
        *,
        data_parallel: bool,
    ) -> None:
        """`data_parallel`: the dense optimizer may step tables for which no other one is named."""
        from recd_plugins.planning.torchrec_plan.torchrec_search import offers_row_wise

        self._search, self._model, self._ranks = search, model, search.ranks
        sharders = self._ranks.sharders
        offered = row_wise.keys() & offers_row_wise(model, sharders, self._ranks.device)
        self._held = {name: row_wise[name] for name in sorted(offered)}
        self._made_row_wise = row_wise.keys() - offered
        self._fused = fused_by_table(model, sharders)
        """By table, the options of the optimizer that is named for it."""
        self.may_be_dense = frozenset(self._fused if data_parallel else ())
        """The tables that TorchRec may have on every rank, where the dense optimizer steps them."""
        self._unnamed = [
            name for name, own in self._fused.items() if name in self.may_be_dense and not own
        ]
        self._constraints = self._searched_by()
        self.seen = [*_seen(model, sharders)]
        """The model as TorchRec's planner sees it."""

    @property
    def named(self) -> frozenset[str]:
        """Those of these tables for which the trainer names an optimizer."""
        return self.may_be_dense.difference(self._unnamed)

    def made(self) -> tuple[ShardingPlan, str]:
        """The best plan, and why it is what it is; a search takes seconds for a hundred tables, so
        the same is searched once."""
        asked = (
            *self._search.key,
            self._held,
            sorted(self._made_row_wise),
            sorted(self._constraints.items()),
            *self.seen,
        )
        return remembered(repr(asked), self._planned)

    def smaller_than_a_batch(self) -> tuple[str, ...]:
        """The unnamed tables with no more rows than a batch has samples, or may have, if TorchRec
        may make them data-parallel."""
        rows = {
            name: len(parameter)
            for _, module, sharder in sharded_modules(self._model, self._ranks.sharders)
            for name, parameter in sharder.shardable_parameters(module).items()
        }
        constraints = self._constraints
        return tuple(
            name
            for name in self._unnamed
            if DATA_PARALLEL in (constraints[name].sharding_types or ())
            and "dense" in (constraints[name].compute_kernels or ("dense",))
            and rows[name] <= max(self._search.batch_size, UNSAID_BATCH)
        )

    def _searched_by(self) -> dict[str, ParameterConstraints]:
        """The constraints of each table. Tables that leave their place once TorchRec has planned
        do not count when others are balanced."""
        found = self._search.constraints_of(
            self._model, may_be_dense=self._unnamed, held=self._held
        )
        for name in found.keys() & self._made_row_wise:
            inputs = found[name].pooling_factors
            found[name].batch_sizes = [1] * len(inputs)
        return found

    def _planned(self) -> tuple[ShardingPlan, str]:
        """The best plan, and why. Without need no table is row-wise whose kernel would have no row
        on some rank, which TorchRec does not ask."""
        constraints = self._constraints
        (plan, why), avoided = self._best(constraints), list[str]()
        while lacking := self._lacking(plan, constraints):
            constraints = constraints | {name: _not_row_wise(constraints[name]) for name in lacking}
            try:
                plan, why = self._best(constraints)
            except RecdError:  # no plan does without: who checks this one names the tables
                break
            avoided += lacking
        if avoided:
            names = ", ".join(avoided)
            why = f"{why}\nnot row-wise, since a rank would have no row of its kernel: {names}"
        return plan, why

    def _lacking(
        self, plan: ShardingPlan, constraints: Mapping[str, ParameterConstraints]
    ) -> list[str]:
        """The tables that a plan has row-wise in a kernel without a row on some rank, and that may
        be sharded in another way."""
        if ambiguous(self._model):  # a plan's tables are found by their names
            return []
        every, ranks = model_tables(self._model), self._ranks.world_size
        row_wise, in_files = row_wise_tables(plan, every), self._search.in_files
        return [
            name
            for name in without_rows(row_wise, every, ranks, in_files, self._fused)
            if name not in self._made_row_wise
            and {*(constraints[name].sharding_types or ())} - {"row_wise"}
        ]

    def _best(self, constraints: Mapping[str, ParameterConstraints]) -> tuple[ShardingPlan, str]:
        """The best plan by these constraints, with the tables made row-wise that are to be, and
        why."""
        from recd_plugins.planning.torchrec_plan.torchrec_search import make_row_wise

        ranks, row_wise, given = self._ranks, self._made_row_wise, self._search.given
        plan, best = self._search.best(self._model, constraints)
        if not row_wise:
            return plan, best.text()
        make_row_wise(
            plan,
            self._model,
            ranks.sharders,
            row_wise,
            device=ranks.device,
            world_size=ranks.world_size,
            ranks_per_node=ranks.topology.ranks_per_node or ranks.world_size,
        )
        carry_given(plan, {name: given[name] for name in row_wise & given.keys()})
        return plan, f"{best.text()}\nrow-wise in place of this: {', '.join(sorted(row_wise))}"


def _not_row_wise(free: ParameterConstraints) -> ParameterConstraints:
    kinds = [kind for kind in free.sharding_types or () if kind != "row_wise"]
    return dataclasses.replace(free, sharding_types=kinds)


def _seen(
    model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]
) -> Iterator[tuple[Any, ...]]:
    """Tables, their sharders and how they are trained."""
    from recd_plugins.compat.torchrec import own_fused_params

    for path, module, sharder in sharded_modules(model, sharders):
        shares = getattr(module, "unique_shares", None)  # an adapted model's
        yield path, type(module), type(sharder), getattr(sharder, "fused_params", None), shares
        for name, parameter in sharder.shardable_parameters(module).items():
            yield name, tuple(parameter.shape), parameter.dtype, own_fused_params(parameter)
