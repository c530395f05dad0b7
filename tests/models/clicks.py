"""What the tests of models share: a model to build on any rank, clicks to train on, a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_dlrm import recd_model, recd_pooling
from recd_dlrm.models.dlrm import DlrmConfig
from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.slots import Context, PoolingFactory
from recd_plugins.testing.arrange import Arranged
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

CPU = torch.device("cpu")
MODELS = {record.name: record for record in recd_model()}
POOLINGS = {record.name: record for record in recd_pooling()}
LENGTHS: Mapping[str, tuple[int, int]] = {"history": (0, 9), "item": (1, 1)}
"""The fewest and the most ids of a sample; (0, 3) for a feature not named."""


def pooling(names: Mapping[str, str]) -> dict[str, PoolingFactory]:
    """Feature or glob to what the record of a name builds with its defaults."""
    return {
        feature: POOLINGS[name].build(POOLINGS[name].config(), Context())
        for feature, name in names.items()
    }


@dataclass(frozen=True)
class Build:
    """A model, tables on the meta device; it travels to ranks."""

    model: str
    schema: Schema
    config: DlrmConfig
    pooling: Mapping[str, str] = field(default_factory=dict)

    def __call__(self) -> nn.Module:
        torch.manual_seed(0)
        context = Context(schema=self.schema, neighbours={"pooling": pooling(self.pooling)})
        return MODELS[self.model].build(self.config, context)

    def on_cpu(self) -> nn.Module:
        """The same model with its tables there, filled from seed 0."""
        model = self()
        initialisers = table_initialisers(model)
        for module in model.modules():
            if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
                module.to_empty(device=CPU)
        initialise_tables(model, initialisers, seed=0)
        return model


def clicks(
    schema: Schema, samples: int, *, seed: int = 0, lengths: Mapping[str, tuple[int, int]] = LENGTHS
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


@dataclass(frozen=True)
class Mixed:
    """Collections row-wise; bags table-wise from the last rank to the first.

    So the bags' features come in another order than unsharded.
    """

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        bags = EmbeddingBagCollectionSharder(fused_params=optimizer.fused_params())
        sequences = EmbeddingCollectionSharder(fused_params=optimizer.fused_params())
        ranks = dist.get_world_size()
        plan = {}
        for path, module in model.named_modules():
            if isinstance(module, EmbeddingCollection):
                tables = [config.name for config in module.embedding_configs()]
                by_row = dict.fromkeys(tables, row_wise(compute_kernel="fused"))
                plan[path] = construct_module_sharding_plan(
                    module, by_row, sharder=sequences, device_type="cpu"
                )
            elif isinstance(module, EmbeddingBagCollection):
                whole = {
                    config.name: table_wise(rank=(-1 - index) % ranks, compute_kernel="fused")
                    for index, config in enumerate(module.embedding_bag_configs())
                }
                plan[path] = construct_module_sharding_plan(
                    module, whole, sharder=bags, device_type="cpu"
                )
        return Arranged(model, ShardingPlan(plan=plan), [bags, sequences])


@dataclass(frozen=True)
class Run:
    """What one rank saw of a training."""

    losses: list[float]
    pipelined: list[str]
    """The sharded modules whose input TorchRec's pipeline sends ahead."""
    keys: list[str]
    """The order in which the sharded bags gave their features."""


def train(build: Build, batches: list[Batch], *, steps: int, lr: float) -> Run:
    """On a rank: SGD steps on `batches[rank]` through DMP and TrainPipelineSparseDist."""
    model = build()
    initialisers = table_initialisers(model)
    arranged = Mixed()(model, OptimizerSettings(tables="sgd", tables_lr=lr))
    sharded = DistributedModelParallel(
        arranged.model, device=CPU, plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(sharded, initialisers, seed=0)
    keys: list[str] = []
    for module in sharded.modules():
        if isinstance(module, ShardedEmbeddingBagCollection):
            module.register_forward_hook(lambda _, __, vectors: keys.extend(vectors.keys()))
    dense = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    pipeline = TrainPipelineSparseDist(sharded, torch.optim.SGD(dense.values(), lr), CPU)
    feed = iter([batches[dist.get_rank()]] * steps)
    losses = [pipeline.progress(feed)[0].item() for _ in range(steps)]
    names = [module.forward.name for module in pipeline._pipelined_modules]
    return Run(losses, names, keys[: len(keys) // steps])
