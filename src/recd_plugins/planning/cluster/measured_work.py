"""The rates of a rank's own work while all ranks work, measured: lookups, chunks of rows, ids made
unique, updates, marks and small operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from recd_plugins.compat.rows_kernel import rows_kernel
from recd_plugins.planning.cluster.timer import IN_A_ROW, Timer, middle
from recd_plugins.planning.cluster.topology import GB

__all__ = ["crowded", "float32_zeros", "gathering", "own_work"]

ROW_BYTES, TABLE_ROWS, LOOKUPS = 256, 1 << 18, 1 << 16
"""A table of 64 MB, which no processor's cache holds."""
UPDATED = 1 << 13
"""Rows whose gradients are applied: of fewer each takes less, for a cache holds what it takes."""
CHUNK_PASSES = 12
"""How often `_stepping` reads or writes its chunk."""
MARKED = 1 << 20
"""Rows that have marks: those of a large tier, for a step takes next to nothing for fewer."""
OPERATIONS, OPERANDS = 40, 1 << 12
"""Operations in a row, and the ids that each is of."""


def own_work(timer: Timer, before: Callable[[], object]) -> dict[str, float]:
    """The rates that a `Topology` has of these, with all ranks at them together.

    gather_gbps  rows are gathered from random places
    chunk_gbps   a chunk of rows is summed and stepped
    unique_ns    ids are made unique, each there four times
    op_us        small operations, to which a rank comes from the work `before` them, as it does in
                 a step: over and over, with all that they need at hand, they would take a tenth of
                 the time
    update_ns    on a CPU, gradients of distinct rows are applied, by the kernel whose rows are bags
                 of one
    marks_ns     on a CPU, marks of rows are made, packed, unpacked for each exchange, counted up
                 and searched
    """
    ids = _draw(timer.group, LOOKUPS, LOOKUPS // 4).to(timer.device)
    few = ids[:OPERANDS]
    gathered, unique = (
        timer.seconds(work, IN_A_ROW)
        for work in (
            gathering(timer.group, timer.device, LOOKUPS),
            lambda: torch.unique(ids, return_inverse=True),
        )
    )
    stepped = timer.seconds(_stepping(timer.device), IN_A_ROW)
    small = timer.after(before, lambda: _small_operations(few), IN_A_ROW)
    found = {
        "gather_gbps": 2 * LOOKUPS * ROW_BYTES / gathered / GB,
        "chunk_gbps": CHUNK_PASSES * UPDATED * ROW_BYTES / stepped / GB,
        "unique_ns": unique / LOOKUPS * 1e9,
        "op_us": small / OPERATIONS * 1e6,
    }
    if timer.device.type == "cpu":
        found["update_ns"] = timer.seconds(_updating(timer.device)) / UPDATED * 1e9
        found["marks_ns"] = timer.seconds(_marking(), IN_A_ROW) / MARKED * 1e9
    return found


def crowded(timer: Timer) -> float:
    """Time lookups that all ranks make together in turns with those of the first rank, for which
    the others wait. Ranks that share nothing differ by noise."""
    lookups = gathering(timer.group, timer.device, LOOKUPS)

    def alone() -> None:
        if timer.group.rank() == 0:
            lookups()

    every, one = map(middle, timer.in_turns([lookups, alone], IN_A_ROW))
    return min(max(every / one, 1.0), float(timer.group.size()))


def gathering(world: ProcessGroup, device: torch.device, lookups: int) -> Callable[[], object]:
    """A call that reads and writes so many rows at random places.

    It writes into memory that is there: new memory's first use would take several times as
    long, or not, as the allocator pleases."""
    table = float32_zeros((TABLE_ROWS, ROW_BYTES // 4), device)
    rows = _draw(world, lookups).to(device)
    out = float32_zeros((lookups, ROW_BYTES // 4), device)
    return lambda: torch.index_select(table, 0, rows, out=out)


def float32_zeros(shape: int | tuple[int, ...], device: torch.device) -> Tensor:
    """Zeros of 4 bytes each, whatever type a process has by default."""
    return torch.zeros(shape, dtype=torch.float32, device=device)


def _updating(device: torch.device) -> Callable[[], object]:
    """Rows looked up and stepped, each once. What the lookup takes of it is a tenth."""
    kernel = rows_kernel(TABLE_ROWS, ROW_BYTES // 4, device)
    rows = torch.randperm(TABLE_ROWS, generator=torch.Generator().manual_seed(0), device="cpu")[
        :UPDATED
    ]
    offsets, gradients = (
        torch.arange(UPDATED + 1, device="cpu"),
        float32_zeros((UPDATED, ROW_BYTES // 4), device) + 1,
    )
    return lambda: kernel(indices=rows, offsets=offsets).backward(gradients)


def _stepping(device: torch.device) -> Callable[[], object]:
    """A chunk of gradients added to zeros [4 passes], of which row-wise Adagrad steps rows [8]. Its
    memory is new in each run, as in a step."""
    gradients = float32_zeros((UPDATED, ROW_BYTES // 4), device) + 1
    rows, state = torch.zeros_like(gradients), float32_zeros((UPDATED, 1), device)
    places = torch.arange(UPDATED, device=device)

    def step() -> None:
        sums = torch.zeros_like(gradients).index_add_(0, places, gradients)
        state.add_(sums.square().mean(dim=1, keepdim=True))
        rows.sub_(sums * (0.01 / (state.sqrt() + 1e-8)))

    return step


def _marking() -> Callable[[], object]:
    """The marks of rows that have replicas, of which a step touches every hundredth: those of this
    rank, which are packed for the ranks of its node; theirs, those of nodes and those of all, which
    it unpacks; the touched ones of these, and the place of each among its own."""
    touched = torch.arange(0, MARKED, 100, device="cpu")

    def mark() -> None:
        mine = torch.zeros(MARKED, dtype=torch.bool, device="cpu")
        mine[touched] = True
        packed = np.packbits(mine.numpy(), bitorder="little")
        for _ in range(3):
            found = np.unpackbits(packed, bitorder="little")
        torch.from_numpy(found).nonzero()
        mine.cumsum(0, dtype=torch.int32)

    return mark


def _small_operations(ids: Tensor) -> None:
    """`OPERATIONS`, of the kinds that tiers consist of."""
    for _ in range(OPERATIONS // 4):
        kept = ids[ids >= 0]
        torch.cat([kept, ids]).cumsum(0)


def _draw(world: ProcessGroup, lookups: int, num_rows: int = TABLE_ROWS) -> Tensor:
    draw = torch.Generator().manual_seed(world.rank())
    return torch.randint(0, num_rows, (lookups,), generator=draw, device="cpu")
