"""Options of `cache: scars`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from recd_plugins.api import Config, Range, RegistryError
from recd_plugins.api.planning import CacheAlgorithm, Coalesce
from recd_scars.home import Home

__all__ = ["ScarsConfig"]

DECIDED_BY_PLAN = ("coalesce", "tables", "profile", "profile_batches", "activation_bytes")
"""Options that have no meaning where another planner sizes the cache."""


@dataclass(frozen=True, kw_only=True)
class ScarsConfig(Config):
    """Options of SCARS' cache."""

    size: Literal["optimum", "budget", "hit_rate", "plan"] = "optimum"
    """The number of rows that are cached, on every rank: the paper's optimum, less the rows whose
    replicas' gradients take longer to reduce than the rows to fetch from memory; what fits
    `budget_gb`; as few as take the share `hit_rate` of lookups; or as the sharding slot's planner
    of replicas plans, say flexshard, whose tiers and coalescing are then the cache's."""
    budget_gb: Annotated[float, Range(gt=0, le=1e9)] | None = None
    """Memory of a rank for all cached rows and what goes with them, GB; for size budget."""
    hit_rate: Annotated[float, Range(gt=0, le=1)] | None = None
    """The share of all tables' lookups that cached rows are to take; for size hit_rate."""
    force: bool = False
    """Whether to cache and coalesce even where the prices have TorchRec's own plan faster; a
    `budget_gb`, a `hit_rate` or another `home` than memory say so too."""
    coalesce: Coalesce = "rank"
    """The way in which ids travel that are not cached: as they are, once per rank, once per
    node."""
    tables: tuple[str, ...] = ("*",)
    """Names or globs of the tables that are cached and coalesced."""
    memory_gb: Annotated[float, Range(gt=0, le=1e9)] | None = None
    """Memory of a rank, GB, which tables, cache and batch share, for size optimum and home host;
    by default the topology's device_memory_gb, less the share of it that `sharding.reserve` keeps,
    or host_memory_gb on the CPU."""
    activation_bytes: Annotated[float, Range(gt=0)] | None = None
    """The bytes that the activations of a sample take, for size optimum; by default the rows that
    it looks up and their gradients, the least that there can be."""
    hot_batches: bool = True
    """Whether samples all of whose ids are cached train together, in batches without an
    all-to-all."""
    window: Annotated[int, Range(ge=1, le=1_000_000)] = 16
    """Batches of a rank among which samples change places for that; the order of an epoch drifts
    by as much."""
    home: Home = "memory"
    """The place where tables and their optimizer states lie: in the memory of what trains; in
    memory-mapped files, which may be larger (on the CPU alone); or in host memory, but for those
    that fit the device, served by TorchRec's UVM kernels (on CUDA alone)."""
    cache_algorithm: CacheAlgorithm | None = None
    """The rows that the caches of these kernels keep, for home host: lru, those looked up last, by
    default; or lfu, those looked up most, for 8 bytes of the device for each row of a table."""
    mapped_folder: Path | None = None
    """The folder of these files, on a disk; by default `mapped` in the registry's folder."""
    profile: Path | None = None
    """A saved profile to plan with; by default batches of training are counted."""
    profile_batches: Annotated[int | None, Range(ge=0, le=1_000_000_000)] = None
    """The number of batches of each rank to count; by default of a table as many as it takes, from
    all over it, and of a trainer's own loader the first 100. 0: nothing is cached at first, and
    train.retier_every sizes and fills the cache by what it sees."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for size, option in (("budget", "budget_gb"), ("hit_rate", "hit_rate")):
            given = getattr(self, option) is not None
            if given and self.size != size:
                raise RegistryError(f"is for `size: {size}`, but size is {self.size}.", option)
            if self.size == size and not given:
                raise RegistryError(f"needs {option}: how much is to be cached.", "size")
        if self.size == "plan":
            self._check_planned()
        if self.profile_batches == 0 and self.coalesce == "none":
            raise RegistryError(
                "is 0, so that nothing is cached at first, nor coalesced: no table would be made "
                "ready for it. Set coalesce to rank or node, or count a batch.",
                "profile_batches",
            )
        if self.mapped_folder is not None and self.home != "mapped":
            raise RegistryError(f"is for `home: mapped`, but home is {self.home}.", "mapped_folder")
        if self.cache_algorithm is not None and self.home != "host":
            raise RegistryError(f"is for `home: host`, but home is {self.home}.", "cache_algorithm")
        if self.profile_batches == 0 and self.profile is None and self.home == "host":
            raise RegistryError(
                "is 0, but `home: host` chooses kernels and the sizes of their caches by what is "
                "looked up. Count some batches.",
                "profile_batches",
            )

    def idle_options(self) -> Mapping[str, str]:
        idle: dict[str, str] = {}
        if not self.hot_batches:
            why = "hot batches are made of so many, and `hot_batches: false` has none made"
            idle |= dict.fromkeys(self.set_among("window"), why)
        if self.size != "optimum" and self.home != "host":
            why = f"it is for `size: optimum` and `home: host`, and here is `size: {self.size}`"
            idle |= dict.fromkeys(self.set_among("memory_gb", "activation_bytes"), why)
        if self.profile is not None:
            why = "it is how many batches are counted, and `profile` names what was counted before"
            idle |= dict.fromkeys(self.set_among("profile_batches"), why)
        return idle

    def _check_planned(self) -> None:
        """Refuse options that the sharding slot's planner decides."""
        usual = {field.name: field.default for field in fields(self)}
        for option in DECIDED_BY_PLAN:
            if getattr(self, option) != usual[option]:
                raise RegistryError(
                    "is not the cache's to say with `size: plan`: the sharding slot's planner "
                    "decides it. Give the option there, or another size.",
                    option,
                )
