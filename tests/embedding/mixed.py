"""A model and batches with every relation of features and tables, and who trains it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.sharded import with_dedup
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.testing.arrange import Arranged, tables_of

DIM = 16
ROWS = 13
BAGS = {
    "t_profile": ["brands", "topics"],  # two features of one group
    "t_again": ["brands"],  # a feature with two tables, so "brands@t_again"
    "t_region": ["region"],
    "t_shop": ["visited", "shop"],  # deduplicated and not
    "t_seller": ["seller"],
}
SEQUENCES = {
    "t_item": ["history", "item"],  # deduplicated and not
    "t_page": ["clicks", "views"],
    "t_word": ["query"],
    "t_event": ["clicks"],
}
GROUPS = (("brands", "topics"), ("region",), ("visited",), ("history",), ("clicks", "views"))
SHARES = (0.2, 0.9, 0.3, 0.3, 0.3)
KEYS = list(dict.fromkeys(key for of in (BAGS, SEQUENCES) for t in of.values() for key in t))
UNIQUE = frozenset(key for group in GROUPS for key in group)

Kind = Literal["row_wise", "table_wise", "column_wise", "mixed"]


class Summed(nn.Module):
    """A pooling: [N, D] in rows of `lengths` [B] become their sums [B, D]."""

    needs_query = False

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        return values.new_zeros(len(lengths), values.shape[1]).index_add(0, rows, values)


class Mixed(nn.Module):
    """logit = w . [dense, sums of bags, sums of sequences] + b, tables on the meta device."""

    def __init__(self, weighted: bool = False, mean: bool = False) -> None:
        super().__init__()
        meta = torch.device("meta")
        pooling = PoolingType.MEAN if mean else PoolingType.SUM
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    num_embeddings=ROWS,
                    embedding_dim=DIM,
                    feature_names=list(keys),
                    pooling=pooling,
                )
                for name, keys in BAGS.items()
            ],
            is_weighted=weighted,
            device=meta,
        )
        self.sequences = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=list(keys)
                )
                for name, keys in SEQUENCES.items()
            ],
            device=meta,
        )
        self.summed = Summed()
        self.over = nn.Linear(2 + DIM * 13, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Key by key, and no unpacking: TorchRec's pipeline traces this."""
        summed, embedded = self.bags(batch.features), self.sequences(batch.features)
        inputs = [batch.dense, *(summed[name] for name in _names(BAGS))]
        for name in _names(SEQUENCES):
            jagged = embedded[name]
            inputs.append(self.summed(jagged.values(), jagged.lengths()))
        logits = self.over(torch.cat(inputs, dim=1)).squeeze(1)
        losses = nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels, batch.weights, reduction="sum"
        )
        loss = losses / batch.weights.sum().clamp(min=1)
        return loss, (loss.detach(), logits.detach(), batch.labels, batch.weights)


def _names(tables: dict[str, list[str]]) -> list[str]:
    """As TorchRec names embeddings."""
    every = [key for keys in tables.values() for key in keys]
    return [
        f"{key}@{table}" if every.count(key) > 1 else key
        for table, keys in tables.items()
        for key in keys
    ]


def batch_of(
    size: int, unique: int, *, seed: int, longest: int = 4, weighted: bool = False
) -> Batch:
    """`size` samples; the features of each group take `unique` different rows or fewer."""
    draw = torch.Generator().manual_seed(seed)
    rows: dict[str, list[tuple[list[int], list[float]]]] = {}

    def some(count: int) -> list[tuple[list[int], list[float]]]:
        lengths = torch.randint(0, longest + 1, (count,), generator=draw).tolist()
        return [
            (
                torch.randint(0, ROWS, (length,), generator=draw).tolist(),
                torch.rand(length, generator=draw).tolist(),
            )
            for length in lengths
        ]

    for number, group in enumerate(GROUPS):
        lookup = torch.randint(0, max(1, unique - number), (size,), generator=draw).tolist()
        for key in group:
            of_group = some(max(1, unique - number))
            rows[key] = [of_group[i] for i in lookup]
    for key in KEYS:
        rows.setdefault(key, some(size))
    ids = [id_ for key in KEYS for row, _ in rows[key] for id_ in row]
    weights = [weight for key in KEYS for _, row in rows[key] for weight in row]
    return Batch(
        dense=torch.randn(size, 2, generator=draw),
        features=KeyedJaggedTensor(
            keys=KEYS,
            values=torch.tensor(ids, dtype=torch.int64),
            lengths=torch.tensor([len(row) for key in KEYS for row, _ in rows[key]]).int(),
            weights=torch.tensor(weights) if weighted else None,
            stride=size,
        ),
        labels=torch.randint(0, 2, (size,), generator=draw).float(),
        weights=torch.ones(size),
    )


def deduplicated(batch: Batch, *, partial: bool = False) -> Batch:
    """The batch as a converter makes it."""
    kind = PartialInverseKeyedJaggedTensor if partial else InverseKeyedJaggedTensor
    dedup = kind.from_kjt(batch.features, GROUPS)
    return dataclasses.replace(batch, features=without(batch.features, UNIQUE), dedup=dedup)


@dataclass(frozen=True)
class Sharded:
    """Every table sharded alike, or table by table by another type; adapted or not."""

    kind: Kind
    adapted: bool = True
    shares: tuple[float, ...] | None = SHARES

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        sharders: list[Any] = [
            EmbeddingBagCollectionSharder(fused_params=optimizer.fused_params()),
            EmbeddingCollectionSharder(fused_params=optimizer.fused_params()),
        ]
        plan = {}
        for path, tables in tables_of(model).items():
            module = model.get_submodule(path)
            bags = isinstance(module, EmbeddingBagCollection)
            makers = zip(tables, cycle(self._makers(bags)), strict=False)
            plan[path] = construct_module_sharding_plan(
                module,
                {table: make(index) for index, (table, make) in enumerate(makers)},
                sharder=sharders[0 if bags else 1],
                device_type="cpu",
            )
        if self.adapted:
            adapt(model, GROUPS, unique_shares=self.shares)
            sharders = with_dedup(sharders)
        return Arranged(model, ShardingPlan(plan=plan), sharders)

    def _makers(self, bags: bool) -> list[Callable[[int], Any]]:
        ranks = list(range(dist.get_world_size()))
        makers: dict[str, Callable[[int], Any]] = {
            "row_wise": lambda index: row_wise(compute_kernel="fused"),
            "table_wise": lambda index: table_wise(rank=index % len(ranks), compute_kernel="fused"),
            "column_wise": lambda index: column_wise(ranks=ranks, compute_kernel="fused"),
        }
        return list(makers.values()) if self.kind == "mixed" else [makers[self.kind]]


def several(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """`function` on each of the calls' arguments, on the ranks of one group."""
    return [function(*call) for call in calls]
