"""What the tests of tiers train: small tables, tier plans and batches drawn at random."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.planning.prices import router_memory
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arranged, Arrangement, BySharding
from recd_plugins.testing.parity import Bounds, TableOptimizerName
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

ROWS = {"songs": 43, "artists": 15}
"""Rows of the tables: no multiple of any world size, and some for each of eight ranks."""
FEATURES = {"songs": ["heard", "seen"], "artists": ["seen", "liked"]}
"""Two features share a table, and two tables a feature."""
NUM_IDS = {"heard": 43, "seen": 15, "liked": 15}
TABLES_OF = {"heard": ["songs"], "seen": ["songs", "artists"], "liked": ["artists"]}
OUTPUTS = ("heard", "seen@songs", "seen@artists", "liked")
DIM = 8
MEANS = 4e-6
"""Of a collection that takes a mean, row-wise TorchRec divides all bags by their ids plus 1e-6:
gradients are a millionth smaller, and the squares that an optimizer keeps twice that."""

SLOTS = router_memory.SMALL, router_memory.SLOT_AND_NUMBER
"""From which sizes on slots find the rows of a table."""

DrawnTiers = Literal["replicated", "per_node", "both", "none"]

IdsOf = Literal["tiers", "home", "both", "nothing"]
"""Where the rows of a batch are: all in tiers, none, some; or the batch is empty."""


class Sequences(nn.Module):
    """logit = w . [sum of the embeddings of each output] + b, of an EmbeddingCollection."""

    def __init__(self, data_type: DataType = DataType.FP32) -> None:
        super().__init__()
        self.sequences = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=name,
                    embedding_dim=DIM,
                    num_embeddings=rows,
                    feature_names=FEATURES[name],
                    data_type=data_type,
                )
                for name, rows in ROWS.items()
            ],
            device=torch.device("meta"),
        )
        self.sum = _Sum()
        self.over = nn.Linear(DIM * len(OUTPUTS), 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        embedded = self.sequences(batch.features)
        summed = [self.sum(embedded[key]) for key in OUTPUTS]
        logits = self.over(torch.cat(summed, dim=1)).squeeze(1)
        losses = nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels, batch.weights, reduction="sum"
        )
        loss = losses / batch.weights.sum().clamp(min=1)
        return loss, (loss.detach(), logits.detach())


class Bags(nn.Module):
    """The same of an EmbeddingBagCollection: tables of two dimensions, a sum and a mean."""

    def __init__(self, weighted: bool = False, data_type: DataType = DataType.FP32) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=DIM if name == "songs" else 2 * DIM,
                    num_embeddings=rows,
                    feature_names=FEATURES[name],
                    pooling=PoolingType.SUM if name == "songs" else PoolingType.MEAN,
                    data_type=data_type,
                )
                for name, rows in ROWS.items()
            ],
            is_weighted=weighted,
            device=torch.device("meta"),
        )
        self.over = nn.Linear(2 * DIM + 4 * DIM, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pooled = self.bags(batch.features)
        logits = self.over(torch.cat([pooled[key] for key in OUTPUTS], dim=1)).squeeze(1)
        losses = nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels, batch.weights, reduction="sum"
        )
        loss = losses / batch.weights.sum().clamp(min=1)
        return loss, (loss.detach(), logits.detach())


class _Sum(nn.Module):
    """A module, so that TorchRec's tracer does not look inside; and it takes an empty batch."""

    def forward(self, jagged: JaggedTensor) -> Tensor:
        lengths, values = jagged.lengths(), jagged.values()
        sums = values.new_zeros(len(lengths), values.shape[1])
        return sums.index_add(0, torch.repeat_interleave(lengths.long()), values)


@dataclass(frozen=True)
class SomeRows:
    """Of one table of bags rows travel, behind tiers or without; TorchRec sums those of the other
    wherever it has them, behind replicas where its `sums` are row-wise."""

    travels: str
    ranks_per_node: int = 2
    seed: int = 0
    tiers: DrawnTiers = "both"
    coalesce: Coalesce = "rank"
    sums: Literal["table_wise", "column_wise", "row_wise"] = "table_wise"

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        world_size = torch.distributed.get_world_size()
        arranged = BySharding("row_wise")(model, optimizer)
        placed: Any = arranged.plan.plan["bags"]
        placed |= {
            name: one
            for name, one in BySharding(self.sums)(model, optimizer).plan.plan["bags"].items()
            if name != self.travels
        }
        drawn = ByTiers(self.ranks_per_node, self.seed, self.tiers, self.coalesce)
        plan = tier_plan(drawn, world_size // self.ranks_per_node)
        tables = {
            name: one if name == self.travels else dataclasses.replace(one, coalesce="none")
            for name, one in plan.tables.items()
            if name == self.travels or self.sums == "row_wise"
        }
        sharded_tiers = ShardedTiers(dataclasses.replace(plan, tables=tables))
        return arranged._replace(sharders=tier_sharders(sharded_tiers, arranged.sharders))


@dataclass(frozen=True)
class ByTiers:
    """Row-wise TorchRec behind tiers, whose rows are drawn at random."""

    ranks_per_node: int
    seed: int = 0
    tiers: DrawnTiers = "both"
    coalesce: Coalesce = "none"
    chunk_rows: int = 1 << 15
    in_slots: bool = False
    """Whether all tables are taken for huge, so that slots find the rows that have replicas."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        world_size = torch.distributed.get_world_size()
        slots = (0, 0.0) if self.in_slots else SLOTS  # a rank's process has the next test too
        router_memory.SMALL, router_memory.SLOT_AND_NUMBER = slots
        arranged = BySharding("row_wise")(model, optimizer)
        plan = tier_plan(self, world_size // self.ranks_per_node)
        sharded_tiers = ShardedTiers(plan, chunk_rows=self.chunk_rows)
        return arranged._replace(sharders=tier_sharders(sharded_tiers, arranged.sharders))


def sharded(
    arrange: Arrangement,
    make: Callable[[], nn.Module],
    kind: TableOptimizerName = "rowwise_adagrad",
) -> DistributedModelParallel:
    """The model as the job has it, each row by its seed."""
    optimizer = OptimizerSettings(tables=kind, tables_lr=0.1, tables_eps=1e-4)
    torch.manual_seed(0)
    model = make()
    initialisers = table_initialisers(model)
    arranged = arrange(model, optimizer)
    found = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(found, initialisers, 0)
    return found


def sharded_tiers_of(model: DistributedModelParallel) -> ShardedTiers:
    """The tiers of all collections of a model that has some."""
    sharded_tiers: ShardedTiers = model.sharders[0]._sharded
    return sharded_tiers


def tables(model: DistributedModelParallel) -> dict[str, Tensor]:
    """In full, by their names in the state dict."""
    state = model.state_dict()
    return {name: gather_table(state[name]) for name in state if "embedding" in name}


def held(model: DistributedModelParallel) -> dict[str, Any]:
    """What a checkpoint holds."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, states in model.fused_optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{name}/{key}": value for key, value in states.items()}
    return found


def trained(model: DistributedModelParallel) -> dict[str, Tensor]:
    """The tables, and their optimizer's state of this rank's rows."""
    found = tables(model)
    for name, states in model.fused_optimizer.state_dict()["state"].items():
        for key, value in states.items():
            found[f"{name}/{key}"] = value.local_shards()[0].tensor.clone()
    return found


def row_wise_of(
    train: Callable[[Arrangement, AbstractContextManager[object]], dict[str, Tensor]],
    make: Callable[[], nn.Module],
) -> tuple[Mapping[str, Tensor], Bounds]:
    """What a training of the model comes to in row-wise TorchRec; what tiers may be off by."""
    expected, bounds = plain_of(partial(train, BySharding("row_wise")))
    if isinstance(make, type) and issubclass(make, Bags):
        bounds = bounds.plus({name: MEANS * one.abs() for name, one in expected.items()})
    return expected, bounds


def tier_plan(drawn: ByTiers, n_nodes: int) -> TierPlan:
    """Each table's rows dealt out to the tiers and to none, anew for each seed."""
    draw = np.random.default_rng(drawn.seed)
    tables = {}
    for name, rows in ROWS.items():
        order = draw.permutation(rows)
        some, most = np.sort(draw.integers(0, rows, 2))
        plan = TablePlan(
            table=name,
            replicated=order[:some],
            per_node=order[some:most],
            coalesce=drawn.coalesce,
        )
        match drawn.tiers:
            case "replicated":
                plan = dataclasses.replace(plan, per_node=order[:0])
            case "per_node":
                plan = dataclasses.replace(plan, replicated=order[:0])
            case "none":
                plan = dataclasses.replace(plan, replicated=order[:0], per_node=order[:0])
        tables[name] = plan
    return TierPlan(tables=tables, n_nodes=n_nodes, ranks_per_node=drawn.ranks_per_node)


def batch_of(seed: int, batch_size: int, low: float = 0.0, high: float = 1.0) -> Batch:
    """Random samples with ids in [low, high) of each feature's range; its keys in odd order."""
    draw = torch.Generator().manual_seed(seed)
    keys = ["liked", "heard", "seen"]
    lengths = torch.randint(0, 5, (len(keys), batch_size), generator=draw)
    values = [
        torch.randint(int(low * NUM_IDS[key]), int(high * NUM_IDS[key]), (int(n),), generator=draw)
        for key, n in zip(keys, lengths.sum(1), strict=True)
    ]
    return Batch(
        dense=torch.empty(batch_size, 0),
        features=KeyedJaggedTensor(keys=keys, values=torch.cat(values), lengths=lengths.flatten()),
        labels=torch.randint(0, 2, (batch_size,), generator=draw).float(),
        weights=torch.ones(batch_size),
    )


def own_batch(step: int) -> Batch:
    """This rank's batch of a step."""
    return batch_of(step * dist.get_world_size() + dist.get_rank(), 6)


def train_step(model: DistributedModelParallel, number: int) -> None:
    model(own_batch(number))[0].backward()
    model.fused_optimizer.step()


def odd_batches(world_size: int, steps: int = 4, *, empty: bool = True) -> list[Sequence[Batch]]:
    """By step and rank: batches of uneven sizes, some empty, some of low ids or high ones alone.

    Not `empty`, what was is one sample of weight 0: it comes to the same, and can be looked up
    without tiers.
    """
    return [
        [_odd_batch(step, rank, world_size, empty) for rank in range(world_size)]
        for step in range(steps)
    ]


def _odd_batch(step: int, rank: int, world_size: int, empty: bool) -> Batch:
    size = (step * 3 + rank * 5) % 8
    batch = batch_of(
        seed=step * world_size + rank,
        batch_size=size if empty else max(1, size),
        low=0.5 if (step + rank) % 5 == 1 else 0.0,
        high=0.5 if (step + rank) % 5 == 2 else 1.0,
    )
    weights = batch.weights if size else torch.zeros_like(batch.weights)
    return dataclasses.replace(batch, weights=weights)


def filled(batches: Iterable[Sequence[Batch]]) -> list[Sequence[Batch]]:
    """A sample of weight 0 for no samples: it comes to the same, and can be looked up plainly."""
    one = dataclasses.replace(batch_of(0, 1), weights=torch.zeros(1))
    return [[batch if len(batch) else one for batch in step] for step in batches]


def in_every_table(feature: str, rows: Mapping[str, np.ndarray]) -> Tensor:
    """The ids of a feature that are among the `rows` of all tables that look it up."""
    ids = np.arange(NUM_IDS[feature])
    for table in TABLES_OF[feature]:
        ids = np.intersect1d(ids, rows[table])
    return torch.from_numpy(ids)


def confined(batch: Batch, rows: Mapping[str, np.ndarray]) -> Batch:
    """The batch with other ids, of these rows alone; where a feature has none, it has no ids."""
    features = batch.features
    lengths = features.lengths().view(len(features.keys()), -1).clone()
    values = []
    for number, key in enumerate(features.keys()):
        ids = in_every_table(key, rows)
        if len(ids):
            values.append(ids[features[key].values() % len(ids)])
        else:
            lengths[number] = 0
    features = KeyedJaggedTensor(
        keys=features.keys(), values=torch.cat(values), lengths=lengths.flatten()
    )
    return dataclasses.replace(batch, features=features)


def drawn_batches(
    plan: TierPlan, world_size: int, seed: int, steps: int = 4
) -> list[Sequence[Batch]]:
    """By step and rank, anew for each seed: sizes, ids, and where their rows are.

    In every fourth step each kind is beside the others, on ranks that take turns.
    """
    draw = np.random.default_rng(seed)
    kinds: list[IdsOf] = ["tiers", "home", "both", "nothing"]
    tiers = {
        name: np.concatenate([one.replicated, one.per_node]) for name, one in plan.tables.items()
    }
    home = {name: np.setdiff1d(np.arange(ROWS[name]), rows) for name, rows in tiers.items()}
    found = []
    for step in range(steps):
        chosen = draw.choice(kinds, world_size)
        if step % 4 == 3:
            chosen[:4] = draw.permutation(kinds)[:world_size]
            chosen = draw.permutation(chosen)
        batches = []
        for kind in chosen:
            size = 0 if kind == "nothing" else int(draw.integers(1, 9))
            batch = batch_of(int(draw.integers(1 << 31)), size)
            if kind in ("tiers", "home"):
                batch = confined(batch, tiers if kind == "tiers" else home)
            batches.append(batch)
        found.append(batches)
    return found


def ids_of(batch: Batch, plan: TierPlan) -> IdsOf:
    """Looked up in the batch and the plan."""
    hot = [
        np.isin(
            batch.features[key].values(),
            np.concatenate([plan.tables[table].replicated, plan.tables[table].per_node]),
        )
        for key, tables in TABLES_OF.items()
        for table in tables
    ]
    among = np.concatenate(hot)
    if not len(among):
        return "nothing"
    return "tiers" if among.all() else "both" if among.any() else "home"


def all_meet(batches: Sequence[Sequence[Batch]], plan: TierPlan) -> bool:
    """Whether some step has batches of each kind, and sizes differ between ranks."""
    kinds = [{ids_of(batch, plan) for batch in step} for step in batches]
    uneven = any(len({len(batch) for batch in step}) > 1 for step in batches)
    return uneven and {"tiers", "home", "both", "nothing"} in kinds
