"""The search of TorchRec's planner, whose plan is a function of its arguments, with the reasons.

Options come in one order, named tables are held row-wise, and the options of the plan are kept.
This module imports TorchRec's planner, which takes seconds: import it where a plan is made.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import ShardingOption
from torchrec.distributed.types import ShardingType

from recd_plugins.compat.torchrec import own_fused_params
from recd_plugins.errors import so_many
from recd_plugins.planning.cluster.topology import GB, Topology
from recd_plugins.planning.fused_params import state_bytes
from recd_plugins.planning.sharders import sharded_modules
from recd_plugins.planning.torchrec_plan.torchrec_proposals import Proposals

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = [
    "BestOptions",
    "OrderedEnumerator",
    "best_plan",
    "copied",
    "make_row_wise",
    "offers_row_wise",
    "torchrec_topology",
]

KINDS = [kind.value for kind in ShardingType]
NAMES = ("name", "feature_names", "dependency")
"""The attributes of a sharding option in which tables that are alike differ."""


def best_plan(
    model: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    on: Any,
    constraints: Mapping[str, ParameterConstraints],
    *,
    batch_size: int,
    search: Literal["torchrec", "greedy"],
    reserve: float,
    in_files: Collection[str],
) -> tuple[ShardingPlan, BestOptions]:
    """The best plan of TorchRec's planner `on` its topology, and the options that it is of;
    TorchRec's `PlannerError` where there is none.

    The share `reserve` of an accelerator's memory stays free; tables `in_files` take no memory.
    """
    proposals = Proposals(on, search)
    best = BestOptions(proposals)
    with _quiet_planner():
        planner = EmbeddingShardingPlanner(
            topology=on,
            batch_size=batch_size,
            enumerator=OrderedEnumerator(
                topology=on,
                batch_size=batch_size,
                constraints=constraints,
                in_files=in_files,
            ),
            proposer=proposals.proposers(),
            # By its rating, a rank's time, proposals are left out.
            performance_model=NoopPerfModel(topology=on),
            storage_reservation=HeuristicalStorageReservation(percentage=reserve),
            constraints=dict(constraints),
            stats=[best],
            debug=False,
        )
        plan: ShardingPlan = planner.plan(model, _for_adapted(model, sharders))
    return plan, best


class BestOptions:
    """A TorchRec `Stats`: keeps the options that the planner found best, to say why."""

    def __init__(self, proposals: Proposals) -> None:
        self._best: list[ShardingOption] = []
        self._proposals = proposals

    def log(self, *, best_plan: list[ShardingOption], **_: Any) -> None:
        self._best = best_plan

    def text(self) -> str:
        """A line per table; times are TorchRec's estimates for the slowest shard, per step.

        Its total leaves the ids' exchange out, which is added here: all-to-alls are a part of it.
        """
        rows = [("table", "rows x dim", "sharding", "kernel", "ranks", "ms", "of them all-to-all")]
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
                    f"{slowest.total + slowest.input_dist_comms:.3f}",
                    f"{exchange:.3f}",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        count, placed = len(self._proposals.compared), self._proposals.placed
        head = f"plan: cheapest of {so_many(count, 'proposal')} by TorchRec's performance model"
        if placed < count:
            were = "was" if placed == 1 else "were"
            head += f"; {placed:,} {were} placed on ranks, the others are no faster anywhere"
        return "\n".join([head, *lines])


class OrderedEnumerator(EmbeddingEnumerator):
    """TorchRec's enumerator in a fixed order: its own order is a set's, which breaks ties at
    random.

    Options that are alike but for their table's name are estimated once: a hundred tables have few
    shapes, and TorchRec takes milliseconds for an option.
    """

    def __init__(
        self,
        topology: Any,
        batch_size: int,
        constraints: Any = None,
        in_files: Collection[str] = (),
    ) -> None:
        """The rows of the tables `in_files` take no memory, nor their optimizer states."""
        self._options: list[ShardingOption] = []
        self._in_files = in_files
        self._held = constraints or {}
        of = {"topology": topology, "constraints": constraints}
        estimators = [_OncePerSize(**of), EmbeddingStorageEstimator(**of)]
        super().__init__(
            topology=topology,
            batch_size=batch_size,
            constraints=constraints,
            estimator=estimators,
        )

    def populate_estimates(self, sharding_options: list[ShardingOption]) -> None:
        alike: dict[str, list[ShardingOption]] = {}
        for option in sharding_options:
            alike.setdefault(self._estimated_by(option), []).append(option)
        super().populate_estimates([options[0] for options in alike.values()])
        # TorchRec copies the list for a second call, which there is not, and that takes seconds.
        self._options = sharding_options[:]
        sharding_options.clear()
        for first, *others in alike.values():
            for option in others:
                option.is_weighted = first.is_weighted
                for shard, estimated in zip(option.shards, first.shards, strict=True):
                    shard.perf, shard.storage = estimated.perf, estimated.storage
        for option in self._options:
            option.__class__ = _Option
            if option.name in self._in_files:
                for shard in option.shards:
                    shard.storage = _without_rows(option, shard)

    def _estimated_by(self, option: ShardingOption) -> str:
        """All that an estimate may depend on."""
        own = {
            name: value
            for name, value in vars(option).items()
            # The tensors of a table, and its module with its path, differ between tables that are
            # alike.
            if name not in NAMES and not isinstance(value, Tensor | tuple)
        }
        own["shards"] = [(shard.size, shard.offset) for shard in option.shards]
        held = self._held.get(option.name)
        if held is not None:
            held = dataclasses.replace(held, feature_names=None)
        trained = own_fused_params(option.tensor)  # whose states take memory
        return repr((own, tuple(option.tensor.shape), option.tensor.dtype, held, trained))

    def enumerate(self, **what: Any) -> list[ShardingOption]:
        super().enumerate(**what)
        return sorted(
            self._options,
            key=lambda o: (o.path, o.name, KINDS.index(o.sharding_type), o.compute_kernel),
        )


class _Option(ShardingOption):
    """An option of a search space. TorchRec hashes and copies all options of each proposal that it
    places, shard by shard with all estimates, which took longer than to place them."""

    def __hash__(self) -> int:
        return id(self)  # a search space has each option once

    def __deepcopy__(self, memo: Any) -> ShardingOption:
        """A copy with shards of its own, whose ranks alone will differ."""
        made = copy.copy(self)
        made.shards = [copy.copy(shard) for shard in self.shards]
        return made


def _without_rows(option: ShardingOption, shard: Any) -> Any:
    """The host memory of a table shard, less its rows and their optimizer states; all of it where
    every rank has the table, which then lies in no file."""
    if option.sharding_type == "data_parallel":
        return shard.storage
    dim, fused = option.tensor.shape[1], own_fused_params(option.tensor)
    width = dim * option.tensor.element_size() + state_bytes(fused, dim)
    rows, columns = shard.size
    kept = shard.storage.ddr - math.ceil(rows * width * columns / dim)
    return dataclasses.replace(shard.storage, ddr=max(kept, 0))


class _OncePerSize(EmbeddingPerfEstimator):
    """TorchRec's estimates, made once for the shards of one size: of row-wise ones, on hundreds of
    ranks, all but the last are alike."""

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        every = [option.shards for option in sharding_options]
        for option in sharding_options:
            option.shards = list({tuple(shard.size): shard for shard in option.shards}.values())
        super().estimate(sharding_options, sharder_data_map)
        for option, shards in zip(sharding_options, every, strict=True):
            perfs = {tuple(shard.size): shard.perf for shard in option.shards}
            for shard in shards:
                shard.perf = perfs[tuple(shard.size)]
            option.shards = shards


def offers_row_wise(
    model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]], device: str
) -> set[str]:
    """The tables for which TorchRec's planner has row-wise plans: on the CPU not those of bags."""
    return {
        table
        for _, module, sharder in sharded_modules(model, sharders)
        if "row_wise" in sharder.sharding_types(device)
        for table in sharder.shardable_parameters(module)
    }


def make_row_wise(
    plan: ShardingPlan,
    model: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    tables: Collection[str],
    *,
    device: str,
    world_size: int,
    ranks_per_node: int,
) -> None:
    """Have these tables row-wise over all ranks, with TorchRec's fused kernel, in the plan."""
    from torchrec.distributed.sharding_plan import row_wise

    generate = row_wise(compute_kernel="fused")
    for path, module, sharder in sharded_modules(model, sharders):
        for table, parameter in sharder.shardable_parameters(module).items():
            if table in tables:
                plan.plan[path][table] = generate(
                    parameter, ranks_per_node, world_size, device, sharder
                )


def copied(plan: ShardingPlan) -> ShardingPlan:
    """A copy of the plan with mappings and lists of its own. The shards, thousands for a hundred
    tables, are shared: nobody changes them."""
    made = copy.copy(plan)
    made.plan = {}
    for path, tables in plan.plan.items():
        every: Any = copy.copy(tables)
        for name, sharding in list(every.items()):
            spec = copy.copy(sharding.sharding_spec)
            if spec is not None:
                spec.shards = list(spec.shards)
            ranks = None if sharding.ranks is None else list(sharding.ranks)
            every[name] = dataclasses.replace(sharding, ranks=ranks, sharding_spec=spec)
        made.plan[path] = every
    return made


def torchrec_topology(topology: Topology, world_size: int, device: str) -> Any:
    """TorchRec's own `Topology` of these ranks."""
    from torchrec.distributed.planner import types

    memory = {"hbm_cap": topology.device_memory_gb, "ddr_cap": topology.host_memory_gb}
    caps = {name: None if gb is None else int(gb * GB) for name, gb in memory.items()}
    links = {"intra_host_bw": topology.intra_node_gbps, "inter_host_bw": topology.inter_node_gbps}
    # TorchRec counts bandwidth in bytes per millisecond.
    rates = {name: gbps * GB / 1000 for name, gbps in links.items() if gbps is not None}
    if not hasattr(types, "TopologyFactory"):  # before TorchRec 1.6
        local = topology.ranks_per_node
        return types.Topology(world_size, device, local_world_size=local, **caps, **rates)
    return types.TopologyFactory.create_topology(
        types.TrainerConfig(
            world_size=world_size,
            local_world_size=topology.ranks_per_node,
            **{f"{name}_bytes": cap for name, cap in caps.items()},
        ),
        types.HardwareConfig(**rates),
        types.KernelConfig(compute_device=device, use_hardware_based_bandwidth=bool(rates)),
    )


def _for_adapted(
    model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]
) -> list[ModuleSharder[nn.Module]]:
    """The sharders, and copies to plan by for the model's adapted collections.

    TorchRec's planner looks sharders up by a module's very class; a collection that an adapted
    model looks up with unique samples is planned as the collection that it was.
    """
    found = list(sharders)
    for kind in {type(module): None for module in model.modules()}:
        for sharder in sharders:
            if getattr(kind, "ADAPTED_FROM", None) is sharder.module_type:
                alike = copy.copy(sharder)
                alike.__class__ = type(
                    type(sharder).__name__, (type(sharder),), {"module_type": kind}
                )
                found.append(alike)
    return found


@contextmanager
def _quiet_planner() -> Iterator[None]:
    """Hide the warnings that TorchRec gives at every plan, and for each data-parallel table by the
    root logger: they ask nothing of a user."""
    logger = logging.getLogger("torchrec.distributed.planner")
    level = logger.level
    logger.setLevel(logging.ERROR)
    logging.root.addFilter(_asks_something)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "HeuristicalStorageReservation", FutureWarning)
            yield
    finally:
        logging.root.removeFilter(_asks_something)
        logger.setLevel(level)


def _asks_something(record: logging.LogRecord) -> bool:
    """False for the record that a data-parallel table has no spec of shards, as none has."""
    return not record.getMessage().startswith("Sharding spec not found")
