"""FlexShard's four production models as published: table 4, table 5 and table 6."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.flexshard.coverage_curve import through_points
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import PRESETS
from recd_plugins.planning.prices.cost import PAPER_K, priced
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes

__all__ = ["DESIGNS", "MODELS", "PRICES", "PaperModel"]

PRICES = priced(
    "paper", cluster=Cluster.of(PRESETS["flexshard_a100"], 32), batch_size=4096, k=PAPER_K
)
"""The prices of section 5: U = 32, W = 8, B = 4096."""
DESIGNS = ("row-wise", "2-tier", "3-tier")


@dataclass(frozen=True, kw_only=True)
class PaperModel:
    """One model; rows are counts, shares are of lookups, times are ms as printed."""

    num_rows: int
    lookups: float
    """L, as implied by table 4's activation size."""
    two_tier: tuple[int, float]
    """The number of DP rows, and the share that they cover."""
    replicated: tuple[int, float]
    """The number of DP rows of three tiers, and the share that they cover."""
    per_node: tuple[int, float]
    """The number of Flex rows of three tiers, and the share that they cover."""
    reduction: Mapping[str, float]
    """The measured reduction of the global all-to-all, by design."""
    ms: Mapping[str, Mapping[str, float]]
    """Measured times, by design and collective."""

    def tables(self) -> dict[str, ProfiledTable]:
        """One table, its access curve through the model's own points."""
        flex = (self.replicated[0] + self.per_node[0], self.replicated[1] + self.per_node[1])
        rows = through_points(self.num_rows, self.lookups, [self.replicated, self.two_tier, flex])
        return {"table": ProfiledTable(name="table", rows=rows, dim=256)}

    def sizes(self) -> dict[str, TableSizes]:
        """The published sizes, by design."""
        three = TableSizes(replicated=self.replicated[0], per_node=self.per_node[0])
        two = TableSizes(replicated=self.two_tier[0])
        return dict(zip(DESIGNS, (TableSizes(), two, three), strict=True))


def _ms(
    row_wise: float, two: tuple[float, float], three: tuple[float, float, float, float]
) -> dict[str, dict[str, float]]:
    return {
        "row-wise": {"a2a_global": row_wise},
        "2-tier": dict(zip(("a2a_global", "ar_global"), two, strict=True)),
        "3-tier": dict(
            zip(("a2a_global", "a2a_intra", "ar_global", "ar_cross"), three, strict=True)
        ),
    }


MODELS = {
    "RM-1": PaperModel(
        num_rows=30_000_000,
        lookups=1000,
        two_tier=(346_144, 0.525),
        replicated=(100_064, 0.368),
        per_node=(1_184_544, 0.306),
        reduction={"2-tier": 0.537, "3-tier": 0.694},
        ms=_ms(307, (149, 3), (99, 30, 3, 14)),
    ),
    "RM-2": PaperModel(
        num_rows=30_000_000,
        lookups=1000,
        two_tier=(507_072, 0.770),
        replicated=(128_736, 0.639),
        per_node=(2_397_216, 0.217),
        reduction={"2-tier": 0.770, "3-tier": 0.856},
        ms=_ms(308, (80, 6), (49, 21, 3, 27)),
    ),
    "RM-3": PaperModel(
        num_rows=10_000_000,
        lookups=500,
        two_tier=(115_296, 0.349),
        replicated=(36_704, 0.227),
        per_node=(318_560, 0.259),
        reduction={"2-tier": 0.333, "3-tier": 0.473},
        ms=_ms(156, (101, 4), (85, 13, 2, 5)),
    ),
    "RM-4": PaperModel(
        num_rows=10_000_000,
        lookups=500,
        two_tier=(184_864, 0.570),
        replicated=(55_040, 0.390),
        per_node=(592_992, 0.360),
        reduction={"2-tier": 0.574, "3-tier": 0.748},
        ms=_ms(155, (72, 5), (45, 18, 3, 9)),
    ),
}
