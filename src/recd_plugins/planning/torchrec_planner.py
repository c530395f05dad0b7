"""TorchRec's own planner behind the `sharding` slot: the plan of plain TorchRec."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal
from weakref import ref

from recd_plugins.config import Config, Range
from recd_plugins.errors import CapabilityError, RecdError, RegistryError, so_many
from recd_plugins.notices import GivesNotices, Notice, Unused
from recd_plugins.patterns import fitting
from recd_plugins.planning.beside_plain import (
    DATA_PARALLEL,
    UNSAID_BATCH,
    BesidePlain,
    sharding_types,
)
from recd_plugins.planning.constraints import TableConstraint, parameter_constraints
from recd_plugins.planning.embedding_collections import fused_collections
from recd_plugins.planning.given_constraints import carry_given, check_offered, with_given
from recd_plugins.planning.kernels_without_rows import row_wise_tables, without_rows
from recd_plugins.planning.machines import as_launched, finds_these_nodes
from recd_plugins.planning.model_tables import ambiguous, model_tables
from recd_plugins.planning.planner_bases import (
    RESERVE,
    HoldsRowWise,
    TakesContext,
)
from recd_plugins.planning.remembered import remembered
from recd_plugins.planning.sharders import fused_by_table, sharded_modules
from recd_plugins.planning.together import from_rank_0
from recd_plugins.planning.topology import GB, Topology

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.planning.torchrec_search import BestOptions
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


@dataclass(frozen=True, kw_only=True)
class _Ranks:
    """The ranks that a plan is for, which need not be here."""

    topology: Topology
    """With nodes, if need be the launcher's."""
    world_size: int
    device: Literal["cpu", "cuda"]
    on: Any
    """The same as TorchRec's own `Topology`."""
    sharders: Sequence[ModuleSharder[nn.Module]]
    """The trainer's own."""


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
        from recd_plugins.planning.torchrec_search import (
            copied,
            offers_row_wise,
            torchrec_topology,
        )

        topology = as_launched(topology, world_size)
        device = topology.device or self._device
        ranks = _Ranks(
            topology=topology,
            world_size=world_size,
            device=device,
            on=torchrec_topology(topology, world_size, device),
            sharders=self.sharders(),
        )
        offered = self._row_wise.keys() & offers_row_wise(model, ranks.sharders, device)
        held = {name: self._row_wise[name] for name in sorted(offered)}
        others = self._row_wise.keys() - offered
        fused = fused_by_table(model, ranks.sharders) if self._data_parallel else {}
        # The dense optimizer may step the tables for which no other one is named.
        unnamed = [name for name, own in fused.items() if not own]
        constraints = self._constraints_beside(held, others, model, ranks, unnamed)
        if not self._row_wise:
            self._small = self._smaller_than_a_batch(model, ranks, constraints, unnamed)
        seen = [*_seen_of(model, ranks.sharders)]
        asked = (
            self._config,
            sorted(self._row_wise.items()),
            held,
            sorted(others),
            sorted(self._in_files),
            *(ranks.on, topology, device, world_size, self._batch_size),
            sorted(constraints.items()),
            *seen,
        )
        # A search takes seconds for a hundred tables.
        plan, self._explanation = remembered(
            repr(asked), lambda: self._planned(model, ranks, constraints, others)
        )
        kinds, named = sharding_types(plan), frozenset(fused.keys() - set(unnamed))
        self._beside = BesidePlain(
            where=self._where,
            batch_size=self._batch_size,
            kinds=kinds,
            plain=self._plain_kinds(model, ranks, fused, kinds, named, seen),
            named=named,
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

    def _constraints_beside(
        self,
        held: Mapping[str, TableConstraint],
        others: Collection[str],
        model: nn.Module,
        ranks: _Ranks,
        unnamed: Collection[str],
    ) -> dict[str, ParameterConstraints]:
        """The constraints of each table, where some are `held` row-wise by TorchRec's planner, and
        `others` are made row-wise once it has planned."""
        wanted = {
            **{name: one for name, one in self._config.constraints.items() if name not in held},
            **held,  # these come last: the last pattern that fits counts
        }
        constraints = self._constrained(model, ranks, wanted, held, unnamed)
        for name in constraints.keys() & others:
            # These leave their place, so they must not count when others are balanced.
            inputs = constraints[name].pooling_factors
            constraints[name].batch_sizes = [1] * len(inputs)
        return constraints

    def _constrained(
        self,
        model: nn.Module,
        ranks: _Ranks,
        wanted: Mapping[str, TableConstraint],
        held: Collection[str],
        data_parallel: Collection[str],
        batch_size: int | None = None,
    ) -> dict[str, ParameterConstraints]:
        """The constraints of each table: the `wanted` ones, overridden by the trainer's unless the
        table is `held`. The tables that may be data-parallel are those named in `data_parallel`."""
        dense = [
            name for name, one in self._given.items() if "dense" in (one.compute_kernels or ())
        ]
        found = parameter_constraints(
            model,
            wanted,
            ranks.sharders,
            ranks.device,
            batch_size or self._batch_size,
            f"{self._where}.constraints",
            within_nodes=finds_these_nodes(ranks.topology, ranks.world_size),
            data_parallel={*data_parallel, *dense},
        )
        self._check_not_twice(found)
        given = with_given(found, self._given, held)
        free = given.keys() - set(held)
        check_offered(given, free, model, ranks.sharders, ranks.device)
        return found | given

    def _check_not_twice(self, tables: Iterable[str]) -> None:
        """`RegistryError` where registry.yaml and the trainer both constrain a table."""
        both = [name for name in tables if name in self._given]
        if both := [name for name in both if fitting(name, self._config.constraints)]:
            raise RegistryError(
                f"is for table {both[0]!r}, which the constraints that stack.plan was given are "
                "for too. Set it in one place, there or here.",
                f"{self._where}.constraints",
            )

    def _smaller_than_a_batch(
        self,
        model: nn.Module,
        ranks: _Ranks,
        constraints: Mapping[str, ParameterConstraints],
        unnamed: Iterable[str],
    ) -> tuple[str, ...]:
        """The unnamed tables with no more rows than a batch has samples, or may have, if TorchRec
        may make them data-parallel."""
        rows = {
            name: len(parameter)
            for _, module, sharder in sharded_modules(model, ranks.sharders)
            for name, parameter in sharder.shardable_parameters(module).items()
        }
        return tuple(
            name
            for name in unnamed
            if DATA_PARALLEL in (constraints[name].sharding_types or ())
            and "dense" in (constraints[name].compute_kernels or ("dense",))
            and rows[name] <= max(self._batch_size, UNSAID_BATCH)
        )

    def _planned(
        self,
        model: nn.Module,
        ranks: _Ranks,
        constraints: Mapping[str, ParameterConstraints],
        others: set[str],
    ) -> tuple[ShardingPlan, str]:
        """The best plan, and why it is what it is. `others` are row-wise in it, though TorchRec
        offers no such plan of them. Without need no table is row-wise whose kernel would have no
        row on some rank, which TorchRec does not ask."""
        found, avoided = self._best(model, ranks, constraints, others), list[str]()
        while lacking := self._lacking(found[0], model, ranks, constraints, others):
            constraints = dict(constraints) | {
                name: _not_row_wise(constraints[name]) for name in lacking
            }
            try:
                found = self._best(model, ranks, constraints, others)
            except RecdError:  # no plan does without: who checks this one names the tables
                break
            avoided += lacking
        plan, why = found
        if avoided:
            names = ", ".join(avoided)
            why = f"{why}\nnot row-wise, since a rank would have no row of its kernel: {names}"
        return plan, why

    def _lacking(
        self,
        plan: ShardingPlan,
        model: nn.Module,
        ranks: _Ranks,
        constraints: Mapping[str, ParameterConstraints],
        others: Collection[str],
    ) -> list[str]:
        """The tables that a plan has row-wise in a kernel without a row on some rank, and that may
        be sharded in another way."""
        if ambiguous(model):  # a plan's tables are found by their names
            return []
        every, fused = model_tables(model), fused_by_table(model, ranks.sharders)
        row_wise = row_wise_tables(plan, every)
        lacking = without_rows(row_wise, every, ranks.world_size, self._in_files, fused)
        return [
            name
            for name in lacking
            if name not in others and {*(constraints[name].sharding_types or ())} - {"row_wise"}
        ]

    def _best(
        self,
        model: nn.Module,
        ranks: _Ranks,
        constraints: Mapping[str, ParameterConstraints],
        others: set[str],
    ) -> tuple[ShardingPlan, str]:
        """The best plan by these constraints, with `others` row-wise, and why it is what it is."""
        from recd_plugins.planning.torchrec_search import make_row_wise

        plan, best = self._searched(model, ranks, constraints)
        if not others:
            return plan, best.text()
        make_row_wise(
            plan,
            model,
            ranks.sharders,
            others,
            device=ranks.device,
            world_size=ranks.world_size,
            ranks_per_node=ranks.topology.ranks_per_node or ranks.world_size,
        )
        carry_given(plan, {name: self._given[name] for name in others & self._given.keys()})
        return plan, f"{best.text()}\nrow-wise in place of this: {', '.join(sorted(others))}"

    def _searched(
        self,
        model: nn.Module,
        ranks: _Ranks,
        constraints: Mapping[str, ParameterConstraints],
        batch_size: int | None = None,
    ) -> tuple[ShardingPlan, BestOptions]:
        """The best plan of TorchRec's planner, and the options that it is of."""
        from torchrec.distributed.planner.types import PlannerError

        from recd_plugins.planning.torchrec_search import best_plan

        try:
            return best_plan(
                model,
                ranks.sharders,
                ranks.on,
                constraints,
                batch_size=batch_size or self._batch_size,
                search=self._config.search,
                reserve=self._config.reserve,
                in_files=self._in_files,
            )
        except PlannerError as error:
            raise self._refused(error, ranks.on, model) from error

    def _refused(self, error: PlannerError, on: Any, model: nn.Module) -> RecdError:
        """Why there is no plan, in the registry's words."""
        from torchrec.distributed.planner.types import PlannerErrorType

        answer = f"TorchRec's planner says: {str(error).splitlines()[0].strip()}"
        if error.error_type is not PlannerErrorType.INSUFFICIENT_STORAGE:
            return RegistryError(
                f"sharding: no plan keeps what `{self._where}.constraints` and `topology` ask for. "
                f"Make them less strict. {answer}"
            )
        needed = sum(
            parameter.numel() * parameter.element_size()
            for _, module, sharder in sharded_modules(model, self.sharders())
            for name, parameter in sharder.shardable_parameters(module).items()
            if name not in self._in_files
        )
        memory = on.devices[0].storage
        where, has = ("device", memory.hbm) if on.compute_device == "cuda" else ("host", memory.ddr)
        mapped = (
            "Or have the tables that are looked up least lie in mapped files, as `sharding: {use: "
            "flexshard, goal: auto}` does."
        )
        return CapabilityError(
            f"sharding: tables of {needed / GB:.3g} GB, with optimizer states and batches on top, "
            f"do not fit on {so_many(on.world_size, 'rank')} of {has / GB:.3g} GB {where} memory. "
            f"Set topology.{where}_memory_gb to what a rank has, train on more ranks, lower "
            f"train.batch_size, or make the tables smaller. {answer}",
            mapped if on.compute_device == "cpu" and not self._in_files else "",
        )

    def _plain_kinds(
        self,
        model: nn.Module,
        ranks: _Ranks,
        fused: Mapping[str, Mapping[str, Any]],
        kinds: Mapping[str, str],
        named: frozenset[str],
        seen: Sequence[Any],
    ) -> Callable[[], Mapping[str, str]]:
        """A function that finds the sharding types of the tables that plain TorchRec might place
        otherwise than the last plan. It does not keep the model alive.

        For tables whose optimizer is named, it also finds what TorchRec would have on every rank by
        the batch size that its planner assumes by default.
        """
        from recd_plugins.planning.torchrec_search import torchrec_topology

        # A trainer's own planner knows no rates of links. Where none are stated here either, only
        # tables whose optimizer is named can differ.
        plainly = dataclasses.replace(
            ranks.topology, ranks_per_node=None, intra_node_gbps=None, inter_node_gbps=None
        )
        plainly = as_launched(plainly, ranks.world_size)
        by_default = torchrec_topology(plainly, ranks.world_size, ranks.device)
        as_plain = dataclasses.replace(ranks, on=by_default)
        asked = named if repr(by_default) == repr(ranks.on) else frozenset(fused)
        if not asked:
            return dict
        planned_for, batch_size = ref(model), self._batch_size

        @cache
        def plain() -> Mapping[str, str]:
            if (here := planned_for()) is None:
                return {}
            found = dict(searched(here, batch_size))
            if batch_size != UNSAID_BATCH and named & found.keys():
                unsaid = searched(here, UNSAID_BATCH)
                every = (name for name, kind in unsaid.items() if kind == DATA_PARALLEL)
                found |= dict.fromkeys(named.intersection(every), DATA_PARALLEL)
            return found

        def searched(here: nn.Module, size: int) -> Mapping[str, str]:
            free = self._constrained(here, ranks, self._config.constraints, (), fused, size)
            undecided = {name for name in asked if _may_differ(free[name], kinds.get(name))}
            if not undecided:
                return {}

            def kinds_of_best() -> Mapping[str, str]:
                try:
                    return sharding_types(self._searched(here, as_plain, free, size)[0])
                except RecdError:  # copies on all ranks may take more memory than there is
                    return {}

            wanted = (by_default, ranks.world_size, size, sorted(free.items()), *seen)
            kept_in = sorted(self._in_files)
            found = remembered(repr(("plain", self._config, kept_in, *wanted)), kinds_of_best)
            return {name: kind for name, kind in found.items() if name in undecided}

        return plain

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


def _not_row_wise(free: ParameterConstraints) -> ParameterConstraints:
    kinds = [kind for kind in free.sharding_types or () if kind != "row_wise"]
    return dataclasses.replace(free, sharding_types=kinds)


def _may_differ(free: ParameterConstraints, kind: str | None) -> bool:
    """Whether a plan with these `free` constraints may differ from one of this kind in having the
    table on every rank."""
    return any(
        (one == DATA_PARALLEL) != (kind == DATA_PARALLEL)
        for one in free.sharding_types or (DATA_PARALLEL,)
    )


def _seen_of(
    model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]
) -> Iterator[tuple[Any, ...]]:
    """The model as TorchRec's planner sees it: its tables, their sharders and how they are
    trained."""
    from recd_plugins.compat.torchrec import own_fused_params

    for path, module, sharder in sharded_modules(model, sharders):
        shares = getattr(module, "unique_shares", None)  # an adapted model's
        yield path, type(module), type(sharder), getattr(sharder, "fused_params", None), shares
        for name, parameter in sharder.shardable_parameters(module).items():
            yield name, tuple(parameter.shape), parameter.dtype, own_fused_params(parameter)


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
