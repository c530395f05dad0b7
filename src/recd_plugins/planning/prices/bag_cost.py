"""The cost of pooled tables as TorchRec has them: sums travel there, not rows.

A table has f bags a sample, one for each of its features, of p lookups in all; a row has r bytes,
a sum s. Prices are those of the whole table, per rank and step, forward and backward together; B
samples a rank, U ranks in all. Exchanges carry e of a sum's bytes (`Prices.carried`); to encode and
to decode sums is local, too: their `coding`. Where ids are coalesced, rows travel as those of
sequences do.
"""

from __future__ import annotations

import numpy as np

from recd_plugins.planning.access.distribution import Floats, RowDistribution
from recd_plugins.planning.prices.cost import ID_BYTES, Cost, Prices

__all__ = ["LENGTH_BYTES", "SUM_BYTES", "row_wise_bags", "table_wise_bags", "travelling"]

SUM_BYTES = 4
"""An element of a sum is a float32, whatever the table's are."""
LENGTH_BYTES = 4
"""int32, as TorchRec sends how many ids a bag has."""


def travelling(rows: RowDistribution, bags: float, first: int = 0) -> float:
    """c: the chance that a bag has any row after the `first` hottest. It is counted where whole
    bags were counted; otherwise 1 - prod(1 - q / f), as if rows were drawn independently."""
    within = rows.bags_within(first)
    if within is not None:
        return 1 - within
    if first:
        rows = rows.part(first, rows.num_rows)
    with np.errstate(divide="ignore"):
        none = float(rows.counts @ np.log1p(-np.minimum(rows.presence / bags, 1.0)))
    return float(-np.expm1(none))


def row_wise_bags(
    prices: Prices,
    rows: RowDistribution,
    *,
    bags: float,
    dim: int,
    width: int,
    share: float = 1.0,
    load: float | Floats = 1.0,
) -> Cost:
    """Row-wise: each rank sums what it has of every bag of every rank.

    static_memory   r / U of each row
    ids_sent        pB
    rows_accessed   l pB
    dynamic_memory  (U + 1) c f B s
    a2a_global      8 l pB + 4 U c f B: ids, and how many each rank has of each bag
    ar_global       d e U c f B s: parts of sums are reduced and scattered, their gradients
                    gathered, which are the halves of an all-reduce, or more: d is the topology's
                    `scattered`
    local           3 l pB r + 2 U c f B s, and coding of (U + 1) c f B s / 2
    coalesced       pB, which are sorted by the rank that has their row
    with c = 1, for TorchRec sends all bags; behind replicas that share of bags which has a row
    without one (`travelling`); and l the `load` of each rank [U], how many times
    its share of lookups it serves.
    """
    n, u = prices.cluster.n_nodes, prices.cluster.world_size
    load = 1.0 if np.allclose(load, 1.0) else load
    lookups = rows.lookups * prices.batch_size
    parts = u * share * bags * prices.batch_size
    sums = parts * dim * SUM_BYTES
    reduced = prices.cluster.scattered * prices.carried * sums
    ids = lookups * ID_BYTES + parts * LENGTH_BYTES
    return Cost(
        static_memory=rows.num_rows * width / u,
        ids_sent=lookups,
        rows_accessed=lookups * load,
        dynamic_memory=sums * (u + 1) / u,
        a2a_global=ids + (load - 1.0) * lookups * ID_BYTES,
        ar_global=reduced,
        between_nodes=ids * u * (n - 1) / n + prices.cluster.reduced_between_nodes * reduced,
        local=3 * lookups * width * load + 2 * sums + prices.coding(sums * (u + 1) / u / 2),
        coalesced=lookups,
    )


def table_wise_bags(
    prices: Prices, rows: RowDistribution, *, bags: float, dim: int, width: int
) -> Cost:
    """Table-wise: one rank has the table, and sums all bags. A rank's share, as if tables of a
    kind were on all ranks: TorchRec's planner balances them as well as it can.

    static_memory   r / U of each row
    ids_sent        pB
    rows_accessed   pB
    dynamic_memory  2 f B s
    a2a_global      8 pB + 4 f B + 2 e f B s: ids and lengths, sums and their gradients
    local           3 pB r + 2 f B s, and coding of f B s
    """
    n, u = prices.cluster.n_nodes, prices.cluster.world_size
    lookups, each = rows.lookups * prices.batch_size, bags * prices.batch_size
    sums = each * dim * SUM_BYTES
    payload = lookups * ID_BYTES + each * LENGTH_BYTES + 2 * prices.carried * sums
    return Cost(
        static_memory=rows.num_rows * width / u,
        ids_sent=lookups,
        rows_accessed=lookups,
        dynamic_memory=2 * sums,
        a2a_global=payload,
        between_nodes=payload * u * (n - 1) / n,
        local=3 * lookups * width + 2 * sums + prices.coding(sums),
    )
