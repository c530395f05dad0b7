"""The bytes that a rank hands to torch's collectives in a step, by a ledger: to be counted."""

from __future__ import annotations

import numpy as np

from recd_plugins.planning.access.distribution import appears
from recd_plugins.planning.ledger import Ledger, TableLedger

__all__ = ["handed_over"]


def handed_over(ledger: Ledger) -> float:
    """Of one rank, on average; all of an operand counts, what stays on the rank too.

    Prices of replicas count what a link carries, there and back. Of one node's ranks each hands
    over the gradients of the rows that it touched itself, s r of each, and sends the sums of its
    share of those that any touched to each other rank, (W - 1) v r / W; s = appears(B), v =
    appears(B W).
    """
    prices = ledger.prices
    cluster = prices.cluster
    total = ledger.cost.exchanged
    if cluster.n_nodes > 1 or cluster.world_size == 1 or prices.reduce == "dense":
        return total
    return total + sum(_beyond(table, ledger) for table in ledger.tables.values())


def _beyond(table: TableLedger, ledger: Ledger) -> float:
    """What a table's replicas hand over beyond what they are priced for."""
    taken = table.sizes.replicated
    if table.sizes.as_torchrec or not taken:
        return 0.0
    ranks, batch_size = ledger.prices.cluster.world_size, ledger.prices.batch_size
    rows, cost = table.table.rows.part(0, taken), table.entries["replicated"].cost
    own, any_rank = (
        float(rows.counts @ appears(rows.presence, samples)) * table.table.width
        for samples in (batch_size, batch_size * ranks)
    )
    priced = float(np.mean(cost.a2a_intra) + np.mean(cost.ar_cross))
    return own + any_rank * (ranks - 1) / ranks - priced
