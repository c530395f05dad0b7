"""What rows cost: FlexShard's six metrics for each way to place a row, with coalescing.

In the formulas a row has r bytes and p, q = its expected lookups and its chance to appear in a
sample; B samples a rank, U = N * W ranks in N nodes of W. appears(n) = 1 - (1 - q)^n. Prices are
per rank and step, forward and backward together.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.rows import Floats, RowDistribution, appears
from recd_plugins.planning.tier_plan import Coalesce

__all__ = ["ID_BYTES", "Cost", "Prices", "Reduce"]

ID_BYTES = 8
"""int64, as TorchRec sends ids."""

Reduce = Literal["dense", "union", "sparse"]
"""How gradients of replicas become one: of all rows, as data parallelism does it; of the rows
that any rank touched; or by gathering the rows that each touched."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What rows cost each rank in a step: numbers, or arrays [R] with a price for each run.

    The first six are the paper's metrics, the two kinds of communication as the bytes that
    each collective carries, from which `Cluster` makes milliseconds.
    """

    static_memory: Any = 0.0
    """Bytes of weights, optimizer states and gradients, whatever the batch."""
    ids_sent: Any = 0.0
    """Ids that leave for other ranks before lookups (input data distribution)."""
    rows_accessed: Any = 0.0
    """Rows looked up in tables of this rank."""
    dynamic_memory: Any = 0.0
    """Bytes of embeddings and gradients of a batch, sent and received."""
    a2a_global: Any = 0.0
    """Bytes of all-to-alls over all ranks, ids included: dynamic communication."""
    a2a_intra: Any = 0.0
    """Bytes of all-to-alls within a node: dynamic communication."""
    ar_global: Any = 0.0
    """Bytes of all-reduces over all ranks: static communication."""
    ar_cross: Any = 0.0
    """Bytes of all-reduces across nodes: static communication."""
    between_nodes: Any = 0.0
    """Bytes that leave a node, summed over nodes."""
    local: Any = 0.0
    """Bytes of rows that the rank reads and writes in its own memory."""
    coalesced: Any = 0.0
    """Ids that are compared to find equal ones."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: mine + getattr(other, name) for name, mine in vars(self).items()})

    def of(self, counts: Any) -> Cost:
        """The sum over runs of `counts` [R] rows at these prices."""
        return Cost(
            **{field.name: float(_sum(counts, getattr(self, field.name))) for field in FIELDS}
        )

    @property
    def memory(self) -> Any:
        """Static and dynamic bytes together."""
        return self.static_memory + self.dynamic_memory


FIELDS = dataclasses.fields(Cost)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Of rows on a cluster: a method for each way to place them.

    `width` is r: a number, or [R] where runs of several tables are priced together.
    """

    cluster: Cluster
    batch_size: int
    """B: samples per rank and step."""
    k: float
    """Bytes that a replicated row takes with all that goes with it, over its own."""
    reduce: Reduce = "union"

    def row_wise(self, rows: RowDistribution, width: Any, coalesce: Coalesce = "none") -> Cost:
        """In TorchRec's row-wise table (RW): one rank has the row, all others ask for it.

        static_memory   r / U
        ids_sent        s
        rows_accessed   s
        dynamic_memory  2 s r; coalesced (2 s + pB) r, since the answers are spread again
        a2a_global      s (2 r + 8)
        local           4 s r; coalesced (4 s + 2 pB) r
        with s the times that a rank asks: pB; coalesced per rank appears(B); per node
        appears(B W) / W, for which a2a_intra carries appears(B) (2 r + 8) to concentrators.
        """
        accesses, alone = rows.p * self.batch_size, appears(rows.presence, self.batch_size)
        n, w, u = self._shape
        crossing, intra = accesses, 0.0 * accesses
        if coalesce == "rank":
            crossing = alone
        elif coalesce == "node":
            crossing = appears(rows.presence, self.batch_size * w) / w
            intra = alone
        moved = 2 * crossing + 2 * intra
        spread = 0.0 if coalesce == "none" else accesses
        payload = crossing * (2 * width + ID_BYTES)
        return Cost(
            static_memory=width / u,
            ids_sent=crossing + intra,
            rows_accessed=crossing,
            dynamic_memory=(moved + spread) * width,
            a2a_global=payload,
            a2a_intra=intra * (2 * width + ID_BYTES),
            between_nodes=payload * u * (n - 1) / n,
            local=(2 * moved + 2 * spread) * width,
            coalesced=0.0 * accesses if coalesce == "none" else accesses,
        )

    def column_wise(self, rows: RowDistribution, width: Any) -> Cost:
        """In TorchRec's column-wise table (CW): each rank has D / U columns of every row.

        static_memory   r / U
        ids_sent        U pB
        rows_accessed   U pB (of D / U columns)
        dynamic_memory  2 pB r
        a2a_global      pB (2 r + 8 U)
        local           4 pB r
        """
        accesses = rows.p * self.batch_size
        n, _, u = self._shape
        payload = accesses * (2 * width + u * ID_BYTES)
        return Cost(
            static_memory=width / u,
            ids_sent=u * accesses,
            rows_accessed=u * accesses,
            dynamic_memory=2 * accesses * width,
            a2a_global=payload,
            between_nodes=payload * u * (n - 1) / n,
            local=4 * accesses * width,
        )

    def replicated(self, rows: RowDistribution, width: Any) -> Cost:
        """A copy on every rank (DP): lookups stay, gradients are reduced over all ranks.

        static_memory   k r
        rows_accessed   pB
        dynamic_memory  pB r
        ar_global       t r
        local           (4 pB + 4 t) r
        with t = 1 for a dense reduce; for the union of touched rows appears(B U); gathered
        sparsely appears(B W) N / 2, which carries as much as an all-reduce of so many.
        """
        accesses = rows.p * self.batch_size
        reduced = self._reduced(rows)
        return Cost(
            static_memory=self.k * width,
            rows_accessed=accesses,
            dynamic_memory=accesses * width,
            ar_global=reduced * width,
            between_nodes=self._ring(reduced) * width,
            local=4 * (accesses + reduced) * width,
        )

    def per_node(self, rows: RowDistribution, width: Any, coalesce: Coalesce = "none") -> Cost:
        """A copy in every node, on one of its ranks (Flex).

        static_memory   k r / W
        ids_sent        s (within the node)
        rows_accessed   s
        dynamic_memory  2 s r; coalesced (2 s + pB) r
        a2a_intra       s (2 r + 8)
        ar_cross        t r / W
        local           (4 s + 4 t / W) r; coalesced 2 pB r more
        with s = pB, coalesced per rank or node appears(B), and t as for DP.
        """
        accesses = rows.p * self.batch_size
        plain = coalesce == "none"
        sent = accesses if plain else appears(rows.presence, self.batch_size)
        spread = 0.0 if plain else accesses
        _, w, _ = self._shape
        reduced = self._reduced(rows)
        return Cost(
            static_memory=self.k * width / w,
            ids_sent=sent,
            rows_accessed=sent,
            dynamic_memory=(2 * sent + spread) * width,
            a2a_intra=sent * (2 * width + ID_BYTES),
            ar_cross=reduced * width / w,
            between_nodes=self._ring(reduced) * width,
            local=(4 * sent + 2 * spread + 4 * reduced / w) * width,
            coalesced=0.0 * accesses if plain else accesses,
        )

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.cluster.n_nodes, self.cluster.ranks_per_node, self.cluster.world_size

    def _reduced(self, rows: RowDistribution) -> Floats:
        """t: the part of a row that an all-reduce carries."""
        n, w, u = self._shape
        if self.reduce == "dense":
            return 0.0 * rows.p + 1.0
        if self.reduce == "union":
            return appears(rows.presence, self.batch_size * u)
        return appears(rows.presence, self.batch_size * w) * n / 2

    def _ring(self, reduced: Floats) -> Floats:
        """Row widths that leave nodes: 2 (N - 1) for each row that a ring reduces."""
        return 2 * (self.cluster.n_nodes - 1) * reduced


def _sum(counts: Any, price: Any) -> Any:
    return (counts * price).sum()
