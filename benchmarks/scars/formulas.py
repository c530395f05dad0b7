"""Rows and bytes that are really moved, against what the formulas predict."""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.harness import Figure, spread
from benchmarks.scars.exchange import exchanged
from benchmarks.scars.tables import CriteoColumns, Law, TableLookups
from recd_plugins.planning.access.row_counter import RowCounter
from recd_plugins.sparse.rows.coalesce import coalesce
from recd_plugins.testing.gloo import GlooPool
from recd_scars.theory import coalesced, epoch

__all__ = ["bytes_moved", "forecast", "growth", "rows_moved"]

WITHIN = 2.0
"""Per cent."""
ID, NUMBER = 8, 4
"""Bytes of an id and of a number."""
GROWN = 5


def rows_moved(name: str, lookups: TableLookups, batch_size: int, batches: int) -> Figure:
    """Equation 3: the different rows of a batch, as our kernel finds them."""
    predicted = sum(
        coalesced(rows, batch_size=batch_size, width=1) - batch_size * rows.lookups
        for rows in lookups.rows.values()
    )
    counted = [float(_unique(lookups, batch_size, seed)) for seed in range(batches)]
    measured = statistics.mean(counted)
    return Figure(
        name=f"rows of a coalesced batch against the formula, {name}",
        value=100 * abs(measured / predicted - 1),
        unit="% off",
        target=WITHIN,
        at_most=True,
        spread=spread(counted),
        note=f"{measured:,.0f} for {predicted:,.0f} of {lookups.lookups * batch_size:,} lookups in "
        f"each of {len(lookups.rows)} tables, B = {batch_size}",
    )


def bytes_moved(
    name: str,
    lookups: TableLookups,
    pool: GlooPool,
    *,
    dim: int,
    batch_size: int,
    steps: int,
    cached: float,
) -> Figure:
    """Equation 6 on 2 ranks: ids, rows and gradients of rows that are not cached, each once."""
    rest = sum(
        coalesced(rows, batch_size=batch_size, width=1, cached=int(cached * rows.num_rows))
        - batch_size * rows.lookups
        for rows in lookups.rows.values()
    )
    predicted = rest * (ID + 2 * NUMBER * dim)
    by_rank = pool.run(exchanged, lookups, dim, batch_size, steps, cached, world_size=2)
    measured = statistics.mean(by_rank)
    return Figure(
        name=f"bytes of a step against the formula, {name}, {cached:.0%} cached",
        value=100 * abs(measured / predicted - 1),
        unit="% off",
        target=WITHIN,
        at_most=True,
        note=f"{measured / 1e6:.2f} for {predicted / 1e6:.2f} MB through a rank's all-to-alls: "
        f"ids, rows of {dim} numbers, gradients; 2 gloo ranks, coalesce: rank, B = {batch_size}",
    )


def forecast(columns: CriteoColumns, batch_size: int) -> Figure:
    """Criteo's second half in its order, forecast from what was counted in the first."""
    half = len(columns.ids[0]) // 2
    predicted = measured = 0.0
    for name, ids in zip(columns.rows, columns.ids, strict=True):
        counter = RowCounter(columns.rows[name].num_rows)
        for start in range(0, half - batch_size + 1, batch_size):
            counter.add(ids[start : start + batch_size], batch_size)
        predicted += counter.distribution(sample=True).appearing(batch_size)
        starts = range(half, len(ids) - batch_size + 1, batch_size)
        measured += statistics.mean(
            len(np.unique(ids[start : start + batch_size])) for start in starts
        )
    return Figure(
        name="rows of a batch that was not counted, Criteo",
        value=100 * abs(measured / predicted - 1),
        unit="% off",
        note=f"{measured:,.0f} for {predicted:,.0f}: 5,000 samples counted, the next 5,000 "
        f"forecast, in their order; B = {batch_size}",
    )


def growth(name: str, num_rows: int, batch_size: int, target: float, batches: int) -> Figure:
    """What a sample of an epoch moves with 5 times the rows and batch, divided by what it moved
    before."""
    small, large = Law(name, num_rows, 1), Law(name, GROWN * num_rows, 1)
    before = _numbers(small, batch_size, batches)
    after = _numbers(large, GROWN * batch_size, batches)
    by_formula = epoch(large.rows["table"], samples=1, batch_size=GROWN * batch_size, width=WIDTH)
    by_formula /= epoch(small.rows["table"], samples=1, batch_size=batch_size, width=WIDTH)
    return Figure(
        name=f"communication of an epoch, 5x rows and 5x batch, {name}",
        value=after / before,
        unit="times",
        baseline=_numbers(large, batch_size, batches) / before,
        target=target,
        at_most=True,
        note=f"by the formula {by_formula:.2f}; baseline: 5x rows at the same batch; B = "
        f"{batch_size:,}, {num_rows:,} rows of {WIDTH}, coalesced",
    )


WIDTH = 64


def _numbers(law: Law, batch_size: int, batches: int) -> float:
    """The numbers that a sample moves: its index, and its part of the batch's different rows."""
    unique = statistics.mean(_unique(law, batch_size, seed) for seed in range(batches))
    return law.lookups + unique * WIDTH / batch_size


def _unique(lookups: TableLookups, batch_size: int, seed: int) -> int:
    return sum(len(coalesce(ids).ids) for ids in lookups.draw(batch_size, seed).values())
