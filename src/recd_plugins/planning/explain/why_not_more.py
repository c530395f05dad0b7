"""Why a tier takes no more rows of a table: what the next one would save, and what it takes."""

from __future__ import annotations

import dataclasses

from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.explain.words import in_bytes, in_us
from recd_plugins.planning.prices.bag_cost import travelling
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.prices.milliseconds import marginal_ms
from recd_plugins.planning.prices.table_ledger import TableLedger, home_cost

__all__ = ["why_not_more"]


def why_not_more(table: TableLedger, ledger: Ledger, room: float | None) -> str:
    """Why the last tier that took rows did not take the next one; `room` is what a budget
    leaves."""
    sizes, rows = table.sizes, table.table.rows
    if sizes.as_torchrec:
        return "left to TorchRec's own plan"
    taken = sizes.replicas
    if taken >= rows.num_rows:
        return "every row has a replica"
    next_row = rows.part(taken, taken + 1)
    prices, width = ledger.prices, table.table.width
    pooled = int(table.travels)
    cluster = prices.cluster
    nodes = cluster.n_nodes > 1 and cluster.ranks_per_node > 1
    per_node = sizes.per_node or (not sizes.replicated and nodes)
    moves = (
        prices.per_node(next_row, width, sizes.coalesce, pooled)
        if per_node
        else prices.replicated(next_row, width, pooled)
    ).total(next_row.counts)
    stays, memory = _stays(table, ledger, next_row, taken)
    gain = stays - float(marginal_ms(moves, cluster))
    more = moves.memory - memory
    opening = (
        f"no more rows in {'per_node' if per_node else 'replicated'}: the next one, "
        f"{next_row.p[0]:.3g} lookups a sample, would "
    )
    if gain <= 0:
        return f"{opening}cost {in_us(-gain)} more than it saves"
    limit = _limit(ledger, room, more)
    return f"{opening}save {in_us(gain)} for {in_bytes(more)} a rank: {limit}"


def _stays(
    table: TableLedger, ledger: Ledger, row: RowDistribution, taken: int
) -> tuple[float, float]:
    """Milliseconds and bytes that the table takes for the row, which follows on those taken."""
    prices, sizes, profiled = ledger.prices, table.sizes, table.table
    if not profiled.bags or sizes.coalesce != "none":
        priced = prices.row_wise(
            row, profiled.width, sizes.coalesce, int(table.travels), int(profiled.mapped)
        )
        cost = priced.total(row.counts)
        return float(marginal_ms(cost, prices.cluster)), cost.memory
    # A bag's sum is spared with the last of its rows: this one may be that.
    rows = profiled.rows
    home, left = (
        home_cost(
            prices,
            profiled,
            dataclasses.replace(sizes, replicated=first, per_node=0),
            travelling(rows, profiled.bags, first),
        ).mean
        for first in (taken, taken + 1)
    )
    before, after = (float(marginal_ms(cost, prices.cluster)) for cost in (home, left))
    return before - after, home.memory - left.memory


def _limit(ledger: Ledger, room: float | None, more: float) -> str:
    """Why a row that a replica would make faster has none; it would take `more` bytes a rank."""
    ranks = ledger.prices.cluster.world_size
    if not any(one.has_replicas for one in ledger.tables.values()):
        return "a tier's own collectives would take longer than all of its rows save"
    if room is not None and more > 0 and more * ranks > room:
        return "memory is used up"
    return f"replicas are fewer by the goal, or by whole multiples of {ranks} ranks"
