"""The cost of rows: FlexShard's six metrics (tables 2 and 3), and what coalescing makes of them.

In the formulas a row has r bytes and p, q = its expected lookups and its chance to appear in a
sample; B samples a rank, U = N * W ranks in N nodes of W. appears(n) = 1 - (1 - q)^n. Prices are
per rank and step, forward and backward together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add, attrgetter
from typing import Any, Literal

import numpy as np

from recd_plugins.planning.access.distribution import Floats, RowDistribution
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, shares_of_replicated

__all__ = [
    "COLLECTIVES",
    "ID_BYTES",
    "NUMBER_BITS",
    "PAPER_K",
    "STEPPED",
    "Cost",
    "Prices",
    "Pricing",
    "Reduce",
    "priced",
]

COLLECTIVES = ("a2a_global", "a2a_intra", "a2a_cross", "ar_global", "ar_cross")
"""The fields of a `Cost` that are bytes of collectives; a `Cluster` has a link for each."""

ID_BYTES = 8
"""int64, as TorchRec sends ids."""
TOUCHED_BYTES = 1 / 8
"""A bit for each replicated row, by which nodes exchange which rows they touched."""
STEPPED = 10.0
"""The most passes over a chunk in which sums are scaled and rows stepped: one for each
operation."""
NUMBER_BITS = 32
"""Bits of the number by which a node on a CPU names a row of the tier `per_node` that it
touched."""
PAPER_K = 6.25
"""k of the paper's framework, as its table 5 implies it."""
Pricing = Literal["ours", "paper"]
"""paper: FlexShard as published (section 4). A row is sent once per access, and the gradients of
all replicas are all-reduced in every step, whatever it looked up: static communication is r over
all ranks for `replicated`, r / W across nodes for `per_node`. ours: a rank asks its node for a row
once, and only the gradients of rows that a step touched are reduced."""
Reduce = Literal["dense", "union", "sparse", "touched"]
"""How gradients of replicas are summed across nodes: of all rows, as data parallelism does it;
of the rows that any rank touched; by gathering the rows that each node touched; or by
whichever of these two carries less."""


@dataclass(frozen=True)
class Cost:
    """The cost of rows on each rank in a step: numbers, or arrays [R] with a price for each band.

    The cost of TorchRec's own plan has arrays [U] instead, since ranks differ there.

    The first nine are the paper's six metrics: its dynamic and its static communication are the
    bytes that each collective carries, from which `Cluster` makes milliseconds.
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
    a2a_cross: Any = 0.0
    """Bytes of all-to-alls between ranks of one place in their nodes: dynamic communication."""
    ar_global: Any = 0.0
    """Bytes of all-reduces over all ranks: static communication."""
    ar_cross: Any = 0.0
    """Bytes of all-reduces across nodes: static communication."""
    between_nodes: Any = 0.0
    """Bytes that leave a node, summed over nodes."""
    local: Any = 0.0
    """Bytes of rows that the rank reads and writes in its own memory."""
    summed: Any = 0.0
    """Bytes of chunks of rows that the rank reads and writes to sum the gradients of replicas, and
    to step these."""
    coalesced: Any = 0.0
    """Ids that are compared to find equal ones, or sorted by the rank that has their row."""
    updated: Any = 0.0
    """Rows that TorchRec looks up one by one, each once, whose gradients the rank applies."""
    marked: Any = 0.0
    """Rows for which the rank makes, exchanges and searches marks of whether any rank touched them:
    all rows that have replicas, in every step."""
    paged: Any = 0.0
    """Different rows of mapped files that the rank reads and writes."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, _all_of(self), _all_of(other)))

    @classmethod
    def of_all(cls, costs: Iterable[Cost]) -> Cost:
        """Their sum; nothing costs nothing."""
        every = [one._apart for one in costs]
        if not every:
            return cls()
        found: list[Any] = _added([numbers for numbers, _, _ in every]).tolist()
        for fields in {fields: None for _, fields, _ in every if fields}:
            ranks = _added([arrays for _, own, arrays in every if own == fields])
            for at, array in zip(fields, ranks, strict=True):
                found[at] = array + found[at]
        return cls(*found)

    @cached_property
    def _apart(self) -> tuple[Floats, tuple[int, ...], Floats]:
        """Its numbers [16], 0 in the place of arrays; the fields that are arrays; and these [n, U].

        numpy takes as long to add two numbers as to add hundreds.
        """
        every = _all_of(self)
        fields = tuple(at for at, one in enumerate(every) if isinstance(one, np.ndarray))
        numbers = [0.0 if at in fields else one for at, one in enumerate(every)]
        return np.array(numbers, np.float64), fields, np.array([every[at] for at in fields])

    def total(self, counts: Any) -> Cost:
        """The sum over bands of `counts` [R] rows at these prices."""
        return Cost(*(float(_sum(counts, own)) for own in _all_of(self)))

    @property
    def own_work(self) -> tuple[Any, ...]:
        """The rank's own work, as `Cluster.local_ms` takes it."""
        return self.local, self.coalesced, self.updated, self.summed, self.marked, self.paged

    @property
    def memory(self) -> Any:
        """Static and dynamic bytes together."""
        return self.static_memory + self.dynamic_memory

    @cached_property
    def mean(self) -> Cost:
        """The cost of a rank on average, where ranks differ."""
        return Cost(*map(_mean, _all_of(self)))

    @cached_property
    def exchanged(self) -> float:
        """Bytes that a rank hands to collectives, on average."""
        return float(sum(_mean(getattr(self, name)) for name in COLLECTIVES))


_all_of = attrgetter(*(one.name for one in dataclasses.fields(Cost)))


def _added(alike: Sequence[Floats]) -> Floats:
    """The sum of arrays of one shape."""
    every = np.concatenate(alike).reshape(len(alike), *alike[0].shape)
    total: Floats = np.add.reduce(every, axis=0)
    return total


def _sum(counts: Any, price: Any) -> Any:
    return 0.0 if isinstance(price, float) and not price else (counts * price).sum()


def _mean(of_ranks: Any) -> float:
    # numpy takes microseconds for a single number, and its mean as long again
    if isinstance(of_ranks, float):
        return of_ranks
    return float(np.add.reduce(of_ranks) / len(of_ranks) if np.ndim(of_ranks) else of_ranks)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices of rows on a cluster: a method for each way to place them.

    Where a rank is alone in its node, nothing goes through a2a_intra.
    `width` is r: a number, or [R] where bands of several tables are priced together.
    """

    cluster: Cluster
    batch_size: int
    """B: samples per rank and step."""
    k: float
    """Bytes that a replicated row takes with all that goes with it, over its own."""
    reduce: Reduce = "touched"
    ask_once: bool = True
    """Whether a rank asks its node for a row once, as our tiers do, or once per access."""
    stepped: float = STEPPED
    """o: passes over a chunk of sums in which they are scaled, and rows stepped by them:
    `replica_passes`."""
    carried: float = 1.0
    """e: bytes in which TorchRec's exchanges carry rows, sums and gradients, over those of float32,
    by the sharders' codecs. Exchanges of our own, within nodes and of replicas, have none."""

    def row_wise(
        self,
        rows: RowDistribution,
        width: Any,
        coalesce: Coalesce = "none",
        pooled: Any = 0,
        mapped: Any = 0,
    ) -> Cost:
        """The cost of `home`, TorchRec's row-wise table: one rank has the row, others ask for it.

        static_memory   r / U; none where the table is `mapped` (1)
        ids_sent        s
        rows_accessed   s
        dynamic_memory  2 s r; coalesced (2 s + pB) r, since the answers are spread again
        a2a_global      s (2 e r + 8)
        local           8 s r; coalesced (8 s + 4 pB) r; with codecs `coding` of s r more
        coalesced       s; coalesced pB more
        updated         appears(B U) / U
        paged           the same where the table is `mapped`
        with s the times that a rank asks: pB; coalesced per rank appears(B); per node
        appears(B W) / W. The rank sorts ids by the rank that has their row, puts the rows that come
        back in the order of its ids, and gradients in that of ranks, which is half of 8 s r. Per
        node, each rank first asks for i = appears(B) rows of a concentrator: the rank of its node
        with the home's place. That adds ids_sent i,
        dynamic_memory 2 i r, local 4 i r and a2a_intra i (2 r + 8), and what was a2a_global
        is a2a_cross. Answers that are `pooled` (1) are summed as they are spread: no memory,
        and 3 pB for 4 pB.
        """
        accesses, crossing = rows.p * self.batch_size, self.asked(rows, coalesce)
        n, _, u = self._shape
        intra = rows.appear(self.batch_size) if coalesce == "node" else 0.0 * accesses
        moved = 2 * crossing + 2 * intra
        spread = 0.0 if coalesce == "none" else accesses
        payload = crossing * (2 * self.carried * width + ID_BYTES)
        across = payload if coalesce == "node" else 0.0 * payload
        updated = rows.appear(self.batch_size * u) / u
        return Cost(
            static_memory=(1 - mapped) * width / u,
            ids_sent=crossing + intra,
            rows_accessed=crossing,
            dynamic_memory=(moved + spread * (1 - pooled)) * width,
            a2a_global=payload - across,
            a2a_cross=across,
            a2a_intra=self._within_node(intra * (2 * width + ID_BYTES)),
            between_nodes=payload * u * (n - 1) / n,
            local=(2 * moved + 4 * crossing + (4 - pooled) * spread) * width
            + self.coding(crossing * width),
            coalesced=crossing if coalesce == "none" else crossing + accesses,
            updated=updated,
            paged=mapped * updated,
        )

    def asked(self, rows: RowDistribution, coalesce: Coalesce) -> Floats:
        """[R] s of `row_wise`: the times that a rank asks the one that has the row."""
        if coalesce == "rank":
            return rows.appear(self.batch_size)
        if coalesce == "node":
            w = self.cluster.ranks_per_node
            return rows.appear(self.batch_size * w) / w
        return rows.p * self.batch_size

    def coding(self, sent: Any) -> Any:
        """Bytes that a rank reads and writes where it encodes and decodes so many, forward as
        backward: 4 (1 + e) of each; none without codecs."""
        return 4 * (1 + self.carried) * sent if self.carried < 1 else 0.0 * sent

    def column_wise(self, rows: RowDistribution, width: Any) -> Cost:
        """The cost of `column_wise`, TorchRec's table of which each rank has D / U columns.

        static_memory   r / U
        ids_sent        U pB
        rows_accessed   U pB (of D / U columns)
        dynamic_memory  2 pB r
        a2a_global      pB (2 e r + 8 U)
        local           4 pB r; with codecs `coding` of pB r more
        updated         appears(B U)
        """
        accesses = rows.p * self.batch_size
        n, _, u = self._shape
        payload = accesses * (2 * self.carried * width + u * ID_BYTES)
        return Cost(
            static_memory=width / u,
            ids_sent=u * accesses,
            rows_accessed=u * accesses,
            dynamic_memory=2 * accesses * width,
            a2a_global=payload,
            between_nodes=payload * u * (n - 1) / n,
            local=4 * accesses * width + self.coding(accesses * width),
            updated=rows.appear(self.batch_size * u),
        )

    def replicated(self, rows: RowDistribution, width: Any, pooled: Any = 0) -> Cost:
        """The cost of `replicated`, a copy on every rank: lookups stay, gradients are reduced.

        static_memory   k r
        rows_accessed   pB
        dynamic_memory  pB r
        local           (8 pB + 4 v) r, for rows are put in place among others and gradients
                        taken from among them; dense 4 (pB + 1) r; rows that are `pooled` (1)
                        are summed where they are: 3 pB for 8 pB, and no dynamic memory
        summed          4 s r + ((2 + o) v + m) r / W, m = (7 + 3 N) n gathered sparsely; dense none
        marked          1; dense none
        ar_global       r where the reduce is dense, v = t = 1; else, node by node,
        a2a_intra       (s + v) r + 1/4: parts to the rank that sums them, and sums back
        ar_cross        t r / W + N / 16 W; none where all ranks are of one node
        with s = appears(B), n = appears(B W), v = appears(B U), and t the same as v for a reduce
        over the union of touched rows; gathered sparsely t = appears(B W) N / 2, which carries as
        much as an all-reduce of so many. The bits of the rows that are touched make the small
        terms. Passes over a chunk of rows: a sum begins as zeros [1] and adds rows [3]; rows for
        other nodes are picked and put in place [7]; sums are scaled, and rows stepped by them [o]:
        10, or 5 by the one kernel of row-wise Adagrad on a CPU.
        Where two ranks of one node are all there are, both sum and step all rows, so that none is
        put in place: local 8 pB r, summed (3 s + (1 + o) v) r, a2a_intra 2 v r + 1/8, for an
        all-reduce carries as much as two all-to-alls.
        """
        accesses = rows.p * self.batch_size
        n, w, _ = self._shape
        if self.reduce == "dense":
            every = 0.0 * accesses + 1.0
            return Cost(
                static_memory=self.k * width,
                rows_accessed=accesses,
                dynamic_memory=accesses * width,
                ar_global=every * width,
                between_nodes=self.cluster.reduced_between_nodes * every * width,
                local=4 * (accesses + 1) * width,
            )
        own, union = rows.appear(self.batch_size), self._union(rows)
        exchanged = (own + union) * width + 2 * TOUCHED_BYTES
        put, summed = 4 * union, self._summed(rows)
        if shares_of_replicated(n, w) < w:
            exchanged = 2 * union * width + TOUCHED_BYTES
            put, summed = 0.0 * union, 3 * own + (1 + self.stepped) * union
        across = self._across(rows, width)
        return Cost(
            static_memory=self.k * width,
            rows_accessed=accesses,
            dynamic_memory=accesses * (1 - pooled) * width,
            a2a_intra=self._within_node(exchanged),
            ar_cross=across / w,
            between_nodes=2 * (n - 1) * across,
            local=((8 - 5 * pooled) * accesses + put) * width,
            summed=summed * width,
            marked=1.0,
        )

    def per_node(
        self, rows: RowDistribution, width: Any, coalesce: Coalesce = "none", pooled: Any = 0
    ) -> Cost:
        """The cost of `per_node`, a copy in every node, on one of its ranks.

        static_memory   k r / W
        ids_sent        s (within the node)
        rows_accessed   s
        dynamic_memory  2 s r; coalesced (2 s + pB) r
        a2a_intra       s (2 r + 8)
        ar_cross        t r / W + b N / 16 W (no bits where the reduce is dense)
        local           (4 s + 4 v / W) r; coalesced 8 pB r more, as in `replicated`; `pooled` as
                        there
        summed          4 s r + ((2 + o) v + m) r / W, as in `replicated` where there are more than
                        two ranks
        marked          b / W; dense none
        with s = appears(B), or pB where ids are not coalesced; t, v as in `replicated`; and b = 1,
        but on a CPU min(1, 32 appears(B W)), for there nodes number the rows that they touch, if
        few.
        """
        accesses = rows.p * self.batch_size
        plain = coalesce == "none" and not self.ask_once
        sent = accesses if plain else rows.appear(self.batch_size)
        spread = 0.0 if plain else accesses
        n, w, _ = self._shape
        bit = self._bit(rows)
        across = self._across(rows, width, bit)
        return Cost(
            static_memory=self.k * width / w,
            ids_sent=sent,
            rows_accessed=sent,
            dynamic_memory=(2 * sent + spread * (1 - pooled)) * width,
            a2a_intra=self._within_node(sent * (2 * width + ID_BYTES)),
            ar_cross=across / w,
            between_nodes=2 * (n - 1) * across,
            local=(4 * sent + (8 - 5 * pooled) * spread + 4 * self._union(rows) / w) * width,
            summed=self._summed(rows) * width,
            marked=0.0 if self.reduce == "dense" else bit / w,
            coalesced=0.0 * accesses if plain else accesses,
        )

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.cluster.n_nodes, self.cluster.ranks_per_node, self.cluster.world_size

    def _within_node(self, exchanged: Any) -> Any:
        """The bytes that go through an all-to-all within a node: none where a rank is alone in
        it."""
        return exchanged if self.cluster.ranks_per_node > 1 else 0.0 * exchanged

    def _union(self, rows: RowDistribution) -> Floats:
        """v: the chance that any rank has a gradient for the row; 1 for a dense reduce."""
        if self.reduce == "dense":
            return 0.0 * rows.p + 1.0
        return rows.appear(self.batch_size * self.cluster.world_size)

    def _summed(self, rows: RowDistribution) -> Any:
        """The passes over chunks in which the gradients of a row are summed and the row is
        stepped."""
        if self.reduce == "dense":
            return 0.0 * rows.p
        n, w, _ = self._shape
        own, union = rows.appear(self.batch_size), self._union(rows)
        touched = rows.appear(self.batch_size * w)
        gathered = 0.0 * touched
        if n > 1 and self.reduce != "union":
            cheaper = self.reduce == "sparse" or touched * n / 2 <= union
            gathered = np.where(cheaper, (7 + 3 * n) * touched, 0.0)
        return 4 * own + ((2 + self.stepped) * union + gathered) / w

    def _bit(self, rows: RowDistribution) -> Any:
        """b of `per_node`: the share of its bit that it takes to say whether nodes touch a row.

        On a CPU this is a lower bound where rows differ: for all rows of its share of a tier at
        once, a rank sends numbers or bits.
        """
        if self.cluster.side_stream:
            return 1.0
        touched = rows.appear(self.batch_size * self.cluster.ranks_per_node)
        return np.minimum(1.0, NUMBER_BITS * touched)

    def _across(self, rows: RowDistribution, width: Any, bit: Any = 1.0) -> Any:
        """t r: bytes of a row that an all-reduce across nodes carries, and of its `bit` before."""
        n, w, _ = self._shape
        union = self._union(rows)
        if n == 1:
            return 0.0 * union * width
        if self.reduce in ("dense", "union"):
            carried = union
        else:
            carried = rows.appear(self.batch_size * w) * n / 2
            if self.reduce == "touched":
                carried = np.minimum(carried, union)
        bits = 0.0 if self.reduce == "dense" else TOUCHED_BYTES * bit * n / 2
        return carried * width + bits


def priced(
    pricing: Pricing,
    *,
    cluster: Cluster,
    batch_size: int,
    k: float,
    stepped: float = STEPPED,
    carried: float = 1.0,
) -> Prices:
    """The prices of either kind on a cluster. Replicas take k times a row and are `stepped` in so
    many passes; embeddings are `carried` in that share of their bytes."""
    prices = Prices(cluster=cluster, batch_size=batch_size, k=k, carried=carried)
    if pricing == "paper":
        return dataclasses.replace(prices, reduce="dense", ask_once=False)
    return dataclasses.replace(prices, stepped=stepped)
