"""The `cache: scars` planner: hot rows on every rank, in front of what the sharding slot plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from recd_plugins.config import Config, Range
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.cost import Prices
from recd_plugins.planning.explain import PlanReport
from recd_plugins.planning.ledger import Ledger, SequenceTable
from recd_plugins.planning.merged import Merged
from recd_plugins.planning.model_tables import ModelTable, model_tables
from recd_plugins.planning.proposal import HoldsRowWise, Tiered
from recd_plugins.planning.replica_memory import replica_factor
from recd_plugins.planning.rows import Integers
from recd_plugins.planning.tier_plan import Coalesce
from recd_plugins.planning.topology import GB, Topology
from recd_plugins.slots import Context, Loader
from recd_plugins.tiers.planner import Chosen, TierPlanner
from recd_scars.device import DeviceMemory
from recd_scars.hot_set import covering, optimum, within, worth
from recd_scars.report import lines
from recd_scars.theory.memory import Memory

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = ["ScarsConfig", "ScarsPlanner", "build_scars"]

BOUNDLESS_GB = 1e6
"""Host memory for tables that are not in it."""


@dataclass(frozen=True, kw_only=True)
class ScarsConfig(Config):
    """Options of SCARS' cache."""

    size: Literal["optimum", "budget", "hit_rate"] = "optimum"
    """How many rows are cached, on every rank: the paper's optimum, less the rows whose
    replicas' gradients take longer to reduce than the rows to fetch from memory; what fits
    `budget_gb`; or as few as take the share `hit_rate` of lookups."""
    budget_gb: Annotated[float, Range(gt=0)] | None = None
    """Memory of a rank for all cached rows and what goes with them, GB; for size budget."""
    hit_rate: Annotated[float, Range(gt=0, le=1)] | None = None
    """The share of all tables' lookups that cached rows are to take; for size hit_rate."""
    coalesce: Coalesce = "rank"
    """How ids travel that are not cached: as they are, once per rank, once per node."""
    tables: tuple[str, ...] = ("*",)
    """Names or globs of the tables that are cached and coalesced; of pooled tables all or none
    of a collection, where ids are coalesced."""
    memory_gb: Annotated[float, Range(gt=0)] | None = None
    """Memory of a rank, GB, which tables, cache and batch share, for size optimum; by default
    the topology's device_memory_gb, or host_memory_gb on the CPU."""
    activation_bytes: Annotated[float, Range(gt=0)] | None = None
    """Of a sample, for size optimum; by default the rows that it looks up and their gradients,
    which is the least that there can be."""
    hot_batches: bool = True
    """Whether samples all of whose ids are cached train together, in batches without an
    all-to-all."""
    window: Annotated[int, Range(ge=1)] = 16
    """Batches of a rank among which samples change places for that; the order of an epoch drifts
    by as much."""
    home: Literal["memory", "mapped"] = "memory"
    """Where tables and their optimizer states lie: in memory, or in memory-mapped files, which
    may be larger (on the CPU alone)."""
    mapped_folder: Path | None = None
    """Of these files, on a disk; by default `mapped` in the registry's folder."""
    profile: Path | None = None
    """A saved profile to plan with; by default the train split's first batches are counted."""
    profile_batches: Annotated[int, Range(ge=1)] = 100
    """How many batches to count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for size, option in (("budget", "budget_gb"), ("hit_rate", "hit_rate")):
            said = getattr(self, option) is not None
            if said and self.size != size:
                raise RegistryError(f"is for `size: {size}`, but size is {self.size}.", option)
            if self.size == size and not said:
                raise RegistryError(f"needs {option}: how much is to be cached.", "size")
        if self.mapped_folder is not None and self.home != "mapped":
            raise RegistryError("is for `home: mapped`, but home is memory.", "mapped_folder")


class ScarsPlanner(TierPlanner):
    """All tables row-wise and coalesced, the hottest rows of all of them on every rank."""

    name = "scars"
    slot = "cache"

    def __init__(self, config: ScarsConfig, context: Context, others: HoldsRowWise) -> None:
        super().__init__(
            context, others, profile=config.profile, profile_batches=config.profile_batches
        )
        self._config = config
        self._every: Mapping[str, ModelTable] = {}
        """All tables of the model that was planned last."""

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        self._every = model_tables(model)
        return super().plan(model, topology, group)

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """Those of the tiers; with tables in mapped files, if that is where they are at home."""
        sharders = super().sharders()
        if self._config.home == "memory":
            return sharders
        from recd_plugins.tiers.mapped import mapped

        folder = self._config.mapped_folder or self._context.folder / "mapped"
        folder.mkdir(parents=True, exist_ok=True)
        return mapped(sharders, folder)

    def order(self, loader: Loader, rank: int, world_size: int) -> Loader:
        """Hot and normal batches of the same samples."""
        if not self._config.hot_batches:
            return loader
        from recd_scars.hot_batches import HotBatches

        window = self._config.window
        return HotBatches(loader, self, rank=rank, world_size=world_size, window=window)

    @property
    def features_of(self) -> Mapping[str, Sequence[str]]:
        """Of each table of the collections that have tiers, those that are left out among them."""
        planned = self.tier_plan.tables if self.tier_plan else {}
        modules = {self._every[name].module for name in planned}
        return {t.name: t.features for t in self._every.values() if t.module in modules}

    def home(self, topology: Topology) -> Topology:
        """Mapped tables take no memory that would have to be there."""
        if self._config.home == "memory":
            return topology
        return dataclasses.replace(topology, host_memory_gb=BOUNDLESS_GB)

    def tables(self, model: nn.Module) -> Mapping[str, ModelTable]:
        return model_tables(model, self._config.tables, where="cache.tables")

    def choose(
        self,
        model: nn.Module,
        tables: Mapping[str, SequenceTable],
        topology: Topology,
        world_size: int,
    ) -> Chosen:
        config, context = self._config, self._context
        if config.coalesce != "none":
            _check_collections(model_tables(model), tables)
        k = replica_factor(tables.values(), context.fused)
        cluster = Cluster.of(topology, world_size)
        prices = Prices(cluster=cluster, batch_size=context.batch_size, k=k)
        merged = Merged.of(tables)
        said = [f"scars: size {config.size}, coalesce {config.coalesce}, k = {k:.3g}"]
        match config.size:
            case "budget":
                taken = within(merged, self._budget / k)
            case "hit_rate":
                taken = covering(merged, config.hit_rate or 0.0)
            case "optimum":
                memory = DeviceMemory.of(
                    model,
                    topology,
                    world_size,
                    device=context.device,
                    memory_gb=config.memory_gb,
                    fused=None if config.home == "mapped" else context.fused,
                )
                taken = self._optimum(merged, memory, prices, said)
        hot = merged.per_table(taken)
        levels = dict.fromkeys(tables, config.coalesce)
        sizes = merged.sizes(hot, np.zeros_like(hot), levels)
        report = PlanReport(
            ledger=Ledger.of(tables, sizes, prices),
            goal=f"scars, {config.size}",
            budget=self._budget if config.size == "budget" else None,
        )
        said += lines(tables, sizes, batch_size=context.batch_size, k=k)
        if config.coalesce == "none" and any(self._found[name].pooled for name in tables):
            said.append("pooled rows are summed before they travel: they move less than is said")
        return Chosen(sizes=sizes, report=report, said="\n".join([*said, *report.lines()]))

    def _optimum(
        self, merged: Merged, memory: DeviceMemory, prices: Prices, said: list[str]
    ) -> Integers:
        """The paper's |C|, but for rows that cost more than they save here; what it took."""
        batch_size = self._context.batch_size
        sample = self._config.activation_bytes
        whose = "cache.activation_bytes"
        if sample is None:
            looked_up = float((merged.rows.counts * merged.rows.p) @ merged.width)
            sample, whose = 2 * looked_up, "the rows that it looks up, and their gradients"
        left = memory.capacity / GB
        if memory.capacity < batch_size * sample:
            raise CapabilityError(
                f"cache: {memory.said} leave {left:.3g} GB, which does not hold a batch of "
                f"{batch_size:,} samples of {sample:,.0f} bytes. Set cache.memory_gb to what a "
                "rank has, lower train.batch_size, or choose `size: budget`."
            )
        found = optimum(
            merged,
            Memory(
                capacity=memory.capacity / prices.k,
                per_sample=max(sample, 1.0) / prices.k,
                width=1,
                least=batch_size,
            ),
        )
        kept = found.taken
        if self._config.home == "memory":
            kept = worth(merged, kept, prices, self._config.coalesce)
        said.append(
            f"M = {memory.said}: {left:.3g} GB; a = {sample:,.0f} bytes ({whose}); |C| = "
            f"{found.taken.sum():,} rows, beside which {found.size.batch_size:,.0f} samples fit "
            f"(train.batch_size is {batch_size:,})"
        )
        dropped = found.taken.sum() - kept.sum()
        if dropped:
            said.append(
                f"{dropped:,} of these rows are not cached: to reduce their gradients over all "
                "ranks would take longer than to fetch them"
            )
        return kept

    @property
    def _budget(self) -> float:
        return (self._config.budget_gb or 0.0) * GB


def build_scars(config: ScarsConfig, context: Context) -> ScarsPlanner:
    if config.home == "mapped" and context.device == "cuda":
        raise CapabilityError(
            "cache.home: mapped tables are for the CPU, but training runs on CUDA. Set "
            "`home: memory`; a table that host memory is to hold is TorchRec's, with "
            "`compute_kernels: [fused_uvm_caching]` under sharding.constraints."
        )
    others = context.neighbours.get("sharding")
    if isinstance(others, Tiered):
        raise RegistryError(
            f"cache: scars gives rows replicas, and so does the sharding slot's planner "
            f"({type(others).__name__}), but a table has one tier plan. Take `cache` out, or set "
            "`sharding: {use: torchrec}`."
        )
    if not isinstance(others, HoldsRowWise):
        raise CapabilityError(
            f"cache: scars needs its tables row-wise, but the sharding slot's planner "
            f"({type(others).__name__}) has no `may_be_row_wise` and `row_wise`, by which it would "
            "be told (recd_plugins.planning.proposal.HoldsRowWise). Set "
            "`sharding: {use: torchrec}`."
        )
    return ScarsPlanner(config, context, others)


def _check_collections(every: Mapping[str, ModelTable], planned: Collection[str]) -> None:
    """Bags of one collection are coalesced together, or not at all."""
    modules = {every[name].module for name in planned if every[name].pooled}
    left = [t.name for t in every.values() if t.module in modules and t.name not in planned]
    if left:
        raise RegistryError(
            f"cache: tables {', '.join(left)} are left out, by cache.tables or by "
            "sharding.constraints, but others of their EmbeddingBagCollection are coalesced, "
            "which all of one collection are or none. Name all of them, or set "
            "`coalesce: none`."
        )
