"""Groups of tables that are alike: their hot rows lie in the same tiers, travel in one exchange and
are updated as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.types import ParameterSharding, ShardedModule
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.optim.keyed import KeyedOptimizer

from recd_plugins.compat.fused_kernels import clips_at, fused_arithmetic, leave_clipping, pools
from recd_plugins.compat.torchrec import optimizer_of, table_feature_names, table_of
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TierPlan
from recd_plugins.tiers.home_tables import HomeTable, home_tables
from recd_plugins.tiers.row_optimizer import KINDS, RowOptimizer, check_repeatable

__all__ = [
    "TableFeature",
    "TableGroup",
    "check_rounding",
    "check_rows",
    "group_tables",
    "is_coalesced",
]


@dataclass(frozen=True)
class TableFeature:
    """One feature of one table."""

    name: str
    """The output's name: `feature`, or `feature@table` where tables share a feature."""
    feature: str
    table: str
    max_gradient: float | None = None
    """The bound that the gradients of its output are clipped to on this rank, where TorchRec's
    kernel leaves that to it."""


@dataclass(eq=False)
class TableGroup:
    """Row-wise tables of one dimension, type, optimizer and way of coalescing."""

    tables: tuple[str, ...]
    num_rows: tuple[int, ...]
    homes: tuple[HomeTable, ...]
    features: tuple[TableFeature, ...]
    """The features of all these tables, table by table."""
    coalesce: Coalesce
    optimizer: KeyedOptimizer
    """TorchRec's optimizer of these tables."""
    max_gradient: float | None
    """The bound that the numbers of gradients are clipped to, output by output, before anything
    sums them."""
    decays: bool
    """Whether TorchRec's kernel decays weights where it is set to."""

    @property
    def like(self) -> Tensor:
        """[0, D] of the tables' type, on their device."""
        return self.homes[0].rows[:0]

    @property
    def table_of_feature(self) -> tuple[int, ...]:
        return tuple(self.tables.index(one.table) for one in self.features)

    def row_optimizer(self) -> RowOptimizer:
        """The optimizer that steps the rows by the next forward: TorchRec's kernel as it is now."""
        on_cpu = self.like.device.type == "cpu"
        return RowOptimizer.of(self.optimizer, on_cpu=on_cpu, decays=self.decays)


def group_tables(
    sharded: ShardedModule[Any, Any, Any, Any],
    configs: Sequence[BaseEmbeddingConfig],
    plan: TierPlan,
) -> tuple[list[TableGroup], list[TableFeature]]:
    """The groups of the tables that the plan names, and the features of all the other tables, of a
    module as TorchRec has `sharded` it."""
    shardings = sharded.module_sharding_plan
    _check_row_wise(configs, shardings, plan)
    every = _features(sharded, configs)
    groups = [
        group
        for _, kernel in optimizer_of(sharded).optimizers
        for group in _groups_of(kernel, configs, every, shardings, plan)
    ]
    for group in groups:
        check_rows(group, plan)
        _, arguments = fused_arithmetic(group.optimizer)
        check_rounding(group.tables, group.like, stochastic=arguments.stochastic_rounding)
    tiered = {name for group in groups for name in group.tables}
    clips = dict(_clipped_here(groups))
    return groups, [
        dataclasses.replace(one, max_gradient=clips.get(one.table))
        for one in every
        if one.table not in tiered
    ]


def _groups_of(
    kernel: KeyedOptimizer,
    configs: Sequence[BaseEmbeddingConfig],
    features: Sequence[TableFeature],
    shardings: Mapping[str, ParameterSharding],
    plan: TierPlan,
) -> Iterator[TableGroup]:
    """The planned tables of one kernel, in groups of those that are alike."""
    homes = dict(_homes(kernel, shardings, plan))
    if homes:
        check_repeatable(kernel, list(homes))
    by_name = {config.name: config for config in configs}
    alike: dict[tuple[int, Coalesce, bool], list[str]] = {}
    for name in homes:
        decays = _decays(kernel, homes[name], by_name[name])
        kind = by_name[name].embedding_dim, plan.tables[name].coalesce, decays
        alike.setdefault(kind, []).append(name)
    for (_, coalesce, decays), names in alike.items():
        yield TableGroup(
            tables=tuple(names),
            num_rows=tuple(by_name[name].num_embeddings for name in names),
            homes=tuple(homes[name] for name in names),
            features=tuple(one for name in names for one in features if one.table == name),
            coalesce=coalesce,
            optimizer=kernel,
            max_gradient=clips_at(kernel),
            decays=decays,
        )


def _clipped_here(groups: Sequence[TableGroup]) -> Iterator[tuple[str, float]]:
    """Have kernels leave clipping to the ranks that ask, where these sum gradients first; yield the
    tables of such kernels, with the bound that gradients are clipped to."""
    for group in groups:
        if group.coalesce == "none" or group.max_gradient is None:
            continue
        leave_clipping(group.optimizer)
        for key in group.optimizer.params:
            yield table_of(key), group.max_gradient


def _features(
    sharded: ShardedModule[Any, Any, Any, Any], configs: Sequence[BaseEmbeddingConfig]
) -> list[TableFeature]:
    """Each feature of each table once, in TorchRec's order."""
    tables = {
        name: config.name
        for config in configs
        for feature in config.feature_names
        for name in (feature, f"{feature}@{config.name}")
    }
    features, names = table_feature_names(sharded)
    found = {
        name: TableFeature(name, feature, tables[name])
        for feature, name in zip(features, names, strict=True)
    }
    return list(found.values())


def _homes(
    kernel: KeyedOptimizer, shardings: Mapping[str, ParameterSharding], plan: TierPlan
) -> list[tuple[str, HomeTable]]:
    planned = [name for name in map(table_of, kernel.params) if name in plan.tables]
    if not planned:
        return []
    _check_every_rank_has_rows(kernel, shardings, planned)
    return [(name, home) for name, home in home_tables(kernel) if name in planned]


def _check_row_wise(
    configs: Sequence[BaseEmbeddingConfig],
    shardings: Mapping[str, ParameterSharding],
    plan: TierPlan,
) -> None:
    """Refuse planned tables that TorchRec's plan has otherwise, on all ranks alike: those without a
    part of the table would wait for those that have one."""
    for name in (config.name for config in configs if config.name in plan.tables):
        if shardings[name].sharding_type != "row_wise":
            raise CapabilityError(
                f"tiers: table {name!r} has a tier plan, but TorchRec's plan shards it "
                f"{shardings[name].sharding_type}. Only row-wise tables have replicas. Hand "
                "DistributedModelParallel what stack.plan returned, `plan=plan`; in a plan of your "
                "own, shard the table row_wise, or leave it out of the tier plan."
            )
        if shardings[name].compute_kernel == "dense":
            raise CapabilityError(
                f"tiers: table {name!r} has a tier plan, but TorchRec's plan gives it the dense "
                "kernel, whose rows the dense optimizer steps, but replicas repeat a fused "
                "optimizer. Name "
                'it, as `row_wise(compute_kernel="fused")`, or leave the table out of the tier '
                "plan."
            )


def _check_every_rank_has_rows(
    kernel: KeyedOptimizer, shardings: Mapping[str, ParameterSharding], planned: Sequence[str]
) -> None:
    """Refuse tables of which a rank has no row at all, on all ranks alike.

    fbgemm looks nothing up in a kernel without rows: that rank would fail, and the others wait.
    """
    rows: dict[int, int] = {}
    for key in kernel.params:
        spec: Any = shardings[table_of(key)].sharding_spec
        for shard in spec.shards:
            rank = shard.placement.rank()
            rows[rank] = rows.get(rank, 0) + shard.shard_sizes[0]
    if without := [rank for rank, count in rows.items() if not count]:
        served = len(rows) - len(without)
        raise CapabilityError(
            f"tiers: of {', '.join(planned)}, rank {without[0]} would have no row, and fbgemm "
            f"cannot look up in an empty table: row-wise, these tables have rows on {served} of "
            f"{len(rows)} ranks. Leave them out of the tier plan and shard them table_wise, or "
            "give them more rows."
        )


def _decays(kernel: KeyedOptimizer, home: HomeTable, config: BaseEmbeddingConfig) -> bool:
    """Whether the kernel decays the weights of a table where it is set to.

    On the CPU, fbgemm has a kernel of its own for bags of float32 tables that one feature looks
    up, and that leaves weight decay out.
    """
    name, arguments = fused_arithmetic(kernel)
    if KINDS[name] != "rowwise_adagrad" or not arguments.weight_decay_mode or not pools(kernel):
        return True
    alone = len(config.feature_names) == 1 and home.rows.dtype == torch.float32
    return not (alone and home.rows.device.type == "cpu")


def check_rounding(tables: Sequence[str], like: Tensor, *, stochastic: bool) -> None:
    """`CapabilityError` where fbgemm rounds rows `like` [0, D] at random: replicas round to the
    nearest, and nodes must round alike. On the CPU fbgemm too rounds to the nearest."""
    if stochastic and like.dtype != torch.float32 and like.device.type != "cpu":
        raise CapabilityError(
            f"tiers: tables {', '.join(tables)} are {like.dtype} and rounded stochastically, which "
            "replicas cannot repeat. Give the sharders the fused parameter stochastic_rounding: "
            "false, or leave these tables out of the tier plan."
        )


def check_rows(group: TableGroup, plan: TierPlan) -> None:
    """`RegistryError` unless the tables have the rows that the plan names of them."""
    for name, num_rows in zip(group.tables, group.num_rows, strict=True):
        if name not in plan.tables:
            continue
        for rows in (plan.tables[name].replicated, plan.tables[name].per_node):
            if rows.size and rows.max() >= num_rows:
                raise RegistryError(
                    f"tier plan of table {name!r} names row {rows.max()}, but the table has "
                    f"{num_rows}. Plan again for this model."
                )


def is_coalesced(plan: TierPlan, table: str) -> bool:
    """Whether the plan has ids of the table coalesced; rows of a pooled one then travel, and not
    sums."""
    return table in plan.tables and plan.tables[table].coalesce != "none"
