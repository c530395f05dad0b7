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
    """How many rows each rank caches: the paper's optimum, less the rows whose replicas' gradients
    take longer to reduce than the rows to fetch from memory (`optimum`); what fits `budget_gb`
    (`budget`); or as few as take the share `hit_rate` of lookups (`hit_rate`). With `plan`, the
    sharding slot's planner of replicas, such as flexshard, decides on rows, tiers and
    coalescing."""
    budget_gb: Annotated[float, Range(gt=0, le=1e9)] | None = None
    """With `size: budget`, the memory of a rank in GB for all cached rows and what goes with
    them."""
    hit_rate: Annotated[float, Range(gt=0, le=1)] | None = None
    """With `size: hit_rate`, the share of all tables' lookups that cached rows are to serve."""
    force: bool = False
    """Whether rows are cached and coalesced even if the prices have TorchRec's own plan faster. A
    `budget_gb`, a `hit_rate` or a `home` other than memory force it too."""
    coalesce: Coalesce = "rank"
    """How ids travel that are not cached: as they are (`none`), once per rank (`rank`), or once per
    node (`node`)."""
    tables: tuple[str, ...] = ("*",)
    """Names or globs of the tables that are cached and coalesced; by default all."""
    memory_gb: Annotated[float, Range(gt=0, le=1e9)] | None = None
    """The memory of a rank in GB that tables, cache and batch share, for `size: optimum` and `home:
    host`. By default it is the topology's device_memory_gb, less the share that `sharding.reserve`
    keeps, or on a CPU host_memory_gb."""
    activation_bytes: Annotated[float, Range(gt=0)] | None = None
    """The bytes that the activations of a sample take, for `size: optimum`. By default they are the
    least possible: the rows that the sample looks up, and their gradients."""
    hot_batches: bool = True
    """Whether samples all of whose ids are cached train together, in batches without an
    all-to-all."""
    window: Annotated[int, Range(ge=1, le=1_000_000)] = 16
    """The number of a rank's batches among which samples change places for hot batches. The order
    of an epoch changes by at most as much."""
    home: Home = "memory"
    """Where tables and their optimizer states are: in the memory of the training device (`memory`);
    in memory-mapped files, which may be larger than memory (`mapped`, on a CPU alone); or in host
    memory, served by TorchRec's UVM kernels, except for tables that fit the device (`host`, on CUDA
    alone)."""
    cache_algorithm: CacheAlgorithm | None = None
    """With `home: host`, the rows that the caches of TorchRec's kernels keep: those looked up last
    (`lru`, the default), or those looked up most (`lfu`). `lfu` takes 8 bytes of the device for
    each row of a table."""
    mapped_folder: Path | None = None
    """With `home: mapped`, the folder of the files, which must be on a disk. By default it is
    `mapped` in the registry's folder."""
    profile: Path | None = None
    """A saved profile to plan with, as `recd data profile` writes it. By default batches of
    training are counted."""
    profile_batches: Annotated[int | None, Range(ge=0, le=1_000_000_000)] = None
    """The number of batches of each rank that are counted; by default as many as are needed, from
    all over a table, and the first 100 of a trainer's own loader. With 0 nothing is cached at
    first, and train.retier_every sizes and fills the cache by the lookups that it sees."""

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
                "is 0, so that nothing is cached at first, and coalesce is none: no table would be "
                "prepared for a cache. Set coalesce to rank or node, or count at least one batch.",
                "profile_batches",
            )
        if self.mapped_folder is not None and self.home != "mapped":
            raise RegistryError(f"is for `home: mapped`, but home is {self.home}.", "mapped_folder")
        if self.cache_algorithm is not None and self.home != "host":
            raise RegistryError(f"is for `home: host`, but home is {self.home}.", "cache_algorithm")
        if self.profile_batches == 0 and self.profile is None and self.home == "host":
            raise RegistryError(
                "is 0, but `home: host` chooses kernels and the sizes of their caches by lookups. "
                "Count some batches.",
                "profile_batches",
            )

    def idle_options(self) -> Mapping[str, str]:
        idle: dict[str, str] = {}
        if not self.hot_batches:
            why = "it is for hot batches, and `hot_batches: false` makes none"
            idle |= dict.fromkeys(self.set_among("window"), why)
        if self.size != "optimum" and self.home != "host":
            why = f"it is for `size: optimum` and `home: host`, and here is `size: {self.size}`"
            idle |= dict.fromkeys(self.set_among("memory_gb", "activation_bytes"), why)
        if self.profile is not None:
            why = "it is the number of batches to count, and `profile` was counted before"
            idle |= dict.fromkeys(self.set_among("profile_batches"), why)
        return idle

    def _check_planned(self) -> None:
        """Refuse options that the sharding slot's planner decides."""
        usual = {field.name: field.default for field in fields(self)}
        for option in DECIDED_BY_PLAN:
            if getattr(self, option) != usual[option]:
                raise RegistryError(
                    "cannot be set here with `size: plan`, because the sharding slot's planner "
                    "decides it. Set the option there, or choose another size.",
                    option,
                )
