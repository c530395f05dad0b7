"""The cost of rows at home where some ranks have more of the hot rows than others.

TorchRec cuts a row-wise table into blocks of ids. Where ids were given by popularity, as
vocabularies do it, all hot rows lie on the first rank, and a step waits for that one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from recd_plugins.planning.access.distribution import Floats, RowDistribution
from recd_plugins.planning.prices.cost import Cost, Prices
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.tier_plan import Coalesce

__all__ = ["home_load", "row_wise_cost", "touched_by_rank"]

ALIKE = 1e-5
"""Ranks that differ by no more than this share count as alike."""


def row_wise_cost(
    prices: Prices,
    table: ProfiledTable,
    *,
    first: int = 0,
    coalesce: Coalesce = "none",
    pooled: int = 0,
) -> Cost:
    """`Prices.row_wise` of the rows after the `first` hottest ones; by rank [U], where ranks
    differ.

    A rank that serves l times its share has l times the rows_accessed, a2a_global and a2a_cross,
    2 (l - 1) s r more of local and (l - 1) s r of dynamic_memory; and of a2a_intra, what the ranks
    of its place in all nodes serve together, for it is their concentrator. It updates the rows
    that it has.
    """
    rows = table.rows.part(first, table.rows.num_rows)
    cost = prices.row_wise(rows, table.width, coalesce, pooled).total(rows.counts)
    load = home_load(prices, table, first=first, coalesce=coalesce)
    if abs(load - 1.0).max() <= ALIKE:
        return cost
    cluster = prices.cluster
    place = load.reshape(cluster.n_nodes, cluster.ranks_per_node).mean(axis=0)
    more = (load - 1) * cost.rows_accessed * table.width
    return dataclasses.replace(
        cost,
        rows_accessed=cost.rows_accessed * load,
        dynamic_memory=cost.dynamic_memory + more,
        a2a_global=cost.a2a_global * load,
        a2a_cross=cost.a2a_cross * load,
        a2a_intra=cost.a2a_intra * np.tile(place, cluster.n_nodes),
        local=cost.local + 2 * more,
        updated=touched_by_rank(prices, table, first=first),
    )


def touched_by_rank(prices: Prices, table: ProfiledTable, *, first: int = 0) -> Floats:
    """[U] the rows after the `first` hottest that a step looks up, each once, of those that each
    rank has."""
    rows, ranks = table.rows, prices.cluster.world_size
    appear = rows.appear(prices.batch_size * ranks)
    touched: Floats = (_kept(rows, first) * appear) @ rows.by_rank(ranks)
    return touched


def home_load(
    prices: Prices, table: ProfiledTable, *, first: int = 0, coalesce: Coalesce = "none"
) -> Floats:
    """[U] how many times its share each rank serves of the rows after the `first` hottest."""
    rows, ranks = table.rows, prices.cluster.world_size
    each: Floats = (_kept(rows, first) * prices.asked(rows, coalesce)) @ rows.by_rank(ranks)
    return each * ranks / each.sum() if each.sum() > 0 else np.ones(ranks)


def _kept(rows: RowDistribution, first: int) -> Any:
    """[R] the share of each band that comes after the `first` hottest rows; 1 for all of them."""
    return rows.within(first, rows.num_rows) / rows.counts if first else 1.0
