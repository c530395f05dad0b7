"""Sides on an emulated cluster, and what they took: seconds, and bytes that left a node."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.cluster.network import Network
from benchmarks.cluster.ranks import ClusterRanks
from benchmarks.flexshard.observed import Observed
from benchmarks.flexshard.sides import Side
from benchmarks.flexshard.steps import SideSteps, take_turns, topology
from benchmarks.flexshard.workload import Workload
from benchmarks.harness import spread
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.measured_topology import ROUNDS
from recd_plugins.planning.prices.cost import Prices

__all__ = ["EmulatedCluster", "Measured"]


@dataclass(frozen=True)
class Measured:
    """Sides that took turns on one workload."""

    sides: Sequence[Side]
    workload: Workload
    prices: Prices
    ranks: Sequence[Mapping[str, SideSteps]]

    def seconds(self, side: Side) -> float:
        """The time of a step, from barrier to barrier."""
        return statistics.median(self.ranks[0][side.name].seconds)

    def gains(self, side: Side, base: Side) -> list[float]:
        """How many times faster than `base`, round by round."""
        ours, theirs = (self.ranks[0][one.name].seconds for one in (side, base))
        return [other / own for own, other in zip(ours, theirs, strict=True)]

    def faster(self, side: Side, base: Side) -> tuple[float, float]:
        """The median of `gains`, and their spread."""
        gains = self.gains(side, base)
        return statistics.median(gains), spread(gains)

    def computed(self, side: Side) -> float:
        """Seconds that the ranks computed in a step, summed."""
        return sum(statistics.median(rank[side.name].cpu) for rank in self.ranks)

    def node_bytes(self, side: Side) -> float:
        """Bytes that leave a node in a step: the mean over nodes and steps, by the links'
        counters."""
        firsts = self.ranks[:: self.prices.cluster.ranks_per_node]
        return statistics.mean(sent for rank in firsts for sent in rank[side.name].node_bytes)

    @cached_property
    def observed(self) -> list[Observed]:
        """The bytes of each side, by the ledger and by the counters."""
        n_nodes = self.prices.cluster.n_nodes
        return [
            Observed(
                plan=side.name,
                predicted=side.ledger(self.workload, self.prices).cost.between_nodes / n_nodes,
                observed=self.node_bytes(side),
            )
            for side in self.sides
        ]


class EmulatedCluster:
    """Nodes and ranks that stay while workloads and bandwidths change; a context manager.

    Its collectives are timed in `rounds`.
    """

    def __init__(
        self, n_nodes: int, ranks_per_node: int, mbit: int, *, rounds: int = ROUNDS
    ) -> None:
        self._ranks_per_node = ranks_per_node
        self._rounds = rounds
        self._network = Network(n_nodes, mbit)
        self._ranks: ClusterRanks | None = None
        self._clusters: dict[int, Cluster] = {}

    def __enter__(self) -> EmulatedCluster:
        self._network.__enter__()
        try:
            self._ranks = ClusterRanks(self._network, self._ranks_per_node)
        except BaseException as error:
            self._network.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._ranks is not None
        self._ranks.__exit__(*error)
        self._network.__exit__(*error)

    def cluster(self, mbit: int) -> Cluster:
        """Set the links between nodes to `mbit` megabits per second, and return the cluster as
        measured."""
        ranks = self._running(mbit)
        if mbit not in self._clusters:
            found = ranks.run(topology, self._ranks_per_node, self._rounds)[0]
            self._clusters[mbit] = Cluster.of(found, ranks.world_size)
        return self._clusters[mbit]

    def measure(
        self, workload: Workload, sides: Sequence[Side], prices: Prices, *, mbit: int, rounds: int
    ) -> Measured:
        """Have the sides take turns."""
        ranks = self._running(mbit)
        steps = ranks.run(take_turns, workload, sides, prices.cluster, rounds)
        return Measured(sides, workload, prices, steps)

    def _running(self, mbit: int) -> ClusterRanks:
        assert self._ranks is not None
        if self._network.mbit != mbit:
            self._network.shape(mbit)
        return self._ranks
