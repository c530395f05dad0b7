"""k and o of replicas: the memory that goes with a row, and the passes in which it is stepped.

Both are by the fused optimizer of its table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from recd_plugins.errors import PluginError
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.fused_params import state_bytes
from recd_plugins.planning.prices.cost import STEPPED
from recd_plugins.planning.tables.profiled_table import ProfiledTable

__all__ = ["replica_factor", "replica_passes", "row_factor", "row_passes"]

STEPPED_IN_ONE = 5.0
"""Passes over a chunk in which sums are scaled, and row-wise Adagrad without decay steps rows of
float32 by one kernel, on a CPU; `STEPPED` of any other optimizer."""
UNDER_WAY = 0.64
"""Bytes of gradients and of their places, over those of replicas, while chunks of them are reduced.

It is a bound for tiers of 100,000 rows and more: `benchmarks.flexshard.memory` found 0.18 for
500,000 rows of 64 floats, 0.12 for rows of 128, 0.45 for rows of 16, whose places weigh as much as
any's, and up to 0.57 for 100,000 rows of 64, of which more is under way at a time."""


def replica_factor(
    tables: Iterable[ProfiledTable], fused: Mapping[str, Mapping[str, Any]]
) -> float:
    """k: bytes that a replicated row takes with all that goes with it, over its own; that of the
    table whose replicas take the most. `fused` has the fused params of each table."""
    tables = _with_fused(tables, fused, "replica_factor")
    return max(row_factor(fused[table.name], table.dim, table.element_bytes) for table in tables)


def replica_passes(
    tables: Iterable[ProfiledTable], fused: Mapping[str, Mapping[str, Any]], cluster: Cluster
) -> float:
    """o: passes in which sums of replicas' gradients are scaled, and rows stepped by them; those of
    the table that takes the most. `fused` has the fused params of each table."""
    tables = _with_fused(tables, fused, "replica_passes")
    return max(row_passes(fused[table.name], cluster, table.element_bytes) for table in tables)


def row_passes(fused: Mapping[str, Any], cluster: Cluster, element_bytes: int = 4) -> float:
    """o of rows of such elements."""
    adagrad = getattr(fused.get("optimizer"), "name", "") == "EXACT_ROWWISE_ADAGRAD"
    in_one = adagrad and not fused.get("weight_decay_mode") and element_bytes == 4
    return STEPPED_IN_ONE if in_one and not cluster.side_stream else STEPPED


def _with_fused(
    tables: Iterable[ProfiledTable], fused: Mapping[str, Mapping[str, Any]], who: str
) -> list[ProfiledTable]:
    """The tables; `PluginError` where one has no fused params."""
    tables = list(tables)
    if missing := [table.name for table in tables if table.name not in fused]:
        raise PluginError(
            f"{who}: there are no fused params of {', '.join(missing)}. Pass those of each table: "
            "`fused` of a TierPlanner, or context.fused_by_table(model)."
        )
    return tables


def row_factor(fused: Mapping[str, Any], dim: int, element_bytes: int = 4) -> float:
    """k of a row of D elements: 1, gradients under way, and its optimizer state."""
    return 1 + UNDER_WAY + state_bytes(fused, dim) / (dim * element_bytes)
