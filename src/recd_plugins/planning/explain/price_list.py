"""The price of one row in every tier, with the formulas: `recd explain` prints it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recd_plugins.errors import so_many
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.prices import bag_cost, cost
from recd_plugins.planning.prices.bag_cost import row_wise_bags, table_wise_bags
from recd_plugins.planning.prices.cost import Cost, Prices
from recd_plugins.planning.prices.milliseconds import marginal_ms

__all__ = ["FLOAT", "PriceList"]

FLOAT = 4
"""Bytes of an element, where a row's bytes alone are known."""


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """The prices of a row of `width` bytes that samples look up `p` times on average."""

    prices: Prices
    p: float
    width: int
    dedupe_factor: float
    """The dedupe factor of sessions, which divides p."""

    def costs(self) -> Mapping[str, Cost]:
        """The costs by the way that the row is placed."""
        rows = RowDistribution.of([1], [self.p]).deduplicated(self.dedupe_factor)
        prices, width = self.prices, self.width
        ways = {
            "home": prices.row_wise(rows, width),
            "home by rank": prices.row_wise(rows, width, "rank"),
            "home by node": prices.row_wise(rows, width, "node"),
            "column_wise": prices.column_wise(rows, width),
            "replicated": prices.replicated(rows, width),
            "per_node": prices.per_node(rows, width),
        }
        dim = width // FLOAT
        return {way: price.total(rows.counts) for way, price in ways.items()} | {
            "row_wise bag": row_wise_bags(prices, rows, bags=1, dim=dim, width=width),
            "table_wise bag": table_wise_bags(prices, rows, bags=1, dim=dim, width=width),
        }

    def values(self) -> Mapping[str, Any]:
        """All numbers, for machines; `ms` is a step's, latencies aside."""
        cluster = self.prices.cluster
        return {
            way: {**vars(price), "ms": float(marginal_ms(price, cluster))}
            for way, price in self.costs().items()
        }

    def lines(self) -> Iterator[str]:
        """A table of them, then each price's formulas."""
        prices, values = self.prices, self.values()
        nodes, ranks = prices.cluster.n_nodes, prices.cluster.ranks_per_node
        yield (
            f"a row of {self.width} bytes, {self.p:g} lookups a sample, deduplicated by a factor "
            f"of {self.dedupe_factor:g}; {so_many(nodes, 'node')} of {so_many(ranks, 'rank')}, "
            f"{so_many(prices.batch_size, 'sample')} a rank and step, k = {prices.k:.3g}, "
            f"gradients of replicas reduced: {prices.reduce}; and a bag a sample of so many "
            "lookups, whose sum travels"
        )
        ways = list(values)
        widths = [max(10, len(way)) for way in ways]
        yield "  ".join([" " * 15, *map(str.rjust, ways, widths)])
        for name in values[ways[0]]:
            cells = (f"{values[way][name]:.4g}" for way in ways)
            yield "  ".join([name.ljust(15), *map(str.rjust, cells, widths)])
        yield ""
        yield from (inspect.getdoc(cost) or "").splitlines()[2:]
        for price in ("row_wise", "column_wise", "replicated", "per_node"):
            yield ""
            yield from (inspect.getdoc(getattr(Prices, price)) or "").splitlines()
        for text in (bag_cost, row_wise_bags, table_wise_bags):
            yield ""
            yield from (inspect.getdoc(text) or "").splitlines()
