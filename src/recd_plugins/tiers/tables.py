"""Tables alike, whose hot rows lie in the same tiers, travel in one exchange and update as one.

TorchRec's fused optimizer updates these tables; its arithmetic is repeated here for their replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torchrec.distributed.types import ParameterSharding, ShardedModule
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from recd_plugins.compat.torchrec import fused_arithmetic, table_feature_names
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.tier_plan import Coalesce, TierPlan
from recd_plugins.tiers.home.table import HomeTable, home_tables

__all__ = [
    "OptimizerKind",
    "RowOptimizer",
    "TableFeature",
    "TableGroup",
    "arrange",
    "check_rounding",
    "check_rows",
]

OptimizerKind = Literal["sgd", "adagrad", "rowwise_adagrad"]

KINDS: dict[str, OptimizerKind] = {
    "EXACT_SGD": "sgd",
    "EXACT_ADAGRAD": "adagrad",
    "EXACT_ROWWISE_ADAGRAD": "rowwise_adagrad",
}


@dataclass(frozen=True)
class RowOptimizer:
    """fbgemm's arithmetic: updates rows w [n, D] by their gradients g [n, D], each by itself.

    sgd               w <- w - lr g
    adagrad           s <- s + g²,          w <- w - lr g / (sqrt(s) + eps),   s [n, D]
    rowwise_adagrad   s <- s + mean_d(g²),  w <- w - lr g / (sqrt(s) + eps),   s [n, 1]
    """

    kind: OptimizerKind
    eps: float

    def empty_state(self, rows: Tensor) -> Tensor:
        """Room for the state of `rows` [n, D]: [n, D], [n, 1] or [n, 0], float32."""
        width = {"sgd": 0, "adagrad": rows.shape[1], "rowwise_adagrad": 1}[self.kind]
        return torch.zeros(len(rows), width, device=rows.device)

    def step(
        self,
        rows: Tensor,
        state: Tensor,
        gradients: Tensor,
        learning_rate: float,
        table_type: torch.dtype = torch.float32,
    ) -> None:
        """Update `rows` and their `state` [n, 0 | 1 | D] in place, all float32.

        On the CPU, fbgemm rounds the steps of SGD and Adagrad to the table's type, then the rows.
        """
        match self.kind:
            case "sgd" if table_type == torch.float32:
                rows.sub_(gradients, alpha=learning_rate)
                return
            case "sgd":
                step = gradients * learning_rate
            case "adagrad":
                state.addcmul_(gradients, gradients)
                step = gradients * (learning_rate / (state.sqrt() + self.eps))
            case "rowwise_adagrad":
                state += gradients.square().mean(dim=1, keepdim=True)
                step = gradients * (learning_rate / (state.sqrt() + self.eps))
        if self.kind != "rowwise_adagrad" and rows.device.type == "cpu":
            step = step.to(table_type)
        rows.sub_(step)


@dataclass(frozen=True)
class TableFeature:
    """One feature of one table."""

    name: str
    """The output's name: `feature`, or `feature@table` where tables share a feature."""
    feature: str
    table: str


@dataclass(eq=False)
class TableGroup:
    """Row-wise tables of one dimension, type, optimizer and way of coalescing."""

    tables: tuple[str, ...]
    num_rows: tuple[int, ...]
    homes: tuple[HomeTable, ...]
    features: tuple[TableFeature, ...]
    """The features of all these tables, table by table."""
    coalesce: Coalesce
    arithmetic: RowOptimizer
    optimizer: KeyedOptimizer
    """TorchRec's optimizer of these tables."""
    learning_rate: float = 0.0

    def __post_init__(self) -> None:
        self.take_learning_rate()

    @property
    def like(self) -> Tensor:
        """[0, D] of the tables' type, on their device."""
        return self.homes[0].rows[:0]

    @property
    def table_of_feature(self) -> tuple[int, ...]:
        return tuple(self.tables.index(one.table) for one in self.features)

    def take_learning_rate(self, rate: float | None = None) -> None:
        """Step by this rate, or by that of the optimizer's first group, as TorchRec's kernels."""
        first = next(iter(self.optimizer.param_groups))
        self.learning_rate = float(first["lr"]) if rate is None else rate


def arrange(
    sharded: ShardedModule[Any, Any, Any, Any],
    configs: Sequence[BaseEmbeddingConfig],
    optimizer: CombinedOptimizer,
    shardings: Mapping[str, ParameterSharding],
    plan: TierPlan,
) -> tuple[list[TableGroup], list[TableFeature]]:
    """The groups of the tables that the plan names, and the features of all the other tables."""
    every = _features(sharded, configs)
    by_name = {config.name: config for config in configs}
    groups: list[TableGroup] = []
    for _, kernel in optimizer.optimizers:
        homes = dict(_homes(kernel, shardings, plan))
        alike: dict[tuple[int, Coalesce], list[str]] = {}
        for name in homes:
            kind = by_name[name].embedding_dim, plan.tables[name].coalesce
            alike.setdefault(kind, []).append(name)
        groups += [
            TableGroup(
                tables=tuple(names),
                num_rows=tuple(by_name[name].num_embeddings for name in names),
                homes=tuple(homes[name] for name in names),
                features=tuple(one for name in names for one in every if one.table == name),
                coalesce=coalesce,
                arithmetic=_arithmetic(kernel, names),
                optimizer=kernel,
            )
            for (_, coalesce), names in alike.items()
        ]
    for group in groups:
        check_rows(group, plan)
        _, arguments = fused_arithmetic(group.optimizer)
        check_rounding(group.tables, group.like, stochastic=arguments.stochastic_rounding)
    tiered = {name for group in groups for name in group.tables}
    return groups, [one for one in every if one.table not in tiered]


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
    planned = [key.split(".")[1] for key in kernel.params if key.split(".")[1] in plan.tables]
    for name in planned:
        if shardings[name].sharding_type != "row_wise":
            raise CapabilityError(
                f"tiers: table {name!r} has a tier plan, but TorchRec's plan shards it "
                f"{shardings[name].sharding_type}. Only row-wise tables have replicas: shard it "
                "row_wise, or leave it out of the tier plan."
            )
    if not planned:
        return []
    _check_every_rank_has_rows(kernel, planned)
    return [(name, home) for name, home in home_tables(kernel) if name in planned]


def _check_every_rank_has_rows(kernel: KeyedOptimizer, planned: Sequence[str]) -> None:
    """Refuse tables of which a rank has no row at all, on all ranks alike.

    fbgemm looks nothing up in a kernel without rows: that rank would fail, and the others wait.
    """
    rows: dict[int, int] = {}
    for weight in kernel.params.values():
        for shard in weight.metadata().shards_metadata:
            rank = shard.placement.rank()
            rows[rank] = rows.get(rank, 0) + shard.shard_sizes[0]
    if without := [rank for rank, count in rows.items() if not count]:
        served = len(rows) - len(without)
        raise CapabilityError(
            f"tiers: of {', '.join(planned)}, rank {without[0]} would have no row, and fbgemm "
            f"cannot look up in none: row-wise, these tables have rows on {served} of {len(rows)} "
            "ranks. Leave them out of the tier plan and shard them table_wise, or "
            "give them more rows."
        )


def _arithmetic(kernel: KeyedOptimizer, tables: Sequence[str]) -> RowOptimizer:
    name, arguments = fused_arithmetic(kernel)
    extras = [
        option
        for option in ("gradient_clipping", "max_norm", "weight_decay", "weight_norm_coefficient")
        if getattr(arguments, option)
    ]
    if name not in KINDS or extras:
        raise CapabilityError(
            f"tiers: tables {', '.join(tables)} are updated by fbgemm's {name}"
            f"{' with ' + ', '.join(extras) if extras else ''}, which replicas cannot repeat. Use "
            f"one of {', '.join(KINDS.values())} without them, or leave these tables out of the "
            "tier plan."
        )
    return RowOptimizer(KINDS[name], arguments.eps)


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
                    f"{num_rows}. Plan anew for this model."
                )
