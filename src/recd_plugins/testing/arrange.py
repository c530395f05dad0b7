"""The arrangement of tables: plain TorchRec with a fixed sharding type or its own planner, or a
registry's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    ParameterShardingGenerator,
    column_wise,
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recd_plugins.data.batch import Batch
from recd_plugins.planning.tables.embedding_collections import embedding_collections
from recd_plugins.registry.settings import OptimizerSettings

__all__ = ["Arranged", "Arrangement", "ByRegistry", "BySharding", "tables_of"]


def as_it_is(batch: Batch) -> Batch:
    """The batch unchanged, for a model that takes plain batches."""
    return batch


class Arranged(NamedTuple):
    """The arguments that DistributedModelParallel needs, and the conversion of each batch."""

    model: nn.Module
    plan: ShardingPlan
    sharders: list[ModuleSharder[nn.Module]]
    convert: Callable[[Batch], Batch] = as_it_is
    """Turns a plain batch into what the model takes."""


class Arrangement(Protocol):
    """Adapts and plans a model over the current process group; it is sent to ranks pickled."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged: ...


@dataclass(frozen=True)
class ByRegistry:
    """A registry's own `adapt`, plan and sharders; only its optimizer is replaced."""

    registry: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The registry for `recd_plugins.load`; an empty one is plain TorchRec with TorchRec's
    planner."""
    batches: Sequence[Sequence[Batch]] | None = None
    """The batches by step and rank, if the registry's planner should count them and its converter
    should convert them. It is then an error if they do not use something that it switches on."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        from recd_plugins.stack import load

        train = {**self.registry.get("train", {}), "optimizer": optimizer.options}
        if self.batches is None:
            stack = load({**self.registry, "train": train})
            model = stack.adapt(model)
            return Arranged(model, stack.plan(model), stack.sharders())
        mine = [step[dist.get_rank()] for step in self.batches]
        stack = load({"strict": True, **self.registry, "train": train})
        model = stack.adapt(model, batches=mine)
        plan = stack.plan(model, batches=mine)
        return Arranged(model, plan, stack.sharders(), stack.converting())


@dataclass(frozen=True)
class BySharding:
    """Plain TorchRec with the same sharding type and the fused kernel for every table."""

    kind: Literal["row_wise", "table_wise", "column_wise"] = "row_wise"
    """Table-wise puts the n-th table on rank n modulo the world size."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        # Sharding mutates the mapping it is given, so each sharder has its own.
        bags = EmbeddingBagCollectionSharder(fused_params=optimizer.fused_params())
        sequences = EmbeddingCollectionSharder(fused_params=optimizer.fused_params())
        plan = {}
        for path, tables in tables_of(model).items():
            module = model.get_submodule(path)
            plan[path] = construct_module_sharding_plan(
                module,
                {table: self._sharding(index) for index, table in enumerate(tables)},
                sharder=bags if isinstance(module, EmbeddingBagCollection) else sequences,
                device_type="cpu",
            )
        return Arranged(model, ShardingPlan(plan=plan), [bags, sequences])

    def _sharding(self, index: int) -> ParameterShardingGenerator:
        world_size = dist.get_world_size()
        match self.kind:
            case "row_wise":
                return row_wise(compute_kernel="fused")
            case "table_wise":
                return table_wise(rank=index % world_size, compute_kernel="fused")
            case "column_wise":
                return column_wise(ranks=list(range(world_size)), compute_kernel="fused")


def tables_of(model: nn.Module) -> dict[str, list[str]]:
    """The names of the tables of each embedding module, by the module's path."""
    return {
        path: [config.name for config in configs]
        for path, _, configs in embedding_collections(model)
    }
