"""TorchRec's own planner behind the `sharding` slot: the plan of plain TorchRec."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recd_plugins.config import Config, Range
from recd_plugins.notices import GivesNotices, Notice, Unused
from recd_plugins.patterns import fitting
from recd_plugins.planning.cluster.machines import as_launched
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.constraints import TableConstraint
from recd_plugins.planning.planner_bases import (
    RESERVE,
    HoldsRowWise,
    TakesContext,
)
from recd_plugins.planning.tables.embedding_collections import fused_collections
from recd_plugins.planning.together import from_rank_0
from recd_plugins.planning.torchrec_plan.beside_plain import (
    BesidePlain,
    sharding_types,
)
from recd_plugins.planning.torchrec_plan.constrained_search import ConstrainedSearch, PlannedRanks
from recd_plugins.planning.torchrec_plan.plain_search import plain_kinds
from recd_plugins.planning.torchrec_plan.proposed_plan import ProposedPlan

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.slots import Context

__all__ = [
    "TorchRecPlanner",
    "TorchRecPlannerConfig",
    "build_torchrec_planner",
]

ROW_WISE = TableConstraint(sharding_types=("row_wise",), compute_kernels=("fused",))


@dataclass(frozen=True, kw_only=True)
class TorchRecPlannerConfig(Config):
    """Options of TorchRec's planner."""

    constraints: Mapping[str, TableConstraint] = field(default_factory=dict)
    """For a table, by name or glob, what the planner may choose from. Without an entry it chooses
    freely."""
    search: Literal["torchrec", "greedy"] = "torchrec"
    """The plans that are compared: TorchRec's choice, with up to 10,000 plans of a grid
    (`torchrec`), or its greedy ones alone (`greedy`). Take `greedy` if planning must take
    milliseconds instead of seconds."""
    reserve: Annotated[float, Range(ge=0, lt=1)] = RESERVE
    """The share of an accelerator's memory that tables may not take. Raise it if training runs out
    of memory; of a host's memory TorchRec reserves none."""


class TorchRecPlanner(HoldsRowWise, TakesContext, GivesNotices):
    """Plans with `EmbeddingShardingPlanner` and the trainer's sharders."""

    def __init__(
        self,
        config: TorchRecPlannerConfig,
        *,
        device: Literal["cpu", "cuda"],
        batch_size: int,
        sharders: Callable[[], Sequence[ModuleSharder[nn.Module]]],
        row_wise: Mapping[str, TableConstraint] | None = None,
        where: str = "sharding",
        given: Mapping[str, ParameterConstraints] | None = None,
        data_parallel: bool = False,
        in_files: Collection[str] = (),
    ) -> None:
        """Tables in `row_wise` have those constraints, which override the config's (at `where` in
        registry.yaml) and those that the trainer has `given`. `sharders` returns the trainer's own.
        Tables `in_files` take no memory."""
        self._where = where
        self._config = config
        self._row_wise = dict(row_wise or {})
        self._device = device
        self._batch_size = batch_size
        self._sharders = sharders
        self._given = given or {}
        self._data_parallel = data_parallel
        self._in_files = frozenset(in_files)
        self._explanation = "No plan has been made yet."
        self._small: tuple[str, ...] = ()
        """`BesidePlain.small` of the last plan; a copy has those that its original found."""
        self._beside: BesidePlain | None = None
        """The last plan beside plain TorchRec's."""

    def take(self, context: Context) -> None:
        self._batch_size, self._sharders = context.batch_size, context.sharders
        self._given, self._data_parallel = context.constraints, context.data_parallel

    @property
    def reserve(self) -> float:
        return self._config.reserve

    def may_be_row_wise(self, table: str) -> bool:
        """Whether the constraints leave a table row-wise plans with the fused kernel."""
        constraints = self._config.constraints
        fits: list[Any] = [constraints[pattern] for pattern in fitting(table, constraints)]
        fits += [self._given[table]] if table in self._given else []
        if not fits:
            return True
        kinds, kernels = fits[-1].sharding_types, fits[-1].compute_kernels
        return "row_wise" in (kinds or ("row_wise",)) and "fused" in (kernels or ("fused",))

    def row_wise(
        self, tables: Iterable[str], kernels: Mapping[str, TableConstraint] | None = None
    ) -> TorchRecPlanner:
        """A copy that keeps these tables row-wise, fused unless `kernels` says otherwise, and plans
        the others."""
        held = dict.fromkeys(tables, ROW_WISE) | dict(kernels or {})
        return self._like(held, self._in_files)

    def in_files(self, tables: Collection[str]) -> TorchRecPlanner:
        """A copy that counts no memory for these tables, except for what a step exchanges."""
        return self._like(self._row_wise, tables)

    def _like(
        self, row_wise: Mapping[str, TableConstraint], in_files: Collection[str]
    ) -> TorchRecPlanner:
        found = TorchRecPlanner(
            self._config,
            device=self._device,
            batch_size=self._batch_size,
            sharders=self._sharders,
            row_wise=row_wise,
            where=self._where,
            given=self._given,
            data_parallel=self._data_parallel,
            in_files=in_files,
        )
        found._small = self._small
        return found

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The trainer's own: a plan of TorchRec's needs no others."""
        return list(self._sharders())

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        """Rank 0's proposal, on every rank; or its error, for which the others wait as well."""
        found = from_rank_0(group, lambda: self.propose(model, topology, group.size()))
        if group.rank() != 0:
            self._explanation = "Planned on rank 0, which knows why."
        return found

    def propose(self, model: nn.Module, topology: Topology, world_size: int) -> ShardingPlan:
        """The plan for a number of ranks: a function of its arguments, of the config and the
        constraints, and of the launcher's nodes."""
        from recd_plugins.planning.torchrec_plan.torchrec_search import copied, torchrec_topology

        topology = as_launched(topology, world_size)
        device = topology.device or self._device
        search = ConstrainedSearch(
            ranks=PlannedRanks(
                topology=topology,
                world_size=world_size,
                device=device,
                on=torchrec_topology(topology, world_size, device),
                sharders=self.sharders(),
            ),
            batch_size=self._batch_size,
            where=self._where,
            constraints=self._config.constraints,
            given=self._given,
            method=self._config.search,
            reserve=self._config.reserve,
            in_files=self._in_files,
        )
        proposed = ProposedPlan(search, model, self._row_wise, data_parallel=self._data_parallel)
        if not self._row_wise:
            self._small = proposed.smaller_than_a_batch()
        plan, self._explanation = proposed.made()
        kinds = sharding_types(plan)
        self._beside = BesidePlain(
            where=self._where,
            batch_size=self._batch_size,
            kinds=kinds,
            plain=plain_kinds(search, model, proposed, kinds),
            named=proposed.named,
            either_way=frozenset(
                config.name for _, configs in fused_collections(model) for config in configs
            ),
            in_tiers=frozenset(self._row_wise),
            small=self._small,
        )
        return copied(plan)

    def explain(self) -> str:
        return self._explanation

    def notices(self) -> Sequence[Notice]:
        """Notices of options that do nothing here, and of tables that plain TorchRec would train
        otherwise."""
        beside = [] if self._beside is None else self._beside.notices()
        return [*beside, *self._idle_here()]

    def _idle_here(self) -> Iterator[Notice]:
        """Notices of options that are for memory of an accelerator, where tables train on a CPU."""
        if self._device != "cpu":
            return
        config = self._config
        idle = dict.fromkeys(config.set_among("reserve"), "the share of an accelerator's memory")
        for table, constraint in config.constraints.items():
            for name in constraint.set_among("load_factor", "cache_algorithm"):
                if not {*constraint.idle_options()} & {name}:
                    idle[f"constraints.{table}.{name}"] = "the kernel fused_uvm_caching, of CUDA"
        for option, what in idle.items():
            yield Unused(
                what=f"{self._where}: {option}",
                why=f"it is for {what}, and this job trains on the CPU",
                cure=f"Take {option} out, or train on CUDA.",
            )


def build_torchrec_planner(config: TorchRecPlannerConfig, context: Any) -> TorchRecPlanner:
    """The record's build; `context` is a `slots.Context`."""
    return TorchRecPlanner(
        config,
        device=context.device,
        batch_size=context.batch_size,
        sharders=context.sharders,
        where=context.where or "sharding",
        given=context.constraints,
        data_parallel=context.data_parallel,
    )
