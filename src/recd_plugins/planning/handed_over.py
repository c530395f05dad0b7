"""The bytes that a rank hands to torch's collectives in a step, by a ledger: to be counted."""

from __future__ import annotations

from recd_plugins.planning.access.distribution import appears
from recd_plugins.planning.ledger import Ledger, TableLedger

__all__ = ["handed_over"]


def handed_over(ledger: Ledger) -> float:
    """The bytes of one rank, on average; all of an operand counts, what stays on the rank too.

    But of the sums of replicas' gradients, which its node gathers, a rank hands over its share for
    each other rank, (W - 1) v r / W of the v r that they are priced for; v = appears(B U).
    """
    total = ledger.cost.exchanged
    if ledger.prices.cluster.ranks_per_node == 1 or ledger.prices.reduce == "dense":
        return total
    return total - sum(_own_share(table, ledger) for table in ledger.tables.values())


def _own_share(table: TableLedger, ledger: Ledger) -> float:
    """v r / W: the sums of a table's replicas that stay on the rank."""
    taken, cluster = table.sizes.replicated, ledger.prices.cluster
    if table.sizes.as_torchrec or not taken:
        return 0.0
    rows = table.table.rows.part(0, taken)
    summed = rows.counts @ appears(rows.presence, ledger.prices.batch_size * cluster.world_size)
    return float(summed) * table.table.width / cluster.ranks_per_node
