"""Table initialisation that depends only on the seed: not on the plan or the world size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchrec.distributed.types import ShardedTensor

from recd_plugins.compat.torchrec import local_parts
from recd_plugins.launch.machine_cores import cores_of_each
from recd_plugins.planning.tables.embedding_collections import embedding_collections

__all__ = ["initialise_tables", "table_initialisers", "table_name"]

BLOCK = 8192
"""Rows drawn from one generator: a rank draws the blocks that its shards touch."""

MOST_THREADS = 16

Initialise = Callable[..., object]
"""Fills a tensor in place."""


def table_initialisers(model: nn.Module) -> dict[str, Initialise]:
    """The function that fills each table of an unsharded model: its `init_fn`, or TorchRec's
    uniform range."""
    initialisers: dict[str, Initialise] = {}
    for _, _, configs in embedding_collections(model):
        for config in configs:
            low, high = config.get_weight_init_min(), config.get_weight_init_max()
            initialisers[config.name] = config.init_fn or partial(
                torch.nn.init.uniform_, a=low, b=high
            )
    return initialisers


def initialise_tables(model: nn.Module, initialisers: dict[str, Initialise], seed: int) -> None:
    """Fill this rank's shards of a sharded model.

    Block b of a table is drawn from hash(seed, table, b), so row i starts the same wherever it
    lives; a column shard takes its columns of the same draw. TorchRec's range is drawn by several
    threads, since each call may have its own generator. Other functions draw from torch's global
    generator, so they run one after another.
    """
    alone: list[Callable[[], None]] = []
    beside: list[Callable[[], None]] = []
    for name, value in model.state_dict().items():
        table = table_name(name)
        if table not in initialisers:
            continue
        initialise = initialisers[table]
        threads = beside if _takes_a_generator(initialise) else alone
        for shard, row, column in _shards(value):
            for start in range(row - row % BLOCK, row + shard.shape[0], BLOCK):
                draw = partial(_draw, initialise, value.shape, table, start, seed)
                threads.append(partial(_fill, shard, row, column, start, draw))
    for fill in alone:
        fill()
    with ThreadPoolExecutor(_threads()) as pool:
        for filled in [pool.submit(fill) for fill in beside]:
            filled.result()


@torch.no_grad()
def _fill(shard: Tensor, row: int, column: int, start: int, draw: Callable[[], Tensor]) -> None:
    """The rows of the block from `start` on that a shard has; the shard begins at (row, column)."""
    block = draw()
    first, last = max(start, row), min(start + block.shape[0], row + shard.shape[0])
    shard[first - row : last - row] = block[
        first - start : last - start, column : column + shard.shape[1]
    ].to(shard)


def _takes_a_generator(initialise: Initialise) -> bool:
    """Whether it is torch's range, and has no generator bound to it."""
    return (
        isinstance(initialise, partial)
        and initialise.func is torch.nn.init.uniform_
        and "generator" not in initialise.keywords
    )


def _threads() -> int:
    """This rank's share of the machine's processors."""
    return min(MOST_THREADS, cores_of_each(int(os.environ.get("LOCAL_WORLD_SIZE") or 1)))


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
    block = torch.empty(min(BLOCK, shape[0] - start), shape[1], dtype=torch.float32, device="cpu")
    own_seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1
    if _takes_a_generator(initialise):
        initialise(block, generator=torch.Generator().manual_seed(own_seed))
        return block
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would note for each device that is not in use who called it: 2 ms.
        torch.default_generator.manual_seed(own_seed)
        initialise(block)
    return block


def table_name(parameter: str) -> str:
    """`sparse.embedding_bags.items.weight` is table `items`; a parameter of no table gives "".

    >>> table_name("sparse.embeddings.items.weight"), table_name("over.0.weight")
    ('items', '')
    """
    match parameter.split("."):
        case [*_, "embeddings" | "embedding_bags", table, "weight"]:
            return table
    return ""
