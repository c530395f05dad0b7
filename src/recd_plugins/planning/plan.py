"""TorchRec's own planner behind the `sharding` slot: the plan of plain TorchRec."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recd_plugins.config import Config, Range
from recd_plugins.errors import RegistryError, nearest
from recd_plugins.planning.topology import Topology

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = ["TableConstraint", "TorchRecPlanner", "TorchRecPlannerConfig"]

GB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class TableConstraint(Config):
    """TorchRec's `ParameterConstraints` for a table."""

    sharding_types: tuple[str, ...] = ()
    """TorchRec's sharding types to choose from: row_wise, table_wise, column_wise, ..."""
    compute_kernels: tuple[str, ...] = ()
    """TorchRec's compute kernels to choose from: fused, fused_uvm_caching, ..."""
    min_partition: Annotated[int, Range(ge=4)] | None = None
    """The narrowest column-wise shard."""
    pooling_factors: tuple[float, ...] = ()
    """Mean ids per sample, one for each feature of the table."""


@dataclass(frozen=True, kw_only=True)
class TorchRecPlannerConfig(Config):
    """Options of TorchRec's planner."""

    constraints: Mapping[str, TableConstraint] = field(default_factory=dict)
    """Table name or glob to what the planner may choose from for it."""
    search: Literal["torchrec", "greedy"] = "torchrec"
    """Which plans are compared: TorchRec's choice, up to 10,000 of a grid among them, or the
    greedy ones alone (milliseconds instead of seconds)."""
    reserve: Annotated[float, Range(ge=0, lt=1)] = 0.15
    """The share of device memory that tables may not take."""


class TorchRecPlanner:
    """Plans with `EmbeddingShardingPlanner`; its sharders carry the fused optimizer."""

    def __init__(
        self,
        config: TorchRecPlannerConfig,
        *,
        device: Literal["cpu", "cuda"],
        batch_size: int,
        fused: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._device = device
        self._batch_size = batch_size
        self._fused = fused
        self._explanation = "No plan has been made yet."

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        from torchrec.distributed.embedding import EmbeddingCollectionSharder
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

        # Sharding mutates the mapping it is given, so each sharder has its own.
        return [
            EmbeddingBagCollectionSharder(fused_params=dict(self._fused)),
            EmbeddingCollectionSharder(fused_params=dict(self._fused)),
        ]

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        from torchrec.distributed.planner import EmbeddingShardingPlanner
        from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
        from torchrec.distributed.planner.proposers import GreedyProposer
        from torchrec.distributed.planner.storage_reservations import (
            HeuristicalStorageReservation,
        )
        from torchrec.distributed.types import ShardingType

        kinds = [kind.value for kind in ShardingType]

        class Ordered(EmbeddingEnumerator):
            """TorchRec's options in one order: its own is a set's, which breaks ties at random."""

            def enumerate(self, **what: Any) -> list[ShardingOption]:
                options: list[ShardingOption] = super().enumerate(**what)
                return sorted(
                    options,
                    key=lambda o: (o.path, o.name, kinds.index(o.sharding_type), o.compute_kernel),
                )

        reason = _Reason()
        on = _torchrec_topology(topology, group.size(), self._device)
        constraints = self._constraints(model)
        with _quiet_planner():
            planner = EmbeddingShardingPlanner(
                topology=on,
                batch_size=self._batch_size,
                enumerator=Ordered(
                    topology=on, batch_size=self._batch_size, constraints=constraints
                ),
                proposer=[GreedyProposer(), GreedyProposer(use_depth=False)]
                if self._config.search == "greedy"
                else None,
                storage_reservation=HeuristicalStorageReservation(percentage=self._config.reserve),
                constraints=constraints,
                stats=[reason],
                debug=False,
            )
            plan = planner.collective_plan(model, self.sharders(), group)
        self._explanation = reason.text()
        return plan

    def explain(self) -> str:
        return self._explanation

    def _constraints(self, model: nn.Module) -> dict[str, ParameterConstraints]:
        from torchrec.distributed.planner.types import ParameterConstraints
        from torchrec.distributed.types import ShardingType

        tables = _tables(model)
        for pattern in self._config.constraints:
            if not any(fnmatchcase(table, pattern) for table in tables):
                raise RegistryError(
                    f"sharding.constraints: no table is named {pattern!r}; "
                    f"{nearest(pattern, tables)}"
                )
        # Data-parallel tables would be left to the dense optimizer, and on the CPU their
        # sequence kernel returns a wrong shape; grids TorchRec itself offers on demand alone.
        on_demand = (ShardingType.DATA_PARALLEL, ShardingType.GRID_SHARD)
        usual = [kind.value for kind in ShardingType if kind not in on_demand]
        constraints = {}
        for table in tables:
            chosen = [
                value
                for pattern, value in self._config.constraints.items()
                if fnmatchcase(table, pattern)
            ]
            options = chosen[-1] if chosen else TableConstraint()
            constraints[table] = ParameterConstraints(
                sharding_types=list(options.sharding_types) or usual,
                compute_kernels=list(options.compute_kernels) or None,
                min_partition=options.min_partition,
                **(
                    {"pooling_factors": list(options.pooling_factors)}
                    if options.pooling_factors
                    else {}
                ),
            )
        return constraints


def build_torchrec_planner(config: TorchRecPlannerConfig, context: Any) -> TorchRecPlanner:
    """The record's build; `context` is a `slots.Context`."""
    return TorchRecPlanner(
        config, device=context.device, batch_size=context.batch_size, fused=context.fused
    )


def _tables(model: nn.Module) -> list[str]:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    names: list[str] = []
    for module in model.modules():
        if isinstance(module, EmbeddingBagCollection):
            names += [config.name for config in module.embedding_bag_configs()]
        elif isinstance(module, EmbeddingCollection):
            names += [config.name for config in module.embedding_configs()]
    return names


def _torchrec_topology(topology: Topology, world_size: int, device: str) -> Any:
    from torchrec.distributed.planner.types import (
        HardwareConfig,
        KernelConfig,
        TopologyFactory,
        TrainerConfig,
    )

    intra, inter = topology.intra_node_gbps, topology.inter_node_gbps
    return TopologyFactory.create_topology(
        TrainerConfig(
            world_size=world_size,
            local_world_size=topology.ranks_per_node,
            hbm_cap_bytes=_bytes(topology.device_memory_gb),
            ddr_cap_bytes=_bytes(topology.host_memory_gb),
        ),
        # TorchRec counts bandwidth in bytes per millisecond.
        HardwareConfig(
            intra_host_bw=None if intra is None else intra * GB / 1000,
            inter_host_bw=None if inter is None else inter * GB / 1000,
        ),
        KernelConfig(
            compute_device=topology.device or device,
            use_hardware_based_bandwidth=not (intra is None and inter is None),
        ),
    )


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * GB)


class _Reason:
    """A TorchRec `Stats`: keeps the options that the planner found best, to say why."""

    def __init__(self) -> None:
        self._best: list[ShardingOption] = []
        self._proposals = 0

    def log(self, *, num_proposals: int, best_plan: list[ShardingOption], **_: Any) -> None:
        self._best, self._proposals = best_plan, num_proposals

    def text(self) -> str:
        """A line per table; times are TorchRec's estimates for the slowest shard, per step."""
        if not self._best:
            return "Planned on rank 0, which knows why."
        rows = [("table", "rows x dim", "sharding", "kernel", "ranks", "ms", "all-to-all ms")]
        for option in sorted(self._best, key=lambda option: option.name):
            perfs = [shard.perf for shard in option.shards if shard.perf is not None]
            slowest = max(perfs, key=lambda perf: perf.total)
            exchange = slowest.fwd_comms + slowest.bwd_comms + slowest.input_dist_comms
            rows.append(
                (
                    option.name,
                    f"{option.tensor.shape[0]:,} x {option.tensor.shape[1]}",
                    option.sharding_type,
                    option.compute_kernel,
                    ",".join(map(str, sorted({shard.rank for shard in option.shards}))),
                    f"{slowest.total:.3f}",
                    f"{exchange:.3f}",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        head = f"plan: cheapest of {self._proposals:,} proposals by TorchRec's performance model"
        return "\n".join([head, *lines])


@contextmanager
def _quiet_planner() -> Iterator[None]:
    """Hide two warnings that TorchRec logs at every plan and that ask nothing of a user."""
    logger = logging.getLogger("torchrec.distributed.planner")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
