"""What the tests of models share: random clicks, and a few steps of SGD, plain or sharded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.sharding_plan import (
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema
from recd_plugins.slots import Context, ModelRecord
from recd_plugins.trainer.tables import initialise_tables, table_initialisers

CPU = torch.device("cpu")
SHAPES: Mapping[str, tuple[int, int]] = {"history": (0, 9), "item": (1, 1)}
"""The fewest and the most ids of a sample, (0, 3) for a feature not named."""


@dataclass(frozen=True)
class Trained:
    """What one rank saw, step by step."""

    losses: list[float]
    pipelined: list[str]
    """The sharded modules whose input TorchRec's pipeline sends ahead."""
    keys: list[str]
    """The order in which the sharded bags, if any, gave their features."""


def clicks(
    schema: Schema, samples: int, *, seed: int = 0, lengths: Mapping[str, tuple[int, int]] = SHAPES
) -> Batch:
    """Random samples whose dense values tell half of the label.

    The KJT's keys come in another order than the schema's features.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high + 1, (count,), generator=generator)

    features = schema.sparse[::-1]
    counts = [draw(*lengths.get(feature.name, (0, 3)), samples) for feature in features]
    ids = [
        draw(0, feature.num_ids - 1, int(count.sum()))
        for feature, count in zip(features, counts, strict=True)
    ]
    dense = torch.randn(samples, len(schema.dense), generator=generator)
    noise = torch.randn(samples, generator=generator)
    return Batch(
        dense=dense,
        features=KeyedJaggedTensor(
            [feature.name for feature in features], torch.cat(ids), lengths=torch.cat(counts)
        ),
        labels=(dense.sum(1) + noise > 0).float(),
        weights=torch.ones(samples),
    )


def part(batch: Batch, rows: Tensor) -> Batch:
    """The samples of a batch at `rows`."""
    jagged = [batch.features[key].to_dense() for key in batch.features.keys()]  # noqa: SIM118
    chosen = [[ids[row] for row in rows.tolist()] for ids in jagged]
    return Batch(
        dense=batch.dense[rows],
        features=KeyedJaggedTensor(
            batch.features.keys(),
            torch.cat([torch.cat(ids) for ids in chosen]),
            lengths=torch.tensor([len(each) for ids in chosen for each in ids]),
        ),
        labels=batch.labels[rows],
        weights=batch.weights[rows],
    )


def build(record: ModelRecord[Any], schema: Schema, options: Any, pooling: Any = None) -> nn.Module:
    torch.manual_seed(0)
    context = Context(schema=schema, neighbours={"pooling": pooling or {}})
    return record.build(options, context)


def on_cpu(model: nn.Module) -> nn.Module:
    """The model with its tables there, filled from seed 0."""
    initialisers = table_initialisers(model)
    for module in model.modules():
        if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            module.to_empty(device=CPU)
    initialise_tables(model, initialisers, seed=0)
    return model


def train_plain(model: nn.Module, batches: list[Batch], lr: float) -> list[float]:
    """The losses of plain PyTorch: SGD on everything."""
    model = on_cpu(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss, _ = model(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_sharded(model: nn.Module, batches: list[Batch], lr: float) -> Trained:
    """This rank's run of DMP and TrainPipelineSparseDist on its own batches.

    Collections go row-wise, bags table-wise from the last rank to the first: so the bags'
    features come in another order than unsharded.
    """
    initialisers = table_initialisers(model)
    sharded = DistributedModelParallel(model, device=CPU, plan=_plan(model), sharders=_sharders(lr))
    initialise_tables(sharded, initialisers, seed=0)
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(sharded.named_parameters())),
        lambda parameters: torch.optim.SGD(parameters, lr),
    )
    optimizer = CombinedOptimizer([sharded.fused_optimizer, dense])
    pipeline = TrainPipelineSparseDist(sharded, optimizer, CPU)
    keys: list[str] = []
    for module in sharded.modules():
        if isinstance(module, ShardedEmbeddingBagCollection):
            module.register_forward_hook(
                lambda _, __, summed: keys.__setitem__(slice(None), summed.keys())
            )
    feed = iter(batches)
    losses = [pipeline.progress(feed)[0].item() for _ in batches]
    names = [module.forward.name for module in pipeline._pipelined_modules]
    return Trained(losses=losses, pipelined=names, keys=keys)


def _sharders(lr: float) -> list[Any]:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    def fused() -> dict[str, Any]:
        return {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": lr}

    return [EmbeddingCollectionSharder(fused()), EmbeddingBagCollectionSharder(fused())]


def _plan(model: nn.Module) -> ShardingPlan:
    collections, bags = _sharders(0.0)
    world_size = dist.get_world_size()
    plan = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingCollection):
            kinds = {
                config.name: row_wise(compute_kernel="fused")
                for config in module.embedding_configs()
            }
            sharder = collections
        elif isinstance(module, EmbeddingBagCollection):
            kinds = {
                config.name: table_wise(rank=(-1 - index) % world_size, compute_kernel="fused")
                for index, config in enumerate(module.embedding_bag_configs())
            }
            sharder = bags
        else:
            continue
        plan[path] = construct_module_sharding_plan(
            module, kinds, sharder, local_size=world_size, world_size=world_size, device_type="cpu"
        )
    return ShardingPlan(plan=plan)
