"""Processor time of what coalescing adds to a step, against what there was before."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.harness import Figure, Round, alternate, spread
from benchmarks.scars.tables import Law
from recd_plugins.sparse.rows.coalesce import coalesce

__all__ = ["coalescing"]


def coalescing(num_rows: int, count: int, rounds: int) -> Figure:
    """Different ids and inverse of Zipf ids that lie anywhere in the table."""
    drawn = Law("Zipf 1.05", num_rows, 1).draw(count, seed=0)["table"]
    ids = torch.randperm(num_rows, generator=torch.Generator().manual_seed(1))[drawn]
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: coalesce(ids),
        "sorted": lambda: torch.unique(ids, return_inverse=True),
        "unsorted": lambda: torch.unique(ids, sorted=False, return_inverse=True),
    }
    measured = alternate(sides, rounds)
    cpu = {name: [one.cpu for one in side] for name, side in measured.items()}
    other = min(("sorted", "unsorted"), key=lambda name: statistics.median(cpu[name]))
    ratios = [theirs / ours for ours, theirs in zip(cpu["ours"], cpu[other], strict=True)]
    times = ", ".join(f"{name} {_ms(side):.0f}" for name, side in measured.items())
    return Figure(
        name="coalescing kernel, times as fast as torch.unique with inverse",
        value=statistics.median(ratios),
        unit="times as fast",
        baseline=1.0,
        target=2.0,
        spread=spread(ratios),
        note=f"{count:,} Zipf 1.05 ids of {num_rows:,} rows, {len(coalesce(ids).ids):,} different; "
        f"processor ms: {times}; against torch's faster one",
    )


def _ms(side: list[Round]) -> float:
    return 1e3 * statistics.median(one.cpu for one in side)
