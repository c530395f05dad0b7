"""The ledger of a choice: the prices of all tables, added up, with the calls and operations that
tables share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recd_plugins.planning.prices.cost import COLLECTIVES, Cost, Prices
from recd_plugins.planning.prices.milliseconds import (
    Lane,
    milliseconds,
    overlapped,
    working_meanwhile,
)
from recd_plugins.planning.prices.router_memory import router_bytes
from recd_plugins.planning.prices.table_ledger import (
    REPLICAS,
    TableLedger,
    TierName,
    travelling_shares,
)
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import CHUNK_ROWS, Coalesce, shares_of_replicated

__all__ = ["Ledger"]

OPERATIONS: Mapping[str, int] = {
    "replicated": 205,
    "in common": 125,
    "per_node": 175,
    "none": 0,
    "rank": 35,
    "node": 105,
}
"""Tensor operations of our tiers beside those of row-wise tables, as torch's profiler counts them
in a step of 2 x 2 ranks whose update is one chunk: views count, operations within others do not.
Two ranks alone have the rows of `replicated` in common. A test counts such steps
(tests/tiers/test_counted_steps.py).
"""
FURTHER: Mapping[str, int] = {"replicated": 115, "in common": 55, "per_node": 45}
"""The same of each chunk of rows after the first of an update."""
CALLS: Mapping[str, Mapping[str, int]] = {
    "rows": {"a2a_global": 3},
    "table_wise": {"a2a_global": 3},
    "row_wise": {"a2a_global": 1, "ar_global": 1},
    "table_row_wise": {"a2a_global": 1, "a2a_intra": 2, "a2a_cross": 2},
    "grid_shard": {"a2a_global": 1, "a2a_intra": 2, "a2a_cross": 2},
    "data_parallel": {"ar_global": 1},
}
"""Calls of an exchange with tables at home, without its splits: for ids, for rows or sums, and for
gradients. Parts of sums are all-reduced."""
ROUTING = 55
"""Tensor operations of a collection with any of these, to route ids and to merge rows."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The cost of all tables, each by its sizes."""

    prices: Prices
    tables: Mapping[str, TableLedger]

    @classmethod
    def of(
        cls,
        tables: Mapping[str, ProfiledTable],
        sizes: Mapping[str, TableSizes],
        prices: Prices,
    ) -> Ledger:
        """A table without sizes is plain row-wise."""
        every = {name: sizes.get(name, TableSizes()) for name in tables}
        shares = travelling_shares(tables, every)
        return cls(
            prices=prices,
            tables={
                name: TableLedger.of(table, every[name], prices, shares.get(name))
                for name, table in tables.items()
            },
        )

    @cached_property
    def cost(self) -> Cost:
        return self._replica_cost + self._home_cost

    @cached_property
    def memory(self) -> float:
        """Bytes a rank, on average where ranks differ."""
        return float(np.mean(self.cost.memory))

    @cached_property
    def static_memory(self) -> float:
        """The part of the memory that stays from step to step."""
        return float(np.mean(self.cost.static_memory))

    @cached_property
    def replica_memory(self) -> float:
        """The part of that which replicas take, and what goes with them."""
        return float(np.mean(self._replica_cost.static_memory))

    @cached_property
    def router_memory(self) -> float:
        """Bytes in which a rank finds the rows that have replicas. They are not in `memory`, and no
        budget counts them."""
        on_gpu = self.prices.cluster.side_stream  # which a CPU does not have
        return sum(
            router_bytes(
                one.table.rows.num_rows,
                one.sizes.replicas,
                on_gpu=on_gpu,
            )
            for one in self.tables.values()
            if not one.is_torchrecs
        )

    @cached_property
    def calls(self) -> dict[str, int]:
        """The number of times that a step calls each collective: `home_calls` and
        `replica_calls`."""
        return {name: self.home_calls[name] + self.replica_calls[name] for name in COLLECTIVES}

    @cached_property
    def home_calls(self) -> dict[str, int]:
        """Calls for the tables at home: splits once for all of them, and each exchange's `CALLS`.
        Tables of one collection, sharding type, width and way share an exchange. Node coalescing
        adds the way to concentrators, once for tables of one width, and still makes TorchRec's
        calls over all ranks: their latency is a2a_global's, only their bytes are a2a_cross's.
        """
        by_node = {
            one.table.width
            for one in self.tables.values()
            if one.sizes.coalesce == "node" and one.entries["home"].rows
        }
        exchanges = {one.exchange for one in self.tables.values()}
        calls = dict.fromkeys(COLLECTIVES, 0)
        for kind, *_ in exchanges:
            for name, count in CALLS.get(kind, CALLS["table_wise"]).items():
                calls[name] += count
        calls["a2a_global"] += int(calls["a2a_global"] > 0)
        calls["a2a_intra"] += 4 * len(by_node)
        return calls

    @cached_property
    def replica_calls(self) -> dict[str, int]:
        """Tables of one collection, width and way of coalescing share calls. `replicated`: 4
        within the node, for which rows are touched, reduce and gather, or of two ranks alone 2; 2
        across. `per_node`: 1 within the node, gradients to owners, for its lookups ride with the
        exchange with home; 2 across, and on a CPU 3, since there nodes first say how many rows they
        touched. Each further chunk is reduced and gathered for itself, which of `per_node` is a
        call across. A dense reduce of `replicated` is one all-reduce. None within a node of one
        rank, or across of one node.
        """
        dense, cluster = self.prices.reduce == "dense", self.prices.cluster
        n, w = cluster.n_nodes, cluster.ranks_per_node
        calls = dict.fromkeys(COLLECTIVES, 0)
        # To say which rows are touched takes as many calls of `replicated` as a chunk.
        of_chunk = 2 if self._shares == w else 1
        for (tier, *_), further in self._further_chunks.items():
            if dense and tier == "replicated":
                calls["ar_global"] += 1
                continue
            per_node = tier == "per_node"
            if w > 1:
                calls["a2a_intra"] += 1 if per_node else of_chunk * (2 + further)
            if n > 1:
                before = 0 if dense else 1 + int(per_node and not cluster.side_stream)
                calls["ar_cross"] += before + 1 + further
        return calls

    @property
    def _shares(self) -> int:
        cluster = self.prices.cluster
        return shares_of_replicated(cluster.n_nodes, cluster.ranks_per_node)

    @cached_property
    def _further_chunks(self) -> Mapping[tuple[TierName, str, int, Coalesce], int]:
        """The chunks after the first in which rows are updated, by tier and alike: a share of
        `replicated` has as many rows of each chunk as any other, one of `per_node` has chunks of
        its own. A dense reduce has one chunk. Where a side stream runs them one after another and
        nobody waits, they have no price of their own."""
        touched: dict[tuple[TierName, str, int, Coalesce], float] = {}
        for one in self.tables.values():
            for tier in REPLICAS if one.has_replicas else ():
                if one.entries[tier].rows:
                    alike = tier, *one.alike
                    touched[alike] = touched.get(alike, 0.0) + one.entries[tier].touched
        w = self.prices.cluster.ranks_per_node
        return {
            alike: 0
            if self.prices.reduce == "dense" or self.prices.cluster.side_stream
            else max(math.ceil(rows / (CHUNK_ROWS * (w if alike[0] == "per_node" else 1))) - 1, 0)
            for alike, rows in touched.items()
        }

    @cached_property
    def operations(self) -> int:
        """Tensor operations of a step beside TorchRec's own, whatever their size: `OPERATIONS` of
        each tier and way of coalescing, which tables that are alike share, and `FURTHER` of each
        chunk after the first; and `ROUTING` of each collection with any."""
        every = [one.operations for one in self.tables.values()]
        parts = frozenset[tuple[str, str, int, Coalesce]]().union(*(shared for shared, _ in every))
        routed = {collection for part, collection, *_ in parts if OPERATIONS[part]}
        if not routed:
            return 0
        cluster = self.prices.cluster
        called = {"replicated": "in common"} if self._shares < cluster.ranks_per_node else {}
        operations = sum(OPERATIONS[called.get(part, part)] for part, *_ in parts)
        operations += len(routed) * ROUTING
        for (tier, *_), further in self._further_chunks.items():
            operations += further * FURTHER[called.get(tier, tier)]
        return operations + sum(own for _, own in every)

    @cached_property
    def ms_by_collective(self) -> dict[str, float]:
        """Expected time of a step by collective, and of the rank's own work."""
        return milliseconds(self.cost, self.prices.cluster, self.calls, self.operations)

    @cached_property
    def ms(self) -> float:
        """Expected milliseconds of a step's exchange and lookups."""
        return overlapped(self.ms_by_collective, self.prices.cluster, *self._lanes)

    @cached_property
    def ms_working_meanwhile(self) -> float:
        """The same where ranks that share processors always work while others wait for bytes
        between nodes: with little to exchange, a step takes as long as processors work. Where no
        ranks share one, or all are of one node, it is `ms`."""
        if not self.may_work_meanwhile:
            return self.ms
        home, replicas = self._lanes
        return working_meanwhile(self.prices.cluster, home.own + replicas.own, self.traffic)

    @property
    def may_work_meanwhile(self) -> bool:
        """Whether ranks share a processor, on which one may work while another waits for bytes."""
        cluster = self.prices.cluster
        return not cluster.side_stream and cluster.n_nodes > 1 and cluster.crowded > 1

    @property
    def traffic(self) -> float:
        """Milliseconds that its bytes are on links between nodes."""
        home, replicas = self._lanes
        return home.traffic + replicas.traffic

    @property
    def _lanes(self) -> tuple[Lane, Lane]:
        """The lane of home, and that of replicas."""
        cluster = self.prices.cluster
        # Where replicas have no stream, all operations are in the rank's one thread.
        operations = 0 if cluster.side_stream else self.operations
        return (
            Lane.of(self._home_cost, cluster, self.home_calls),
            Lane.of(self._replica_cost, cluster, self.replica_calls, operations),
        )

    @cached_property
    def home_traffic(self) -> float:
        """Milliseconds that bytes of tables at home are on links between nodes."""
        return Lane.of(self._home_cost, self.prices.cluster, self.home_calls).traffic

    @property
    def handed_over(self) -> float:
        """The bytes that a rank hands to torch's collectives in a step, on average. All of an
        operand counts, with what stays on the rank.

        The sums of replicas' gradients, which a node gathers, are priced for v r bytes with
        v = appears(B U), but a rank hands over less: its share for each other rank,
        (W - 1) v r / W. In an all-reduce over two ranks it hands over v r of the 2 v r.
        """
        total = self.cost.exchanged
        if self.prices.cluster.ranks_per_node == 1 or self.prices.reduce == "dense":
            return total
        return total - sum(map(self._own_share, self.tables.values()))

    def _own_share(self, one: TableLedger) -> float:
        """v r / W: the sums of a table's replicas that stay on the rank; v r on two ranks."""
        taken, cluster = one.sizes.replicated, self.prices.cluster
        if one.sizes.as_torchrec or not taken:
            return 0.0
        rows = one.table.rows.part(0, taken)
        summed = rows.counts @ rows.appear(self.prices.batch_size * cluster.world_size)
        return float(summed) * one.table.width / self._shares

    @cached_property
    def _home_cost(self) -> Cost:
        return Cost.of_all(one.entries["home"].cost for one in self.tables.values())

    @cached_property
    def _replica_cost(self) -> Cost:
        return Cost.of_all(one.replica_cost for one in self.tables.values() if one.has_replicas)
