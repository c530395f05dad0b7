"""A table with its access distribution: what the prices of its rows are computed of."""

from __future__ import annotations

from dataclasses import dataclass

from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.tables.planned_shards import PlannedShards

__all__ = ["ProfiledTable"]


@dataclass(frozen=True, kw_only=True)
class ProfiledTable:
    """A table with its access distribution, of which prices are computed: its rows are
    looked up one by one, or pooled in bags."""

    name: str
    rows: RowDistribution
    dim: int
    element_bytes: int = 4
    bags: float = 0
    """f: bags of a sample, where rows are pooled; fewer than its features where bags of unique
    samples are looked up. 0 where rows are looked up one by one."""
    collection: str = ""
    """Its collection, and the part of it: tables of one share exchanges."""
    shards: PlannedShards | None = None
    """Its table shards in TorchRec's own plan; row-wise where nobody asked."""
    mapped: bool = False
    """Whether its rows at home lie in mapped files, which take no memory of a rank."""

    @property
    def width(self) -> int:
        """r: bytes of a row."""
        return self.dim * self.element_bytes
