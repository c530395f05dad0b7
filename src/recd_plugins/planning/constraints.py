"""The choices that registry.yaml leaves TorchRec's planner for each table, checked against what
TorchRec offers. Those that a trainer gives of its own are in `torchrec_plan`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from recd_plugins.config import Config, Range
from recd_plugins.errors import CapabilityError, RegistryError, listed
from recd_plugins.patterns import check_patterns, fitting
from recd_plugins.planning.sharders import sharded_modules
from recd_plugins.planning.tables.embedding_collections import embedding_collections

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import CacheParams, ModuleSharder

__all__ = [
    "CacheAlgorithm",
    "ComputeKernel",
    "ShardingKind",
    "TableConstraint",
    "parameter_constraints",
]

ShardingKind = Literal[
    "data_parallel",
    "table_wise",
    "column_wise",
    "row_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
]
"""TorchRec's `ShardingType`."""

ComputeKernel = Literal[
    "dense",
    "fused",
    "fused_uvm",
    "fused_uvm_caching",
    "key_value",
    "customized_kernel",
    "ssd_virtual_table",
    "dram_virtual_table",
    "dram_ssd_virtual_table",
    "fused_triton",
]
"""The kernels of TorchRec's `EmbeddingComputeKernel` that train."""

ON_CUDA = ("fused_uvm", "fused_uvm_caching", "key_value")
"""Those of these kernels that exist on CUDA alone, though TorchRec may offer them elsewhere."""

ON_DEMAND = frozenset({"grid_shard"})
"""The sharding types that TorchRec itself offers only on demand."""

BY_ROWS = frozenset({"row_wise", "table_row_wise"})
"""The sharding types that it also offers only on demand for tables behind a feature processor. With
them a rank has parts of bags, on which the processor runs: TorchRec's own processors know the
places of ids in whole bags, and a trainer's own one sees their places in the parts."""

COLUMN_WISE = frozenset({"column_wise", "table_column_wise", "grid_shard"})
"""The sharding types by which a shard has some of a table's columns."""

CacheAlgorithm = Literal["lru", "lfu"]
"""Which rows a `fused_uvm_caching` kernel keeps: those looked up last, or most often."""


@dataclass(frozen=True, kw_only=True)
class TableConstraint(Config):
    """TorchRec's `ParameterConstraints` for a table."""

    sharding_types: tuple[ShardingKind, ...] = ()
    """TorchRec's sharding types that the planner may choose; by default those that TorchRec
    offers."""
    compute_kernels: tuple[ComputeKernel, ...] = ()
    """TorchRec's compute kernels that the planner may choose; by default those that TorchRec offers
    on the device."""
    min_partition: Annotated[int, Range(ge=4)] | None = None
    """The smallest number of columns of a column-wise shard; by default TorchRec's."""
    pooling_factors: tuple[Annotated[float, Range(gt=0)], ...] = ()
    """The mean numbers of ids per sample, one for each feature of the table; by default
    TorchRec takes 1."""
    load_factor: Annotated[float, Range(gt=0, lt=1)] | None = None
    """For the kernel fused_uvm_caching, the share of the table's rows for which the device has
    room; by default 0.2."""
    cache_algorithm: CacheAlgorithm | None = None
    """The rows that this kernel keeps on the device; by default those looked up last (`lru`).
    Tables that differ in this or in load_factor have kernels of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.load_factor and "fused_uvm_caching" not in self.compute_kernels:
            raise RegistryError(
                "is for the kernel fused_uvm_caching: name it under compute_kernels.", "load_factor"
            )

    def idle_options(self) -> Mapping[str, str]:
        idle: dict[str, str] = {}
        if self.compute_kernels and "fused_uvm_caching" not in self.compute_kernels:
            why = "it is for the kernel fused_uvm_caching, which compute_kernels do not name"
            idle |= dict.fromkeys(self.set_among("cache_algorithm"), why)
        if self.sharding_types and not COLUMN_WISE & {*self.sharding_types}:
            why = "it is for shards of columns, and sharding_types make none"
            idle |= dict.fromkeys(self.set_among("min_partition"), why)
        return idle


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A table of the model, and what TorchRec can do with it."""

    name: str
    features: Sequence[str]
    module: str
    offered: Mapping[str, Sequence[str]]
    """Sharding type to compute kernels."""
    unique_shares: Mapping[str, float]
    """Feature to the share of a batch's samples that it is looked up with, where not all."""
    kernels: list[str] | None
    """The kernels that exist on the device, where its sharder offers others too; None where it
    offers no others."""
    on_demand: frozenset[str]
    """The sharding types that TorchRec itself chooses only if they are asked for."""


def parameter_constraints(
    model: nn.Module,
    wanted: Mapping[str, TableConstraint],
    sharders: Sequence[ModuleSharder[nn.Module]],
    device: str,
    batch_size: int,
    where: str = "sharding.constraints",
    *,
    within_nodes: bool = True,
    may_be_dense: Collection[str] = (),
) -> dict[str, ParameterConstraints]:
    """The constraints that `wanted` names for each table by name or glob (the last that fits
    counts), as TorchRec's.

    `where` is their path in registry.yaml. Unless `wanted` asks for it, a table is not sharded as
    TorchRec offers only on demand; not among the ranks of a node, unless `within_nodes`; and not
    data-parallel, unless it is named in `may_be_dense` or has the dense kernel, which no other
    type has. Features that an adapted model looks up with unique samples count as many samples.
    `RegistryError` where it names no table, or asks for what TorchRec does not offer;
    `CapabilityError` where a sharder offers nothing on the device.
    """
    from torchrec.distributed.planner.types import ParameterConstraints

    tables = list(_tables(model, sharders, device))
    check_patterns(wanted, [table.name for table in tables], kind="table", where=where)
    constraints = {}
    for table in tables:
        fits = fitting(table.name, wanted)
        own = wanted[fits[-1]] if fits else TableConstraint()
        here = f"{where}.{fits[-1]}" if fits else where
        left = {*table.on_demand, *(() if within_nodes else ("table_row_wise",))}
        if table.name not in may_be_dense and "dense" not in own.compute_kernels:
            left.add("data_parallel")  # the dense optimizer would step it
        constraints[table.name] = ParameterConstraints(
            sharding_types=_kinds(table, own, here, left),
            compute_kernels=list(own.compute_kernels) or table.kernels,
            min_partition=own.min_partition,
            cache_params=_cache_params(own),
            **_pooling_factors(table, own, here),
            **_batch_sizes(table, own, batch_size),
        )
    return constraints


def _tables(
    model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]], device: str
) -> Iterator[_Table]:
    from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

    for _, module, sharder in sharded_modules(model, sharders):
        features, sequences = _features(module)
        processed = isinstance(module, FeatureProcessedEmbeddingBagCollection)
        every = [
            k
            for kind in sharder.sharding_types(device)
            for k in sharder.compute_kernels(kind, device)
        ]
        # TorchRec's sharders of managed collision offer CUDA's kernels on the CPU, too.
        there = [
            kernel for kernel in dict.fromkeys(every) if device != "cpu" or kernel not in ON_CUDA
        ]
        offered = {
            kind: [k for k in sharder.compute_kernels(kind, device) if k in there]
            for kind in sharder.sharding_types(device)
            # On the CPU fbgemm's dense kernel pools a sequence: a wrong shape.
            if not sequences or device != "cpu" or kind != "data_parallel"
        }
        if not offered:
            tables = listed(sharder.shardable_parameters(module), kind="table")
            raise CapabilityError(
                f"{type(module).__name__} with {tables}: its sharder, {type(sharder).__name__}, "
                f"offers no sharding type on {device}, so no planner can place it there, not even "
                "TorchRec's own. Plan for another device (topology.device: cuda), give the planner "
                f"a sharder whose `sharding_types` have one for {device}, or train the model "
                "without it."
            )
        for name in sharder.shardable_parameters(module):
            yield _Table(
                name=name,
                features=features.get(name, ()),
                module=type(module).__name__.removeprefix("Dedup"),
                offered=offered,
                unique_shares=getattr(module, "unique_shares", {}),
                kernels=there if len(there) < len(set(every)) else None,
                on_demand=ON_DEMAND | BY_ROWS if processed else ON_DEMAND,
            )


def _features(module: nn.Module) -> tuple[Mapping[str, Sequence[str]], bool]:
    """The features of each table of the collection that a module is, or holds, and whether that is
    one of sequences."""
    from torchrec.modules.embedding_modules import EmbeddingCollection

    for _, part, configs in embedding_collections(module):
        features = {one.name: one.feature_names for one in configs}
        return features, isinstance(part, EmbeddingCollection)
    return {}, False


def _kinds(table: _Table, wanted: TableConstraint, where: str, left: Collection[str]) -> list[str]:
    """The sharding types that are wanted, and offered with a wanted kernel; where no type is
    wanted, all but those in `left`."""
    kinds = wanted.sharding_types or [kind for kind in table.offered if kind not in left]
    kernels = set(wanted.compute_kernels)
    found = [
        kind
        for kind in kinds
        if kind in table.offered and (not kernels or kernels & set(table.offered[kind]))
    ]
    if not found:
        offers = ", ".join(f"{kind} ({', '.join(k)})" for kind, k in table.offered.items())
        raise RegistryError(
            f"{where}: for table {table.name!r}, of the model's {table.module}, TorchRec offers no "
            f"such sharding type and kernel here. Choose from: {offers}."
        )
    return found


def _cache_params(wanted: TableConstraint) -> CacheParams | None:
    from torchrec.distributed.types import CacheAlgorithm, CacheParams

    if wanted.load_factor is None and wanted.cache_algorithm is None:
        return None
    algorithm = wanted.cache_algorithm
    return CacheParams(
        algorithm=None if algorithm is None else CacheAlgorithm[algorithm.upper()],
        load_factor=wanted.load_factor,
    )


def _pooling_factors(table: _Table, wanted: TableConstraint, where: str) -> dict[str, list[float]]:
    factors = list(wanted.pooling_factors)
    if factors and len(factors) != len(table.features):
        raise RegistryError(
            f"{where}: pooling_factors are {len(factors)}, but table {table.name!r} serves "
            f"{len(table.features)}: give one for each of {', '.join(table.features)}."
        )
    return {"pooling_factors": factors} if factors else {}


def _batch_sizes(table: _Table, wanted: TableConstraint, batch_size: int) -> dict[str, list[int]]:
    """Samples per input: one number for each feature, or their mean where TorchRec takes a table as
    one input."""
    shares = [table.unique_shares.get(feature, 1.0) for feature in table.features]
    # The features of unknown kinds of collections are not known.
    if min(shares, default=1.0) == 1:
        return {}
    inputs = shares if wanted.pooling_factors else [sum(shares) / len(shares)]
    return {"batch_sizes": [max(1, round(share * batch_size)) for share in inputs]}
