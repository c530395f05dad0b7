"""Numbers that cross the link to a table, of which some rows are cached on the device.

The paper's equations 1 to 6, of samples with L lookups in place of one: b samples, rows of d
numbers, P(e) the chance that a sample brings row e; an index counts as one number.
"""

from __future__ import annotations

from recd_plugins.api import DataError
from recd_plugins.api.planning import RowDistribution

__all__ = ["coalesced", "epoch", "plain"]


def plain(rows: RowDistribution, *, batch_size: float, width: int) -> float:
    """Every lookup's row: b L d."""
    return batch_size * rows.lookups * width


def coalesced(rows: RowDistribution, *, batch_size: float, width: int, cached: int = 0) -> float:
    """Indices, and each row once that is not cached: b L + d sum_{e not in C} 1 - (1 - P(e))^b.

    C are the `cached` hottest rows (equation 3, without the cache; 6 with it).
    """
    if batch_size <= 0:
        raise DataError(f"a batch of {batch_size:g} samples moves nothing: ask for one at least.")
    rest = rows.part(cached, rows.num_rows)
    return batch_size * rows.lookups + width * rest.appearing(batch_size)


def epoch(
    rows: RowDistribution, *, samples: float, batch_size: float, width: int, cached: int = 0
) -> float:
    """Q / b batches, coalesced: Q L + (Q / b) d sum_{e not in C} 1 - (1 - P(e))^b."""
    batches = samples / batch_size
    return batches * coalesced(rows, batch_size=batch_size, width=width, cached=cached)
