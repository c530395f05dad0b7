"""A search of TorchRec for ranks, by the constraints of registry.yaml and of the trainer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.errors import CapabilityError, RecdError, RegistryError, so_many
from recd_plugins.patterns import fitting
from recd_plugins.planning.cluster.machines import finds_these_nodes
from recd_plugins.planning.cluster.topology import GB, Topology
from recd_plugins.planning.constraints import TableConstraint, parameter_constraints
from recd_plugins.planning.sharders import sharded_modules
from recd_plugins.planning.torchrec_plan.given_constraints import check_offered, with_given

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.planning.torchrec_plan.torchrec_search import BestOptions

__all__ = ["ConstrainedSearch", "PlannedRanks"]


@dataclass(frozen=True, kw_only=True)
class PlannedRanks:
    """The ranks that a plan is for, which need not be here."""

    topology: Topology
    """With nodes, if need be the launcher's."""
    world_size: int
    device: Literal["cpu", "cuda"]
    on: Any
    """The same as TorchRec's own `Topology`."""
    sharders: Sequence[ModuleSharder[nn.Module]]
    """The trainer's own."""


@dataclass(frozen=True, kw_only=True)
class ConstrainedSearch:
    """What a search goes by, whatever the model: so it keeps none alive."""

    ranks: PlannedRanks
    batch_size: int
    where: str
    """The slot in registry.yaml whose options these are."""
    constraints: Mapping[str, TableConstraint]
    """Those of registry.yaml, by a table's name or glob."""
    given: Mapping[str, ParameterConstraints]
    """Those of the trainer."""
    method: Literal["torchrec", "greedy"]
    reserve: float
    in_files: frozenset[str]
    """Tables that take no memory."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What a plan depends on, beside the model and the constraints of its tables."""
        ranks = self.ranks
        where = (ranks.on, ranks.topology, ranks.device, ranks.world_size)
        options = (sorted(self.constraints.items()), self.method, self.reserve)
        return (*where, *options, self.batch_size, sorted(self.in_files))

    def best(
        self, model: nn.Module, constraints: Mapping[str, ParameterConstraints]
    ) -> tuple[ShardingPlan, BestOptions]:
        """The best plan of TorchRec's planner, and the options that it is of."""
        from torchrec.distributed.planner.types import PlannerError

        from recd_plugins.planning.torchrec_plan.torchrec_search import best_plan

        try:
            return best_plan(
                model,
                self.ranks.sharders,
                self.ranks.on,
                constraints,
                batch_size=self.batch_size,
                search=self.method,
                reserve=self.reserve,
                in_files=self.in_files,
            )
        except PlannerError as error:
            raise self._refused(error, model) from error

    def constraints_of(
        self,
        model: nn.Module,
        *,
        may_be_dense: Collection[str],
        held: Mapping[str, TableConstraint] | None = None,
    ) -> dict[str, ParameterConstraints]:
        """The constraints of each table: those of registry.yaml, overridden by the trainer's, and
        these by those `held`. Tables that `may_be_dense` may be data-parallel: the dense optimizer
        then steps them."""
        held, ranks = held or {}, self.ranks
        wanted = {
            **{name: one for name, one in self.constraints.items() if name not in held},
            **held,  # these come last: the last pattern that fits counts
        }
        dense = [name for name, one in self.given.items() if "dense" in (one.compute_kernels or ())]
        found = parameter_constraints(
            model,
            wanted,
            ranks.sharders,
            ranks.device,
            self.batch_size,
            f"{self.where}.constraints",
            within_nodes=finds_these_nodes(ranks.topology, ranks.world_size),
            may_be_dense={*may_be_dense, *dense},
        )
        self._check_not_twice(found)
        given = with_given(found, self.given, held)
        check_offered(given, given.keys() - held.keys(), model, ranks.sharders, ranks.device)
        return found | given

    def _check_not_twice(self, tables: Iterable[str]) -> None:
        """`RegistryError` where registry.yaml and the trainer both constrain a table."""
        both = [name for name in tables if name in self.given]
        if both := [name for name in both if fitting(name, self.constraints)]:
            raise RegistryError(
                f"is for table {both[0]!r}, which the constraints that stack.plan was given are "
                "for too. Set it in one place, there or here.",
                f"{self.where}.constraints",
            )

    def _refused(self, error: PlannerError, model: nn.Module) -> RecdError:
        """Why there is no plan, in the registry's words."""
        from torchrec.distributed.planner.types import PlannerErrorType

        answer = f"TorchRec's planner says: {str(error).splitlines()[0].strip()}"
        if error.error_type is not PlannerErrorType.INSUFFICIENT_STORAGE:
            return RegistryError(
                f"sharding: no plan keeps what `{self.where}.constraints` and `topology` ask for. "
                f"Make them less strict. {answer}"
            )
        needed = sum(
            parameter.numel() * parameter.element_size()
            for _, module, sharder in sharded_modules(model, self.ranks.sharders)
            for name, parameter in sharder.shardable_parameters(module).items()
            if name not in self.in_files
        )
        on = self.ranks.on
        memory = on.devices[0].storage
        where, has = ("device", memory.hbm) if on.compute_device == "cuda" else ("host", memory.ddr)
        mapped = (
            "Or have the tables that are looked up least lie in mapped files, as `sharding: {use: "
            "flexshard, goal: auto}` does."
        )
        what = f"tables of {needed / GB:.3g} GB, with optimizer states and batches on top,"
        smaller = "train on more ranks, lower train.batch_size, or make the tables smaller"
        if not needed:
            what = "batches, beside tables that all lie in mapped files,"
            smaller = "train on more ranks, or lower train.batch_size"
        return CapabilityError(
            f"sharding: {what} do not fit on {so_many(on.world_size, 'rank')} of {has / GB:.3g} GB "
            f"{where} memory. Set topology.{where}_memory_gb to what a rank has, {smaller}. "
            f"{answer}",
            mapped if on.compute_device == "cpu" and not self.in_files else "",
        )
