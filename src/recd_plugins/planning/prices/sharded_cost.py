"""The cost of a table where TorchRec's own plan has it, rank by rank.

A plan of whole tables keeps some ranks busier than others, and a step waits for the busiest. So
prices here are arrays [U], one for each rank.
In the formulas a table has f bags a sample of p lookups in all, of which each sum has s bytes;
rows of r bytes; B samples a rank, U = N W ranks in all. Sums and rows travel in e of their bytes
(`Prices.carried`), and ranks that encode or decode them read and write half of their `coding`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from recd_plugins.planning.access.distribution import Floats
from recd_plugins.planning.prices.bag_cost import LENGTH_BYTES, SUM_BYTES, row_wise_bags
from recd_plugins.planning.prices.cost import ID_BYTES, Cost, Prices
from recd_plugins.planning.prices.row_wise_cost import home_load, row_wise_cost, touched_by_rank
from recd_plugins.planning.tables.planned_shards import PlannedShards
from recd_plugins.planning.tables.profiled_table import ProfiledTable

__all__ = ["sharded_cost"]


def sharded_cost(prices: Prices, table: ProfiledTable, shards: PlannedShards) -> Cost:
    """The cost of a table on each rank as TorchRec's plan has it.

    row_wise        as in `row_wise_bags`, or `row_wise_cost` where rows come one by one
    data_parallel   a dense copy on every rank: ar_global E r, static_memory 2 E r
    others          `_whole`, or `_in_nodes` where rows lie over the ranks of a node

    A table in mapped files takes no static_memory, and the different rows that a step looks up of
    each shard are paged. One that every rank has lies in no file.
    """
    cost = _placed(prices, table, shards)
    if not table.mapped or shards.kind == "data_parallel":
        return cost
    return dataclasses.replace(cost, static_memory=0.0, paged=_touched(prices, table, shards))


def _placed(prices: Prices, table: ProfiledTable, shards: PlannedShards) -> Cost:
    """The cost of a table in memory."""
    if shards.kind == "row_wise":
        if not table.bags:
            return row_wise_cost(prices, table)
        return row_wise_bags(
            prices,
            table.rows,
            bags=table.bags,
            dim=table.dim,
            width=table.width,
            load=home_load(prices, table),
        )
    if shards.kind == "data_parallel" or not shards.shards:
        return _everywhere(prices, table)
    if shards.kind in ("table_row_wise", "grid_shard") and table.bags:
        return _in_nodes(prices, table, shards)
    return _whole(prices, table, shards)


def _touched(prices: Prices, table: ProfiledTable, shards: PlannedShards) -> Floats:
    """[U] the rows that a step looks up, each once, of the shards that each rank has."""
    if shards.kind == "row_wise":
        return touched_by_rank(prices, table)
    ranks = prices.cluster.world_size
    touched, found = table.rows.appearing(prices.batch_size * ranks), np.zeros(ranks)
    for shard in shards.shards:
        found[shard.rank] += shard.rows * touched
    return found


def _whole(prices: Prices, table: ProfiledTable, shards: PlannedShards) -> Cost:
    """Table-wise and column-wise: a rank has all rows of a shard, or c of their columns.

    For each shard, of the rank that has it:
    static_memory   c E r
    rows_accessed   U pB
    dynamic_memory  c U y; and c y on every rank
    a2a_global      U (x + 2 e c y)
    local           U (3 pB c r + 2 c y); where rows come one by one 4 U pB c r
    updated         what all ranks look up of its rows, each once, where rows come one by one
    and of every rank ids_sent pB; with x = 8 pB + 4 f B, the ids and their lengths, and y = f B s
    the sums, or y = pB r the rows. A rank that has less than its share of all tables waits for
    those that have more.
    """
    n, w, u = _shape(prices)
    lookups, x, y = _moved(prices, table)
    static, accessed, dynamic, payload, local, updated = (np.zeros(u) for _ in range(6))
    sent = between = 0.0
    touched = 0.0 if table.bags else table.rows.appearing(prices.batch_size * u)
    for shard in shards.shards:
        at, c = shard.rank, shard.columns
        part = shard.rows  # of rows over ranks, so that each has its share of ids
        static[at] += part * c * table.rows.num_rows * table.width
        accessed[at] += u * part * lookups
        dynamic += part * c * y
        dynamic[at] += u * part * c * y
        payload[at] += u * part * (x + 2 * prices.carried * c * y)
        own = 3 * part * lookups * c * table.width + 2 * part * c * y
        local[at] += u * (own if table.bags else 4 * part * c * y)
        updated[at] += part * touched
        sent += part * lookups
        local += prices.coding(part * c * y) / 2
        local[at] += prices.coding(u * part * c * y) / 2
        between += (u - w) * part * (x + 2 * prices.carried * c * y)
    return Cost(
        static_memory=static,
        ids_sent=sent,
        rows_accessed=accessed,
        dynamic_memory=dynamic,
        a2a_global=payload,
        between_nodes=between if n > 1 else 0.0,
        local=local,
        updated=updated,
    )


def _in_nodes(prices: Prices, table: ProfiledTable, shards: PlannedShards) -> Cost:
    """Table-row-wise and grids: the ranks of a node share the rows, and sum parts among them.

    For each node that has c of the columns, of each of its ranks:
    rows_accessed   U pB / W
    a2a_global      U x / W
    a2a_intra       2 e c U y: parts of sums are reduced and scattered, their gradients gathered
    a2a_cross       2 e c N y
    local           U / W (3 pB c r) + 2 c U y
    and of every rank coalesced pB, which are sorted by the rank that has their row.
    """
    n, w, u = _shape(prices)
    lookups, x, y = _moved(prices, table)
    static, accessed, dynamic, payload, intra, cross, local = (np.zeros(u) for _ in range(7))
    sent = between = 0.0
    for shard in shards.shards:
        at, c, part = shard.rank, shard.columns, shard.rows
        static[at] += part * c * table.rows.num_rows * table.width
        accessed[at] += u * part * lookups
        dynamic += part * c * y
        dynamic[at] += c * (u + n) * y
        payload[at] += u * part * x
        sums = c * y
        intra[at] += 2 * prices.carried * sums * u
        cross[at] += 2 * prices.carried * sums * n
        local += prices.coding(part * sums) / 2
        local[at] += u * part * 3 * lookups * c * table.width + 2 * sums * u
        local[at] += prices.coding(sums * (u + n)) / 2
        sent += part * lookups
        between += (u - w) * part * x + 2 * prices.carried * sums * (n - 1)
    return Cost(
        static_memory=static,
        ids_sent=sent,
        rows_accessed=accessed,
        dynamic_memory=dynamic,
        a2a_global=payload,
        a2a_intra=intra,
        a2a_cross=cross,
        between_nodes=between if n > 1 else 0.0,
        local=local,
        coalesced=sent,
    )


def _everywhere(prices: Prices, table: ProfiledTable) -> Cost:
    """Data-parallel: all ranks have all rows, whose gradients are all-reduced, touched or not."""
    lookups, _, y = _moved(prices, table)
    size = table.rows.num_rows * table.width
    return Cost(
        static_memory=2 * size,
        rows_accessed=lookups,
        dynamic_memory=y,
        ar_global=size,
        between_nodes=prices.cluster.reduced_between_nodes * size,
        local=4 * size + 3 * lookups * table.width + 2 * y,
    )


def _shape(prices: Prices) -> tuple[int, int, int]:
    cluster = prices.cluster
    return cluster.n_nodes, cluster.ranks_per_node, cluster.world_size


def _moved(prices: Prices, table: ProfiledTable) -> tuple[float, float, float]:
    """pB; x; and y, of one rank's batch."""
    lookups = table.rows.lookups * prices.batch_size
    bags = table.bags * prices.batch_size
    ids = lookups * ID_BYTES + bags * LENGTH_BYTES
    if not table.bags:
        return lookups, ids, lookups * table.width
    return lookups, ids, bags * table.dim * SUM_BYTES
