"""What a rank does by itself: rows gathered, ids made unique, small operations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from recd_plugins.planning.network.timing import IN_A_ROW, seconds_of
from recd_plugins.planning.topology import GB

__all__ = ["gathering", "own_work"]

ROW_BYTES, TABLE_ROWS, LOOKUPS = 256, 1 << 18, 1 << 16
"""A table of 64 MB, which no processor's cache holds."""
SMALL_OPERATIONS = 400


def gathering(world: ProcessGroup, device: torch.device, lookups: int) -> Callable[[], object]:
    """So many rows at random places, read and written.

    Into memory that is there: new memory's first use would take several times as long, or not, as
    the allocator pleases."""
    table = torch.zeros(TABLE_ROWS, ROW_BYTES // 4, device=device)
    rows = _draw(world, lookups).to(device)
    out = torch.empty(lookups, ROW_BYTES // 4, device=device)
    return lambda: torch.index_select(table, 0, rows, out=out)


def own_work(world: ProcessGroup, device: torch.device) -> dict[str, float]:
    """Rows gathered; ids made unique, each there four times; small operations.

    Often enough in a row that all ranks are at it together."""
    ids = _draw(world, LOOKUPS, LOOKUPS // 4).to(device)
    gathered, unique, small = (
        seconds_of(work, world, device, IN_A_ROW)
        for work in (
            gathering(world, device, LOOKUPS),
            lambda: torch.unique(ids, return_inverse=True),
            lambda: _small_operations(ids[:64]),
        )
    )
    return {
        "gather_gbps": 2 * LOOKUPS * ROW_BYTES / gathered / GB,
        "unique_ns": unique / LOOKUPS * 1e9,
        "op_us": small / SMALL_OPERATIONS * 1e6,
    }


def _draw(world: ProcessGroup, lookups: int, num_rows: int = TABLE_ROWS) -> Tensor:
    draw = torch.Generator().manual_seed(world.rank())
    return torch.randint(0, num_rows, (lookups,), generator=draw)


def _small_operations(ids: Tensor) -> None:
    """`SMALL_OPERATIONS`, of the kinds that tiers consist of."""
    for _ in range(SMALL_OPERATIONS // 4):
        kept = ids[ids >= 0]
        torch.cat([kept, ids]).cumsum(0)
