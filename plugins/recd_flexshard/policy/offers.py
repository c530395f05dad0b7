"""The offer of each tier for each row: bytes of memory and milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from recd_plugins.api.planning import Coalesce, Cost, Floats, MergedRows, Prices, marginal_ms

__all__ = ["PER_NODE", "REPLICATED", "ROW_WISE", "Offers"]

ROW_WISE, PER_NODE, REPLICATED = range(3)


@dataclass(frozen=True, kw_only=True, eq=False)
class Offers:
    """The cost of R bands in each tier: `home`, `per_node` and `replicated`, in this
    order."""

    memory: Floats
    """[3, R] bytes per rank for a row of the band."""
    static_memory: Floats
    """[3, R] of these, those that stay from step to step."""
    ms: Floats
    """[3, R] milliseconds per step for it, latencies aside."""

    @classmethod
    def of(
        cls,
        merged: MergedRows,
        prices: Prices,
        coalesce: Mapping[str, Coalesce],
        busy: Mapping[str, float] = MappingProxyType({}),
    ) -> Offers:
        """`coalesce` says how the ids of each table travel, by default as they are. Rows at home
        take `busy` times as long, where all wait for a rank that has more than its share."""
        rows, width = merged.rows, merged.width
        every = np.zeros((3, 3, len(width)))
        levels = np.array([coalesce.get(name, "none") for name in merged.names])
        pooled = merged.pooled * (levels != "none")[merged.table]
        every[:, REPLICATED] = _priced(prices.replicated(rows, width, pooled), prices)
        for level in np.unique(levels).tolist():
            here = (levels == level)[merged.table]
            part = rows if here.all() else rows.at(here)
            own = width[here], level, pooled[here]
            at_home = prices.row_wise(part, *own, mapped=merged.mapped[here])
            every[:, ROW_WISE, here] = _priced(at_home, prices)
            every[:, PER_NODE, here] = _priced(prices.per_node(part, *own), prices)
        every[2, ROW_WISE] *= np.array([busy.get(name, 1.0) for name in merged.names])[merged.table]
        return cls(memory=every[0], static_memory=every[1], ms=every[2])


def _priced(cost: Cost, prices: Prices) -> tuple[Floats, Floats, Floats]:
    return cost.memory, cost.static_memory, marginal_ms(cost, prices.cluster)
