"""The forecast of a whole step: its parts, what hides beside what, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.planning.cluster.topology import GB
from recd_plugins.planning.prices.cost import COLLECTIVES, ID_BYTES
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.prices.milliseconds import working_meanwhile
from recd_plugins.planning.step.compute import Compute

__all__ = ["BUCKET", "StepForecast"]

EXCHANGES = ("a2a_global", "a2a_intra", "a2a_cross")
BUCKET = 25 << 20
"""Bytes of gradients that DistributedDataParallel all-reduces by one call."""
BACKWARD = 2 / 3
"""The share of dense layers and poolings that backward takes."""


@dataclass(frozen=True, kw_only=True)
class StepForecast:
    """A step of one rank, in milliseconds, as a ledger and what is computed beside it have it.

    Ranks are alike but for what the ledger has by rank, where the slowest counts.
    """

    ledger: Ledger
    """The tables: of unique samples, where lookups are of these."""
    compute: Compute
    unique: Mapping[str, float] = field(default_factory=dict)
    """The share of unique samples, by deduplicated feature."""
    handled: int = 0
    """Calls of a step that unique samples cost, whatever its batch."""
    workers: int = 0
    """Processes in which a rank's loader reads ahead; without, it reads within the step."""

    def __post_init__(self) -> None:
        for name, share in self.unique.items():
            if not 0 <= share <= 1:
                raise DataError(
                    f"step: unique samples of {name!r} are a share of 0 to 1, not {share}."
                )

    @property
    def batch_size(self) -> int:
        return self.ledger.prices.batch_size

    @property
    def world_size(self) -> int:
        return self.ledger.prices.cluster.world_size

    @cached_property
    def parts(self) -> dict[str, float]:
        """Milliseconds of each part by itself: those of `Compute.ms`; `lookups`, the ledger's own
        work; `handling`, the calls of unique samples; each collective of the ledger's; and
        `dense_reduce`, the dense gradients'."""
        found = self.compute.ms(self.batch_size, self.unique)
        found["handling"] = 1000 * self.handled * self.compute.call
        ledger = self.ledger.ms_by_collective
        found["lookups"] = ledger["local"]
        found |= {name: ledger[name] for name in COLLECTIVES if ledger[name]}
        found["dense_reduce"] = self._dense_reduce
        return found

    @cached_property
    def hidden(self) -> dict[str, float]:
        """Milliseconds of these that run beside others.

        replicas   the ledger's: the update of replicas beside the exchange with home
        handling   of these calls, where c ranks share a processor and there are several nodes,
                   (1 - 1 / c) * min(handling, home's time on links): others' bytes leave meanwhile
        exchange   beside * min(2/3 (dense + pooling) + fixed / 2, x + dense_reduce): what backward
                   computes, beside the dense gradients' all-reduce and x, the ids of the next
                   batch, which TrainPipelineSparseDist sends meanwhile; `beside` is the topology's
        pauses     of dense gradients and of those of rows, which travel at once: each are sent in
                   the pauses of the other (`_in_pauses`)
        loader     conversion and reading, by `workers` ahead of the step, as far as that lasts
        """
        parts = self.parts
        replicas = sum(self.ledger.ms_by_collective.values()) - self.ledger.ms
        exchange = self.beside_backward(self.ids)
        pauses = self._in_pauses(exchange)
        loading = parts["conversion"] + parts["reading"]
        handling = self._handled_meanwhile
        rest = sum(parts.values()) - loading - replicas - handling - exchange - pauses
        ahead = loading - max(loading / self.workers - rest, 0.0) if self.workers else 0.0
        return {
            "replicas": replicas,
            "handling": handling,
            "exchange": exchange,
            "pauses": pauses,
            "loader": ahead,
        }

    @property
    def _handled_meanwhile(self) -> float:
        """Milliseconds of the calls of unique samples in which other ranks are on the links."""
        cluster = self.ledger.prices.cluster
        if cluster.n_nodes == 1:
            return 0.0
        shared = 1 - 1 / cluster.crowded
        return shared * min(self.parts["handling"], self.ledger.home_traffic)

    def beside_backward(self, ids: float) -> float:
        """Milliseconds that what backward computes hides, of so many in which ids are sent and of
        those of the dense gradients."""
        parts = self.parts
        computed = BACKWARD * (parts["dense"] + parts["pooling"]) + parts["fixed"] / 2
        beside = self.ledger.prices.cluster.beside
        return beside * min(computed, ids + parts["dense_reduce"])

    def _in_pauses(self, hidden: float) -> float:
        """Milliseconds that dense gradients and those of rows take less at once than one after the
        other, where exchanges pause.

        With g half of the all-to-alls between nodes without ids, d the dense gradients' time less
        all that `exchange` hides, both without latencies, a and b the bytes a second that leave a
        node meanwhile, and m the most that leave it a second, both take
            max(g, d, (a g + b d) / m)
        where m is the larger of a and b; of gradients that cross nodes once, b counts for m without
        the time within nodes.
        """
        cluster = self.ledger.prices.cluster
        if not cluster.pauses:
            return 0.0
        n, w, u = cluster.n_nodes, cluster.ranks_per_node, self.world_size
        sent, ids = self._moving
        between = sum(sent[name] for name in EXCHANGES if name != "a2a_intra")
        rows = between * (1 - ids) / 2
        by_rows = cluster.a2a_global.gbps * w * (u - w) / u
        carried = self.compute.dense_carried
        took = crossing = carried / cluster.ar_global.gbps
        leaving = carried * 2 * (u - 1) / u
        if cluster.crosses_once(self.compute.dense_bytes, carried):
            crossing = carried / cluster.ar_cross.gbps / w
            took, leaving = 2 / cluster.a2a_intra.gbps + crossing, carried * 2 * (n - 1) / n
        dense = max(self.compute.dense_bytes / GB * took * 1000 - hidden, 0.0)
        both = (by_rows * rows + leaving / took * dense) / max(by_rows, leaving / crossing)
        return rows + dense - max(rows, dense, both)

    @property
    def ms(self) -> float:
        """Milliseconds of a step."""
        return sum(self.parts.values()) - sum(self.hidden.values())

    @property
    def ms_working_meanwhile(self) -> float:
        """The same where ranks that share processors work while others wait for bytes of tables
        between nodes: of all that a step has to do, and not of what `hidden` names. Where none
        share any, it is `ms`."""
        ledger = self.ledger
        if not ledger.may_work_meanwhile:
            return self.ms
        own = sum(self.parts.values()) - ledger.traffic - self.hidden["loader"]
        return working_meanwhile(ledger.prices.cluster, own, ledger.traffic)

    @property
    def samples_per_second(self) -> float:
        """The samples per second of all ranks."""
        return self.world_size * self.batch_size / self.ms * 1000

    @property
    def memory(self) -> float:
        """Bytes a rank: tables, what a step moves of them and what finds their replicas, dense
        parameters and activations."""
        tables = self.ledger.memory + self.ledger.router_memory
        return tables + self.compute.memory(self.batch_size, self.unique)

    @cached_property
    def bytes_by_link(self) -> dict[str, float]:
        """Bytes of a step that leave nodes, and that ranks send to others of their node; of all
        nodes and ranks.

        A payload of S bytes has a rank, one of U = N W, send others of its node (W - 1) / U S by an
        all-to-all over all, and (W - 1) / W S by one within the node; dense gradients that cross
        nodes once take two of these. An all-reduce is a ring of all ranks: a rank sends
        2 (U - 1) / U S to the next one, which is of its node for W - 1 of W ranks.
        """
        cluster, cost = self.ledger.prices.cluster, self.ledger.cost
        w, u = cluster.ranks_per_node, cluster.world_size
        mean = {name: float(np.mean(getattr(cost, name))) for name in COLLECTIVES}
        dense, carried = self.compute.dense_bytes, self.compute.dense_carried
        once = cluster.crosses_once(dense, carried)
        around = 2 * (mean["ar_global"] + (0.0 if once else carried * dense)) * (u - 1) / u
        intra = mean["a2a_intra"] + (2 * dense if once else 0.0)
        within = mean["a2a_global"] * (w - 1) / u + (intra + around) * (w - 1) / w
        return {
            "between_nodes": float(np.mean(cost.between_nodes))
            + cluster.dense_between_nodes(dense, carried),
            "within_nodes": u * within,
        }

    @property
    def _dense_reduce(self) -> float:
        """By calls of `BUCKET` bytes each, all but the last of which cost no more than the latency
        between nodes beside their bytes."""
        size, cluster = self.compute.dense_bytes, self.ledger.prices.cluster
        carried = self.compute.dense_carried
        if self.world_size == 1 or not size:
            return 0.0
        calls = math.ceil(size / BUCKET)
        if cluster.crosses_once(size, carried):
            return (calls - 1) * cluster.ar_cross.latency_ms + cluster.once_a_node_ms(size, carried)
        reduced = float(cluster.ar_global.ms(carried * size))
        return (calls - 1) * cluster.ar_global.latency_ms + reduced

    @property
    def ids(self) -> float:
        """Milliseconds of the exchanges that are of ids: two calls, for how many there are and for
        themselves, and of the time that bytes of all-to-alls take as large a share as ids are of
        these bytes."""
        if self.world_size == 1 or not self.ledger.home_calls["a2a_global"]:
            return 0.0
        moving, share = self._moving
        latency: float = 2 * self.ledger.prices.cluster.a2a_global.latency_ms
        return latency + share * sum(moving.values())

    @cached_property
    def _moving(self) -> tuple[dict[str, float], float]:
        """Milliseconds of the bytes of each all-to-all, latencies aside; and the share of ids in
        all of these bytes."""
        cluster, ledger = self.ledger.prices.cluster, self.ledger
        taken = {name: float(np.mean(getattr(ledger.cost, name))) for name in EXCHANGES}
        every = sum(taken.values())
        share = min(ID_BYTES * float(np.mean(ledger.cost.ids_sent)) / every, 1.0) if every else 0.0
        moving = {
            name: size / (getattr(cluster, name).gbps * GB) * 1000 for name, size in taken.items()
        }
        return moving, share
