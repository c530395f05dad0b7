"""Trainers that nobody wrote: models, data, loops and registries that are drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from foreign import CPU, RowWiseBags, Summed
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DataParallelWrapper
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor
from torchrec.streamable import Pipelineable

import recd_plugins as rp
from recd_plugins.planning.planner_bases import Retiers
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.trained import gather_table
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

__all__ = [
    "DENSE",
    "DrawnBatch",
    "DrawnTrainer",
    "Job",
    "Loop",
    "Samples",
    "Side",
    "assembled",
    "draw_groups",
    "draw_registry",
    "evaluate",
    "train",
]

Kind = Literal["rows", "sums", "means", "scored"]
"""What a collection makes of ids: rows one by one, sums, means, or sums weighted by scores."""
Loop = Literal["loop", "accumulating", "TrainPipelineBase", "TrainPipelineSparseDist"]
Side = Literal["plain", "ours"]

LENGTHS: Mapping[str, Callable[[np.random.Generator], int]] = {
    "none": lambda draw: 0,
    "one": lambda draw: 1,
    "seldom one": lambda draw: int(draw.random() < 0.3),
    "few": lambda draw: int(draw.integers(0, 4)),
    "many": lambda draw: int(draw.integers(0, 20)),
}
OPTIMIZERS: Mapping[str, tuple[type[torch.optim.Optimizer], EmbOptimType, dict[str, float]]] = {
    "sgd": (torch.optim.SGD, EmbOptimType.EXACT_SGD, {}),
    "adagrad": (torch.optim.Adagrad, EmbOptimType.EXACT_ADAGRAD, {"eps": 1e-4}),
    "row-wise adagrad": (RowWiseAdagrad, EmbOptimType.EXACT_ROWWISE_ADAGRAD, {"eps": 1e-4}),
}
DENSE: Mapping[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-3),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, eps=1e-3),
}
RATE = 0.1


@dataclass(frozen=True, kw_only=True)
class Feature:
    name: str
    lengths: str
    """One of `LENGTHS`."""
    skew: float
    repeats: bool
    """Whether the samples of a session have the same ids."""


@dataclass(frozen=True, kw_only=True)
class Table:
    name: str
    num_rows: int
    dim: int
    features: tuple[Feature, ...]


@dataclass(frozen=True, kw_only=True)
class Collection:
    kind: Kind
    optimizer: str
    tables: tuple[Table, ...]
    read: str
    """One of `READS`, or of `READS_OF_ROWS`: how the model reads what it makes."""

    @property
    def columns(self) -> dict[str, int]:
        """The width of what each feature becomes."""
        return {feature.name: one.dim for one in self.tables for feature in one.features}

    def module(self) -> nn.Module:
        meta = torch.device("meta")
        common = [
            {
                "name": one.name,
                "embedding_dim": one.dim,
                "num_embeddings": one.num_rows,
                "feature_names": [feature.name for feature in one.features],
            }
            for one in self.tables
        ]
        if self.kind == "rows":
            return EmbeddingCollection([EmbeddingConfig(**one) for one in common], device=meta)
        pooling = PoolingType.MEAN if self.kind == "means" else PoolingType.SUM
        configs = [EmbeddingBagConfig(**one, pooling=pooling) for one in common]
        return EmbeddingBagCollection(configs, is_weighted=self.kind == "scored", device=meta)


@dataclass(frozen=True, kw_only=True)
class DrawnTrainer:
    """A trainer, and what it has of a registry."""

    seed: int
    world_size: int
    collections: tuple[Collection, ...]
    batch_size: int
    steps: int
    samples_per_session: int
    clustered: bool
    """Whether the samples of a session follow each other."""
    ids: torch.dtype
    shuffles_keys: bool
    loop: Loop
    fused: bool
    """Whether sharders, rather than parameters, name the tables' optimizer: that of the first
    collection."""
    clips: float | None
    bags: Literal["row-wise", "table-wise", "any"]
    """How the trainer's own planner may have the tables of bags."""
    between: tuple[str, ...]
    """What it does behind each step."""
    registry: Mapping[str, Any]
    dense: str = "sgd"
    """One of `DENSE`."""

    @classmethod
    def of(cls, seed: int) -> DrawnTrainer:
        draw = random.Random(seed)
        collections = tuple(_collections(draw))
        fused = draw.random() < 0.3
        groups = draw_groups(draw, collections) if draw.random() < 0.5 else []
        world_size = draw.choice([2, 2, 2, 3, 4])
        return cls(
            seed=seed,
            world_size=world_size,
            collections=collections,
            batch_size=draw.choice([3, 6, 8, 16]),
            steps=draw.choice([3, 5]),
            samples_per_session=draw.choice([1, 2, 4, 8]),
            clustered=draw.random() < 0.7,
            ids=draw.choice([torch.int64, torch.int64, torch.int32]),
            shuffles_keys=draw.random() < 0.5,
            loop=draw.choice(
                ["loop", "accumulating", "TrainPipelineBase", "TrainPipelineSparseDist"]
            ),
            fused=fused,
            # No kernel could clip the gradients of samples where they come summed.
            clips=draw.choice([None, 0.02]) if fused and not groups else None,
            bags=draw.choice(["row-wise", "row-wise", "table-wise", "any"]),
            between=tuple(draw.choice(["", "", "evaluate", "state", "reload"]) for _ in range(5)),
            registry=draw_registry(draw, groups, world_size),
        )

    @property
    def features(self) -> dict[str, tuple[Collection, Table, Feature]]:
        return {
            feature.name: (collection, table, feature)
            for collection in self.collections
            for table in collection.tables
            for feature in table.features
        }

    def keys(self, *, scored: bool) -> list[str]:
        """The keys of the KJT with scores, or of the other."""
        found = [
            name for name, (one, _, _) in self.features.items() if (one.kind == "scored") == scored
        ]
        if self.shuffles_keys:
            random.Random(self.seed).shuffle(found)
        return found


def _collections(draw: random.Random) -> Iterator[Collection]:
    number = 0
    kinds: list[Kind] = ["rows", "sums", "means", "scored"]
    for kind in draw.sample(kinds, draw.randint(1, 3)):
        tables = []
        dim = draw.choice([4, 8, 12, 16])
        for _ in range(draw.randint(1, 2)):
            features = tuple(
                Feature(
                    name=f"f{number}_{place}",
                    lengths=draw.choice([*LENGTHS]),
                    skew=draw.choice([0.0, 0.8, 1.2, 2.0]),
                    repeats=draw.random() < 0.5,
                )
                for place in range(draw.choice([1, 1, 2, 3]))
            )
            tables.append(
                Table(
                    name=f"t{number}",
                    num_rows=round(2 ** draw.uniform(4, 9)),
                    dim=dim if kind == "rows" else draw.choice([4, 8, 12, 16]),
                    features=features,
                )
            )
            number += 1
        yield Collection(
            kind=kind,
            optimizer=draw.choice([*OPTIMIZERS]),
            tables=tuple(tables),
            read=draw.choice([*(READS_OF_ROWS if kind == "rows" else READS)]),
        )


def draw_groups(draw: random.Random, collections: Sequence[Collection]) -> list[list[str]]:
    """Some of the features that repeat, in groups; of those without scores."""
    left = [
        feature.name
        for one in collections
        for table in one.tables
        for feature in table.features
        if feature.repeats and one.kind != "scored"
    ]
    draw.shuffle(left)
    groups = []
    while left:
        size = draw.randint(1, 3)
        groups.append(left[:size])
        left = left[size:]
    return groups[: draw.choice([1, 10])]


def draw_registry(
    draw: random.Random, groups: list[list[str]], world_size: int
) -> Mapping[str, Any]:
    goal = draw.choice(["auto", "auto", "min_communication", "memory_neutral", "budget"])
    sharding: dict[str, Any] = {
        "use": "flexshard",
        "goal": goal,
        "profile_batches": draw.choice([1, 2, 50]),
        "others": {"use": "torchrec", "search": "greedy"},
    }
    if goal in ("auto", "budget"):
        sharding["budget_gb"] = draw.choice([1e-6, 1e-5, 1])
    if goal != "auto":
        sharding |= {
            "coalesce": draw.choice(["none", "rank", "node"]),
            "tiers": draw.choice([2, 3]),
        }
        if sharding["coalesce"] != "none" and draw.random() < 0.6:
            sharding["tables"] = ["t*"]  # those of bags too
    found: dict[str, Any] = {
        "plugins": ["recd_dedup", "recd_flexshard", "recd_scars"],
        "sharding": sharding,
        "topology": {
            "ranks_per_node": draw.choice([n for n in (1, 2, 3, 4) if world_size % n == 0]),
            "inter_node_gbps": draw.choice([0.005, 0.02, 0.5]),
            "intra_node_gbps": draw.choice([1.0, 5.0]),
        },
    }
    if groups:
        found["dedup"] = {"use": "exact", "groups": groups}
    cache = draw.choice(["", "", "plan", "hit_rate"])
    if cache == "plan":
        found["cache"] = {"use": "scars", "size": "plan", "window": 2}
    if cache == "hit_rate":
        found["sharding"] = sharding["others"]
        found["cache"] = {
            "use": "scars",
            "size": "hit_rate",
            "hit_rate": draw.choice([0.3, 0.9, 1.0]),
            "coalesce": draw.choice(["none", "rank", "node"]),
            "window": draw.choice([2, 4]),
        }
    return found


@dataclass
class DrawnBatch(Pipelineable):
    """B samples: which they are, their labels, and one KJT or two."""

    samples: Tensor
    labels: Tensor
    sparse: KeyedJaggedTensor | SparseFeatures | None
    scored: KeyedJaggedTensor | None

    def to(self, device: torch.device, non_blocking: bool = False) -> DrawnBatch:
        moved = (one.to(device=device, non_blocking=non_blocking) for one in self._parts.values())
        return replace(self, **dict(zip(self._parts, moved, strict=True)))

    def record_stream(self, stream: torch.Stream) -> None:
        for one in self._parts.values():
            one.record_stream(stream)

    def pin_memory(self) -> DrawnBatch:
        return self

    @property
    def kjts(self) -> list[Any]:
        return [one for one in (self.sparse, self.scored) if one is not None]

    @property
    def _parts(self) -> dict[str, Any]:
        return {name: one for name, one in vars(self).items() if one is not None}


class Samples:
    """All samples that a trainer's ranks read, and batches of them."""

    def __init__(self, trainer: DrawnTrainer) -> None:
        self._trainer = trainer
        draw = np.random.default_rng(trainer.seed)
        accumulated = 2 if trainer.loop == "accumulating" else 1
        self._batches = trainer.steps * accumulated + 1  # one is held out
        count = self._batches * trainer.world_size * trainer.batch_size
        places = np.arange(count) if trainer.clustered else draw.permutation(count)
        sessions = places // trainer.samples_per_session
        self._ids: dict[str, list[np.ndarray]] = {}
        for name, (_, table, feature) in trainer.features.items():
            weights = (1.0 + np.arange(table.num_rows)) ** -feature.skew
            chances, rows = weights / weights.sum(), draw.permutation(table.num_rows)
            lengths = [LENGTHS[feature.lengths](draw) for _ in range(count)]
            own = [draw.choice(rows, length, p=chances) for length in lengths]
            self._ids[name] = [own[n] for n in sessions] if feature.repeats else own
        self._labels = torch.from_numpy(draw.integers(0, 2, count)).float()

    def of_rank(self, rank: int) -> list[DrawnBatch]:
        """The batches that a rank reads; the last is held out."""
        size, world_size = self._trainer.batch_size, self._trainer.world_size
        starts = ((step * world_size + rank) * size for step in range(self._batches))
        return [self.batch(range(start, start + size)) for start in starts]

    def batch(self, samples: Sequence[int]) -> DrawnBatch:
        sparse, scored = (self._kjt(samples, scored=scored) for scored in (False, True))
        numbers = torch.tensor(samples)
        return DrawnBatch(numbers, self._labels[numbers], sparse, scored)

    def _kjt(self, samples: Sequence[int], *, scored: bool) -> KeyedJaggedTensor | None:
        keys, kind = self._trainer.keys(scored=scored), self._trainer.ids
        if not keys:
            return None
        rows = [torch.from_numpy(self._ids[key][n]) for key in keys for n in samples]
        values = torch.cat(rows).to(kind)
        return KeyedJaggedTensor(
            keys=keys,
            values=values,
            lengths=torch.tensor([len(row) for row in rows], dtype=kind),
            weights=0.5 + values.float().cos().abs() if scored else None,
        )


class Over(nn.Module):
    """Reads what collections make in the ways that models do; no tracer looks inside."""

    def __init__(self, trainer: DrawnTrainer) -> None:
        super().__init__()
        self._trainer = trainer
        self.summed = Summed()
        self.each = nn.ModuleDict(
            {
                name: nn.Linear(dim, dim)
                for one in trainer.collections
                for name, dim in one.columns.items()
                if one.read == "transformed"
            }
        )
        width = sum(table.dim for _, table, _ in trainer.features.values())
        self.layers = nn.Sequential(nn.Linear(width + 1, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, found: list[Any], labels: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        columns: list[Tensor] = []
        for drawn, made in zip(self._trainer.collections, found, strict=True):
            reads = READS_OF_ROWS if drawn.kind == "rows" else READS
            columns += reads[drawn.read](self, made, [*drawn.columns])
        product = (columns[0][:, :4] * columns[-1][:, :4]).sum(1, keepdim=True)
        logits = self.layers(torch.cat([*columns, product], 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        return loss, (loss.detach(), logits.detach())


class Net(nn.Module):
    def __init__(self, trainer: DrawnTrainer) -> None:
        super().__init__()
        self._scored = [one.kind == "scored" for one in trainer.collections]
        self.collections = nn.ModuleList(one.module() for one in trainer.collections)
        self.over = Over(trainer)

    def forward(self, batch: DrawnBatch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        found = [
            module(batch.scored if scored else batch.sparse)
            for scored, module in zip(self._scored, self.collections, strict=True)
        ]
        return self.over(found, batch.labels)


Read = Callable[[Over, Any, list[str]], list[Tensor]]
READS: Mapping[str, Read] = {
    "by key": lambda over, bags, keys: [bags[key] for key in keys],
    "as one": lambda over, bags, keys: [_by_key(bags)[key] for key in keys],
    "as a dict": lambda over, bags, keys: [bags.to_dict()[key] for key in keys],
    "regrouped": lambda over, bags, keys: KeyedTensor.regroup([bags], [keys[:1], keys])[1:],
    "transformed": lambda over, bags, keys: [over.each[key](bags[key]) for key in keys],
}


def _by_key(bags: KeyedTensor) -> dict[str, Tensor]:
    """Cut out of all bags together, whose order is the plan's."""
    columns = bags.values().split(bags.length_per_key(), 1)
    return dict(zip(bags.keys(), columns, strict=True))


READS_OF_ROWS: Mapping[str, Read] = {
    "summed": lambda over, rows, keys: [
        over.summed(rows[key].values(), rows[key].lengths()) for key in keys
    ],
    "padded": lambda over, rows, keys: [rows[key].to_padded_dense(8).tanh().sum(1) for key in keys],
    "transformed": lambda over, rows, keys: [
        over.summed(over.each[key](rows[key].values()).tanh(), rows[key].lengths()) for key in keys
    ],
    "of each sample": lambda over, rows, keys: [
        torch.stack([one.sum(0) for one in rows[key].to_dense()]) for key in keys
    ],
}


@dataclass
class Job:
    """A trainer's model, its loader, and what makes its batches the model's; once the model is
    sharded, the optimizer of all."""

    model: Any
    loader: Any
    convert: Callable[[DrawnBatch], DrawnBatch] = lambda batch: batch
    stack: rp.Stack | None = None
    optimizer: KeyedOptimizer | None = None


def assembled(
    trainer: DrawnTrainer,
    side: Side,
    batches: list[DrawnBatch],
    wrapper: DataParallelWrapper | None = None,
) -> Job:
    """The `wrapper` of the dense part is by default TorchRec's own."""
    torch.manual_seed(0)
    net: nn.Module = Net(trainer)
    initialisers = table_initialisers(net)
    for drawn, module in zip(trainer.collections, net.collections, strict=True):
        if not trainer.fused:
            kind, _, options = OPTIMIZERS[drawn.optimizer]
            # A mapping each, for TorchRec writes into the one that it is given.
            apply_optimizer_in_backward(kind, module.parameters(), {"lr": RATE, **options})
    by_rows = side == "plain" or trainer.bags == "row-wise"
    bags = RowWiseBags if by_rows else EmbeddingBagCollectionSharder
    sharders: list[Any] = [bags(_fused(trainer)), EmbeddingCollectionSharder(_fused(trainer))]
    if side == "plain":
        plan = BySharding("row_wise")(net, OptimizerSettings()).plan
        job = Job(net, batches)
    else:
        job = _ours(trainer, net, batches)
        plan = job.stack.plan(
            job.model,
            batches=job.loader,
            features=lambda batch: batch.kjts,
            sharders=sharders,
            constraints=_constraints(trainer),
        )
        job.loader = job.stack.order(job.loader, features=lambda batch: batch.kjts)
        sharders = job.stack.sharders()
    job.model = DistributedModelParallel(
        job.model, device=CPU, plan=plan, sharders=sharders, data_parallel_wrapper=wrapper
    )
    initialise_tables(job.model, initialisers, 0)
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(job.model.named_parameters())),
        DENSE[trainer.dense],
    )
    job.optimizer = CombinedOptimizer([job.model.fused_optimizer, dense])
    return job


def _ours(trainer: DrawnTrainer, net: nn.Module, batches: list[DrawnBatch]) -> Job:
    stack = rp.load(trainer.registry)
    if "dedup" not in trainer.registry:
        return Job(net, batches, stack=stack)
    convert = stack.converting(features=lambda batch: batch.sparse)
    net = stack.adapt(net, poolings=["over.summed"])
    return Job(net, [*map(convert, batches)], convert, stack)


def _fused(trainer: DrawnTrainer) -> dict[str, Any]:
    """The params of a sharder, if these name the tables' optimizer."""
    if not trainer.fused:
        return {}
    _, kind, options = OPTIMIZERS[trainer.collections[0].optimizer]
    found = {"optimizer": kind, "learning_rate": RATE, **options}
    if trainer.clips is not None:
        found |= {"gradient_clipping": True, "max_gradient": trainer.clips}
    return found


def _constraints(trainer: DrawnTrainer) -> dict[str, ParameterConstraints] | None:
    if trainer.bags == "row-wise":
        return None
    types = ["table_wise"] if trainer.bags == "table-wise" else None
    return {
        table.name: ParameterConstraints(
            sharding_types=None if collection.kind == "rows" else types,
            compute_kernels=["fused"],
        )
        for collection in trainer.collections
        for table in collection.tables
    }


def train(
    trainer: DrawnTrainer,
    job: Job,
    batches: Sequence[DrawnBatch],
    held_out: DrawnBatch,
    ahead: Sequence[DrawnBatch] = (),
) -> dict[str, Tensor]:
    """Losses, evaluations and all that is trained, from the job's own loop; pipelines may look
    `ahead` at batches that they do not train."""
    losses: list[Tensor] = []
    found: dict[str, Tensor] = {}
    if trainer.loop in ("loop", "accumulating"):
        every = 2 if trainer.loop == "accumulating" else 1
        for number, batch in enumerate(batches):
            if number % every == 0:
                job.optimizer.zero_grad()
            loss, _ = job.model(batch)
            loss.backward()
            losses.append(loss.detach())
            if number % every == every - 1:
                job.optimizer.step()
                found |= _between(trainer, job, number // every, held_out)
    else:
        kinds = {kind.__name__: kind for kind in (TrainPipelineBase, TrainPipelineSparseDist)}
        pipeline = kinds[trainer.loop](job.model, job.optimizer, CPU)
        stream = iter([*batches, *ahead])
        for number, _ in enumerate(batches):
            losses.append(pipeline.progress(stream)[0])
            # The model's forward is the pipeline's, which has batches under way.
            if trainer.between[number] != "evaluate":
                found |= _between(trainer, job, number, held_out)
    found["losses"] = torch.stack(losses)
    return found | {name: gather_table(value) for name, value in job.model.state_dict().items()}


def evaluate(job: Job, held_out: DrawnBatch) -> Tensor:
    """The logits of a batch that is held out."""
    job.model.eval()
    with torch.no_grad():
        _, (_, logits) = job.model(held_out)
    job.model.train()
    found: Tensor = logits
    return found


def _between(trainer: DrawnTrainer, job: Job, step: int, held_out: DrawnBatch) -> dict[str, Tensor]:
    """What the trainer does behind a step, and what it sees then."""
    what = trainer.between[step]
    if what == "evaluate":
        return {f"logits behind step {step}": evaluate(job, held_out)}
    if what == "state":
        job.model.state_dict()
        job.optimizer.state_dict()
    if what == "reload":
        job.model.load_state_dict(job.model.state_dict())
    if what == "retier" and job.stack is not None:
        planner, group = job.stack.planner(), dist.group.WORLD
        if isinstance(planner, Retiers):
            planner.retier([held_out], group)
    return {}
