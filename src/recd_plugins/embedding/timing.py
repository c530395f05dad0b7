"""The seconds of a step that unique samples save and cost, timed with this device's own kernels.

Each time is that of forward and backward, the least of a few runs. On the CPU it is the processor
time of one thread, which other work on the machine changes the least; threads that wait for each
other would count as if they worked.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recd_plugins.compat.rows_kernel import rows_kernel
from recd_plugins.embedding.expand import expand_rows, expand_values
from recd_plugins.embedding.pooling import DedupPooling
from recd_plugins.embedding.unexpanded import Unexpanded

__all__ = [
    "PoolingSeconds",
    "seconds_of",
    "seconds_of_call",
    "seconds_of_copies",
    "seconds_of_kernels",
    "seconds_of_lookups",
    "seconds_of_pooling",
]

FEWEST, MOST = 3, 9
"""Runs of a call that is timed."""
LONG_ENOUGH = 0.03
"""Once all runs took so many seconds, `FEWEST` are enough."""
TABLE_ROWS = 1 << 16
SMALL = 200
"""Small operations that are timed at once."""


class PoolingSeconds(NamedTuple):
    """Seconds of one pooling of a batch, forward and backward."""

    all: float
    """On all samples' values."""
    unique: float
    """On the unique samples', with what it takes to give each sample its row."""


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, after a first one that does not count; on the CPU, of one thread."""
    clock, threads = time.perf_counter, torch.get_num_threads()
    if device.type == "cpu":
        clock = time.process_time
        torch.set_num_threads(1)
    try:
        _synchronized(call, device)
        taken: list[float] = []
        while len(taken) < FEWEST or (len(taken) < MOST and sum(taken) < LONG_ENOUGH):
            begun = clock()
            _synchronized(call, device)
            taken.append(clock() - begun)
        return min(taken)
    finally:
        torch.set_num_threads(threads)


def seconds_of_call(device: torch.device) -> float:
    """Seconds of an operation on a small tensor, with the Python around it: index_select and
    addition in turn, on so few rows that these cost nothing."""
    values, rows = torch.zeros(8, device=device), torch.arange(8, device=device)

    def some() -> None:
        for _ in range(SMALL // 2):
            values.index_select(0, rows) + values

    return seconds_of(some, device) / SMALL


def seconds_of_kernels(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call of torch's kernels, of which each thread of the CPU has its part."""
    seconds = seconds_of(call, device)
    return seconds / torch.get_num_threads() if device.type == "cpu" else seconds


def seconds_of_lookups(dim: int, *ids: Tensor) -> list[float]:
    """For each tensor of `ids`, the seconds in which a table yields their embeddings and is updated
    by their gradients. The table has fewer rows than a real one, as many as a cache may hold."""
    device = ids[0].device
    table = rows_kernel(TABLE_ROWS, dim, device)

    def seconds(some: Tensor) -> float:
        rows, offsets = some.long() % TABLE_ROWS, torch.arange(len(some) + 1, device=device)
        gradient = torch.ones(len(some), dim, dtype=torch.float32, device=device)
        return seconds_of_kernels(
            lambda: table(indices=rows, offsets=offsets).backward(gradient), device
        )

    return [seconds(some) for some in ids]


def seconds_of_copies(unique: Tensor, inverse_lookup: Tensor) -> float:
    """Seconds in which rows [U, D] are copied to all samples [B, D], and their gradients summed."""
    unique = unique.detach().requires_grad_()
    gradient = unique.new_ones(inverse_lookup.numel(), unique.shape[1])

    def copied() -> None:
        expand_rows(unique, inverse_lookup).backward(gradient)
        unique.grad = None

    return seconds_of_kernels(copied, unique.device)


def seconds_of_pooling(
    pooling: nn.Module, dim: int, lengths: Tensor, inverse_lookup: Tensor
) -> PoolingSeconds:
    """Seconds of a copy of the pooling, on unique samples in rows of `lengths` [U] and on all.

    Each sample has a query of its own. The pooling's parameters and buffers stay as they are.
    """
    device = lengths.device
    ours = _copy_of(pooling, device)
    draw = torch.Generator().manual_seed(0)
    values = (
        torch.randn(int(lengths.sum()), dim, generator=draw, device="cpu")
        .to(device)
        .requires_grad_()
    )
    query = torch.randn(inverse_lookup.numel(), dim, generator=draw, device="cpu").to(device)
    every = expand_values(values.detach(), lengths, inverse_lookup).requires_grad_()
    lengths_of_all = lengths[inverse_lookup]

    def on_all() -> None:
        _backward(ours(every, lengths_of_all, query))
        every.grad = None

    def on_unique() -> None:
        jagged = Unexpanded.values(values, lengths, inverse_lookup, len(every))
        _backward(ours(jagged, Unexpanded.rows(lengths, inverse_lookup), query))
        values.grad = None

    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        turns = [
            (seconds_of_kernels(on_all, device), seconds_of_kernels(on_unique, device))
            for _ in range(2)
        ]
    return PoolingSeconds(*map(min, zip(*turns, strict=True)))


def _copy_of(pooling: nn.Module, device: torch.device) -> nn.Module:
    if any(one.is_meta for one in (*pooling.parameters(), *pooling.buffers())):
        made = copy.deepcopy(pooling).to_empty(device=device)
        for one in (*made.parameters(), *made.buffers()):
            one.data.zero_()  # whatever the memory held may take far longer to compute with
    else:
        made = copy.deepcopy(pooling).to(device)
    return DedupPooling(made)


def _backward(pooled: Tensor) -> None:
    rows = pooled.expanded() if isinstance(pooled, Unexpanded) else pooled
    rows.sum().backward()


def _synchronized(call: Callable[[], object], device: torch.device) -> None:
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
