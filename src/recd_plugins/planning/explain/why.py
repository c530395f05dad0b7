"""Why a table's tiers took no more rows than they did."""

from __future__ import annotations

import dataclasses

from recd_plugins.planning.explain.words import in_bytes, in_us
from recd_plugins.planning.ledger import Ledger, TableLedger, home_cost
from recd_plugins.planning.prices.step_time import marginal_ms
from recd_plugins.planning.rows import RowDistribution

__all__ = ["why_not_more"]


def why_not_more(table: TableLedger, ledger: Ledger, budget: float | None) -> str:
    """Why the last tier that took rows did not take the next one."""
    sizes, rows = table.sizes, table.table.rows
    taken = sizes.replicated + sizes.per_node
    if sizes.home == "table_wise":
        return "left to TorchRec's planner, as if table-wise: rows would travel for longer"
    if taken >= rows.num_rows:
        return "every row has a replica"
    next_row = rows.part(taken, taken + 1)
    prices, width = ledger.prices, table.table.width
    cluster = prices.cluster
    nodes = cluster.n_nodes > 1 and cluster.ranks_per_node > 1
    flex = sizes.per_node or (not sizes.replicated and nodes)
    moves = (
        prices.per_node(next_row, width, sizes.coalesce)
        if flex
        else prices.replicated(next_row, width)
    ).total(next_row.counts)
    stays, memory = _stays(table, ledger, next_row, taken)
    gain = stays - float(marginal_ms(moves, cluster))
    more = moves.memory - memory
    said = (
        f"no more rows in {'Flex' if flex else 'DP'}: the next one, {next_row.p[0]:.3g} "
        f"lookups a sample, would "
    )
    if gain <= 0:
        return f"{said}cost {in_us(-gain)} more than it saves"
    return f"{said}save {in_us(gain)} for {in_bytes(more)} a rank: {_limit(ledger, budget, more)}"


def _stays(
    table: TableLedger, ledger: Ledger, row: RowDistribution, taken: int
) -> tuple[float, float]:
    """Milliseconds and bytes that the table takes for the row, which follows on those taken."""
    prices, sizes, profiled = ledger.prices, table.sizes, table.table
    if not profiled.bags or sizes.coalesce != "none":
        cost = home_cost(profiled, sizes, row, prices)
        return float(marginal_ms(cost, prices.cluster)), cost.memory
    # A bag's sum is spared with the last of its rows: this one may be that.
    tiered = dataclasses.replace(sizes, replicated=max(sizes.replicated, 1))
    home, left = (
        home_cost(profiled, tiered, profiled.rows.part(first, profiled.rows.num_rows), prices)
        for first in (taken, taken + 1)
    )
    before, after = (float(marginal_ms(cost, prices.cluster)) for cost in (home, left))
    return before - after, home.memory - left.memory


def _limit(ledger: Ledger, budget: float | None, more: float) -> str:
    """Why a row that pays by itself has no replica; it would take `more` bytes a rank."""
    ranks = ledger.prices.cluster.world_size
    if not any(one.sizes.replicated or one.sizes.per_node for one in ledger.tables.values()):
        return "a tier's own collectives would take longer than all of its rows save"
    if budget is not None and more > 0:
        return "memory is used up"
    return f"replicas are fewer by the goal, or by whole multiples of {ranks} ranks"
