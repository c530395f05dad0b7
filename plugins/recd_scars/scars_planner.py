"""The `cache: scars` planner: hot rows on every rank, in front of what another planner plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recd_plugins.api import (
    Context,
    Notice,
    RegistryError,
    Topology,
    Unused,
)
from recd_plugins.api.planning import (
    ChosenSizes,
    Cluster,
    Integers,
    MergedRows,
    ModelTable,
    OrdersBatches,
    Profile,
    ProfiledTable,
    RowDistribution,
    TableConstraint,
    TablePlan,
    TableSizes,
    TierPlan,
    TierPlanner,
    model_tables,
    profile_batches,
    remembered,
    tier_plan,
)
from recd_scars.cached_rows import cached_rows, sample_bytes
from recd_scars.config import ScarsConfig
from recd_scars.device_memory import DeviceMemory
from recd_scars.home import check_home, seen_from
from recd_scars.hot_notices import HotNotices
from recd_scars.uvm.serving_kernels import ServingKernels

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.api.batch import Batch, OwnBatches

__all__ = ["ScarsPlanner", "build_scars", "memory_of_hot_rows"]

FROM_BYTES = 1 << 26
"""A plan mentions the memory for finding hot samples from so many bytes on."""


class ScarsPlanner(TierPlanner, OrdersBatches):
    """Plans all tables row-wise and coalesced, with the hottest rows of all of them on every
    rank; or as the sharding slot's planner of replicas plans them.

    Hot batches, and where tables are at home, are its own in both cases.
    """

    name = "scars"
    slot = "cache"

    def __init__(
        self, config: ScarsConfig, context: Context, policy: TierPlanner | None = None
    ) -> None:
        """A `policy` decides which tables have how many replicas of which rows, instead of
        SCARS."""
        self._policy = policy
        if policy is None:
            super().__init__(
                context, profile=config.profile, profile_batches=config.profile_batches
            )
        else:
            super().__init__(
                context,
                profile=policy.profile_path,
                profile_batches=policy.num_profile_batches,
                plan=policy.plan_path,
                others=policy.others,
            )
        self._config = config
        self._model_tables: Mapping[str, ModelTable] = {}
        """All tables of the model that was planned last."""
        self._apart: frozenset[str] = frozenset()
        """Those of these tables that a rank looks up by itself beside the tiers, in hot steps
        too."""
        self.group: ProcessGroup | None = None
        """The ranks that the last plan is for."""
        self._cluster: Cluster | None = None
        self._memory: DeviceMemory | None = None
        """The cluster and the memory that it was planned for, on rank 0."""
        more_rows = "`sharding.budget_gb`" if policy else "`size: budget`, `budget_gb`"
        self._hot = HotNotices(config, more_rows=more_rows)
        self.served: ServingKernels | None = None
        """How the last plan's tables are served from host memory, on rank 0."""

    def tables(self, model: nn.Module) -> Mapping[str, ModelTable]:
        if self._policy is not None:
            return self._policy.tables(model)
        return model_tables(model, self._config.tables, where="cache.tables")

    def no_tables(self, every: Mapping[str, ModelTable]) -> Unused:
        return super().no_tables(every) if self._policy is None else self._policy.no_tables(every)

    def choose(
        self,
        model: nn.Module,
        tables: Mapping[str, ProfiledTable],
        topology: Topology,
        world_size: int,
    ) -> ChosenSizes:
        self._cluster = Cluster.of(topology, world_size)
        self._memory = DeviceMemory.of(
            model,
            topology,
            world_size,
            device=self.context.device,
            memory_gb=self._config.memory_gb,
            reserve=self.others.reserve,
            fused=None if self._config.home == "mapped" else self.fused,
            hosted=tables if self._config.home == "host" else (),
        )
        if self._policy is None:
            chosen = self._cached(tables, self._cluster, self._memory)
        else:
            chosen = self._as_policy_chooses(self._policy, model, tables, topology, world_size)
        if self._config.hot_batches and (line := memory_of_hot_rows(tables, chosen.sizes)):
            chosen = dataclasses.replace(chosen, reason=f"{chosen.reason}\n{line}")
        return self._from_host(chosen, tables, topology) if self._config.home == "host" else chosen

    def _as_policy_chooses(
        self,
        policy: TierPlanner,
        model: nn.Module,
        tables: Mapping[str, ProfiledTable],
        topology: Topology,
        world_size: int,
    ) -> ChosenSizes:
        """The plan that the sharding slot's planner makes of the tables."""
        policy.fused, policy.carried = self.fused, self.carried
        chosen = policy.choose(model, tables, topology, world_size)
        config = self._config
        return dataclasses.replace(
            chosen,
            reason=f"scars: size plan, as sharding: {policy.name} has it\n{chosen.reason}",
            forced=chosen.forced or config.force or config.home != "memory",
        )

    def _cached(
        self, tables: Mapping[str, ProfiledTable], cluster: Cluster, memory: DeviceMemory
    ) -> ChosenSizes:
        """The number of rows of each that are cached, and why."""
        prices = self.prices(tables, cluster)
        # `recd advise` asks again for registries that differ in other things.
        asked = ScarsPlanner, *tables.items(), prices, memory, repr(self._config)
        return remembered(asked, lambda: cached_rows(self._config, tables, prices, memory))

    def _from_host(
        self, chosen: ChosenSizes, tables: Mapping[str, ProfiledTable], topology: Topology
    ) -> ChosenSizes:
        """The choice, and why each table has the kernel by which it is served from host memory."""
        assert self._memory is not None
        self.served = ServingKernels.of(
            chosen.report.ledger,
            self.found,
            capacity=self._memory.capacity,
            sample_bytes=sample_bytes(self._config, MergedRows.of(tables))[0],
            fused=self.fused,
            algorithm=self._config.cache_algorithm or "lru",
            host_memory_gb=topology.host_memory_gb,
        )
        return dataclasses.replace(chosen, reason=f"{chosen.reason}\n{self.served.reason}")

    def hottest_rows(self, table: str, rows: RowDistribution, count: int) -> Integers:
        if self._policy is not None:
            return self._policy.hottest_rows(table, rows, count)
        return super().hottest_rows(table, rows, count)

    @property
    def options_in(self) -> str:
        return self.slot if self._policy is None else self._policy.options_in

    @property
    def asked_by(self) -> tuple[str, ...]:
        return (self.slot,) if self._policy is None else (self.slot, *self._policy.asked_by)

    @property
    def chooses_homes(self) -> bool:
        """As the sharding slot's planner says, if the tables are at home in memory."""
        chooses = self._policy is not None and self._policy.chooses_homes
        return chooses and self.homes_by_table

    @property
    def homes_by_table(self) -> bool:
        return self._config.home == "memory"

    @property
    def all_mapped(self) -> bool:
        return self._config.home == "mapped"

    def home(self, topology: Topology) -> Topology:
        return seen_from(self._config.home, topology)

    def kernels(self) -> Mapping[str, TableConstraint]:
        return self.served.kernels if self.served else {}

    @property
    def mapped_folder(self) -> Path:
        return self._config.mapped_folder or super().mapped_folder

    def profiled(self) -> Profile:
        """The profile; one without lookups, where re-tiering is to learn them."""
        given = self.profile_path is not None or self.context.profile is not None
        if given or self.num_profile_batches != 0 or self._policy is not None:
            return super().profiled()
        ids = np.empty(0, np.int64)
        found = self.found.items()
        return Profile(
            rows={name: RowDistribution.of([t.num_rows], [0.0], ids=ids) for name, t in found}
        )

    def take(self, context: Context) -> None:
        super().take(context)
        if self._policy is not None:
            self._policy.take(context)

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        check_home(self._config.home, self.context.device)
        self._model_tables, self.group = model_tables(model), group
        self._hot.begin()
        plan = super().plan(model, topology, group)
        self._apart = self._looked_up_apart(plan)
        return plan

    def propose(self, model: nn.Module, topology: Topology, world_size: int) -> ShardingPlan:
        check_home(self._config.home, topology.device or self.context.device)
        self.served, self._model_tables, self._apart = None, model_tables(model), frozenset()
        self._hot.look_at_first(self.context)
        plan = super().propose(model, topology, world_size)
        self._apart = self._looked_up_apart(plan)
        return plan

    def _looked_up_apart(self, plan: ShardingPlan) -> frozenset[str]:
        """The data-parallel tables of a collection whose planned ones are all pooled and coalesced:
        then they are in a module apart, which sends nothing, and no hot step skips it."""
        planned = self._table_plans
        in_one = {
            self._model_tables[name].module
            for name, one in planned.items()
            if one.coalesce == "none" or not self._model_tables[name].pooled
        }
        found = set()
        for path in plan.plan.keys() - in_one:
            tables: Any = plan.plan[path]
            for name in tables.keys() & self._model_tables.keys() - planned.keys():
                if tables[name].sharding_type == "data_parallel":
                    found.add(name)
        return frozenset(found)

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The sharders of the tiers, with all tables in mapped files if that is their home."""
        sharders = super().sharders()
        return self.in_mapped_files(sharders) if self.all_mapped else sharders

    @property
    def begins_empty(self) -> bool:
        planned = self.tier_plan is not None and self._policy is None
        # Only rank 0 has a profile, and gives notices.
        return planned and self.profile is not None and not self._has_counted

    def hotter(self, batches: Iterable[Batch]) -> TierPlan:
        """The first time, if nothing was counted, the plan has as many rows as these batches ask
        for, of the tables that were sharded for that."""
        if self._policy is not None or self._has_counted:
            return super().hotter(batches)
        assert self.tier_plan is not None  # `retier` asked for a plan
        assert self._cluster is not None
        assert self._memory is not None
        found = {name: self.found[name] for name in self.tier_plan.tables}
        counted = {name: table.counted for name, table in found.items()}
        self.profile = profile_batches(batches, counted, features=self.context.features)
        tables = {name: table.with_rows(self.profile[name]) for name, table in found.items()}
        chosen = self._cached(tables, self._cluster, self._memory)
        self.report, self.explanation = chosen.report, chosen.reason
        return tier_plan(tables, chosen.sizes, self._cluster, self.hottest_rows)

    @property
    def _has_counted(self) -> bool:
        """Whether any lookup is in the profile of the last plan."""
        assert self.profile is not None  # without one a plan is saved, and so a policy's
        return any(rows.lookups for rows in self.profile.rows.values())

    def order(self, loader: Any, rank: int, world_size: int, own: OwnBatches | None = None) -> Any:
        """Hot and normal batches of the same samples."""
        if not self._config.hot_batches:
            return loader
        from recd_scars.hot_batches import HotBatches, HotBatchesWithoutState

        kind = HotBatches if hasattr(loader, "state_dict") else HotBatchesWithoutState
        ordered = kind(
            loader,
            self,
            rank=rank,
            world_size=world_size,
            window=self._config.window,
            own=own,
        )
        self._hot.yielded.append(ordered.yielded)
        return ordered

    def hot_to_come(self, batches: Sequence[Batch], world_size: int) -> float | None:
        if self.tier_plan is None or not batches or not self._config.hot_batches:
            return None
        from recd_scars.hot_batches.batch_window import hot_counts, share_to_come
        from recd_scars.hot_batches.hot_rows import HotRows

        hot = hot_counts(batches, HotRows(self.tier_plan, self.features_of))
        return share_to_come(hot, list(map(len, batches)), self._config.window, world_size)

    @property
    def features_of(self) -> Mapping[str, Sequence[str]]:
        """The features of each table in collections that have tiers, tables left out among them."""
        modules = {self._model_tables[name].module for name in self._table_plans}
        return {
            name: table.features
            for name, table in self._model_tables.items()
            if table.module in modules and name not in self._apart
        }

    def notices(self) -> Sequence[Notice]:
        found = list(super().notices())
        if self.served is not None:  # without a replica too, it has chosen the tables' kernels
            found = [one for one in found if one.what != f"{self.slot}: {self.name}"]
        plans = self._table_plans
        # Where nothing is planned, a notice of the policy alone may say so.
        named = any(one.what.startswith(f"{self.slot}: ") for one in found)
        sized = (plans or not named) and self.num_profile_batches != 0
        return [
            *found,
            *self._hot.without_copies(plans, sized=bool(sized)),
            *self._hot.left_to_others(plans, self.features_of),
            *self._hot.cannot_be_marked(plans),
            *self._adds_nothing(),
        ]

    def _adds_nothing(self) -> Iterator[Notice]:
        """A notice of a cache that adds nothing to the policy's plan."""
        config = self._config
        own = config.hot_batches or config.force or config.home != "memory"
        if self._policy is not None and not own:
            yield Unused(
                what="cache: scars",
                why="with `size: plan` rows, tiers and coalescing are those of "
                f"`sharding: {self._policy.name}`, and the only things that `cache` could add, hot "
                "batches, a home of tables and `force`, are not set",
                cure="Take `cache` out, or set `cache.hot_batches: true`.",
            )

    def unordered(self) -> Iterable[Notice]:
        return self._hot.unordered(self._table_plans)

    def ordered_in_vain(self, trained: int) -> Iterable[Notice] | None:
        return self._hot.in_vain(self._table_plans, self.never_hot, trained)

    @property
    def _table_plans(self) -> Mapping[str, TablePlan]:
        """The tables with tiers in the last plan."""
        return self.tier_plan.tables if self.tier_plan else {}


def memory_of_hot_rows(tables: Mapping[str, ProfiledTable], sizes: Mapping[str, TableSizes]) -> str:
    """The line of a plan on the memory in which hot samples are found; "" where that is little."""
    if sum(table.rows.num_rows for table in tables.values()) < 8 * FROM_BYTES:
        return ""
    from recd_scars.hot_batches.hot_rows import most_bytes

    taken = sum(
        most_bytes(size.replicated, tables[name].rows.num_rows) for name, size in sizes.items()
    )
    if taken < FROM_BYTES:
        return ""
    return (
        f"hot batches: to find hot samples takes a rank up to {taken / 2**20:,.0f} MiB more, which "
        "is in no budget"
    )


def build_scars(config: ScarsConfig, context: Context) -> ScarsPlanner:
    if config.home == "mapped":  # for CUDA one may plan without having it
        check_home(config.home, context.device)
    others = context.others
    if config.size != "plan":
        if isinstance(others, TierPlanner):
            raise RegistryError(
                f"cache.size: is {config.size}, but sharding: {others.name} gives rows replicas "
                "too, and a table has one tier plan. Set `size: plan`, so that the cache is what "
                f"{others.name} plans; or `sharding: {{use: torchrec}}`, so that it is SCARS' own."
            )
        return ScarsPlanner(config, context)
    if not isinstance(others, TierPlanner):
        raise RegistryError(
            "cache.size: is plan, so that the cache is what the sharding slot's planner plans, but "
            f"that planner ({type(others).__name__}) gives no row replicas. Set `sharding: "
            "flexshard`, or another size."
        )
    if config.home == "host" and others.plan_path is not None:
        raise RegistryError(
            "cache.home: is host, which chooses kernels and the sizes of their caches by lookups, "
            f"but {others.options_in}.plan is a saved plan, for which no lookups are counted. Take "
            f"`plan` out of `{others.options_in}`, or set `home: memory`."
        )
    return ScarsPlanner(config, context, others)
