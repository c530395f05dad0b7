"""Table initialisation that depends on the seed alone: not on the plan, not on the world size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchrec.distributed.types import ShardedTensor

from recd_plugins.compat.torchrec import local_parts
from recd_plugins.planning.embedding_collections import embedding_collections

__all__ = ["initialise_tables", "table_initialisers", "table_name"]

BLOCK = 8192
"""Rows drawn from one generator: a rank draws the blocks that its shards touch."""

Initialise = Callable[[Tensor], object]


def table_initialisers(model: nn.Module) -> dict[str, Initialise]:
    """The function that each table of an unsharded model starts by: its `init_fn`, or TorchRec's
    uniform range."""
    initialisers: dict[str, Initialise] = {}
    for _, _, configs in embedding_collections(model):
        for config in configs:
            low, high = config.get_weight_init_min(), config.get_weight_init_max()
            initialisers[config.name] = config.init_fn or partial(
                torch.nn.init.uniform_, a=low, b=high
            )
    return initialisers


@torch.no_grad()
def initialise_tables(model: nn.Module, initialisers: dict[str, Initialise], seed: int) -> None:
    """Fill this rank's shards of a sharded model.

    Block b of a table is drawn from hash(seed, table, b), so row i starts alike wherever it
    lives; a column shard takes its columns of the same draw.
    """
    for name, value in model.state_dict().items():
        table = table_name(name)
        if table not in initialisers:
            continue
        for shard, row, column in _shards(value):
            for start in range(row - row % BLOCK, row + shard.shape[0], BLOCK):
                block = _draw(initialisers[table], value.shape, table, start, seed)
                first, last = max(start, row), min(start + block.shape[0], row + shard.shape[0])
                shard[first - row : last - row] = block[
                    first - start : last - start, column : column + shard.shape[1]
                ].to(shard)


def _shards(value: Tensor | ShardedTensor | DTensor) -> Iterator[tuple[Tensor, int, int]]:
    """This rank's part of a table: tensor, first row, first column."""
    if isinstance(value, ShardedTensor | DTensor):
        for (row, column), shard in local_parts(value):
            yield shard, row, column
    else:
        yield value, 0, 0


def _draw(initialise: Initialise, shape: torch.Size, table: str, start: int, seed: int) -> Tensor:
    """Rows [start, start + BLOCK) of a table, as they start."""
    text = f"{seed}/{table}/{start}".encode()
    block = torch.empty(min(BLOCK, shape[0] - start), shape[1], dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        seeds = hashlib.sha256(text).digest()[:8]
        # torch.manual_seed would note for each device that is not in use who called it: 2 ms.
        torch.default_generator.manual_seed(int.from_bytes(seeds, "little") >> 1)
        initialise(block)
    return block


def table_name(parameter: str) -> str:
    """`sparse.embedding_bags.items.weight` is table `items`; what is none has the name "".

    >>> table_name("sparse.embeddings.items.weight"), table_name("over.0.weight")
    ('items', '')
    """
    match parameter.split("."):
        case [*_, "embeddings" | "embedding_bags", table, "weight"]:
            return table
    return ""
