"""The calls that unique samples cost a step, whatever its batch: small operations, and the Python
around them.

The numbers were fitted to steps of `benchmarks.honesty.step_time` in which unique samples save
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from recd_plugins.sparse.groups import Groups

if TYPE_CHECKING:
    from recd_plugins.planning.tables.model_tables import ModelTable

__all__ = [
    "CALLS_OF_A_FEATURE",
    "CALLS_OF_A_GROUP",
    "CALLS_OF_A_PART",
    "CALLS_OF_A_STEP",
    "calls_of_unique_samples",
]

CALLS_OF_A_GROUP = 50
"""Calls of a feature group, in reader, exchange and expansion."""
CALLS_OF_A_FEATURE = 100
"""Calls, forward and backward, of a feature on unique samples: stand-ins, slices, lookups."""
CALLS_OF_A_STEP = 1500
"""Calls of a step that looks up unique samples beside others."""
CALLS_OF_A_PART = 2500
"""Calls of one more part of a collection: its exchanges of ids and of sums, and its lookup."""


def calls_of_unique_samples(groups: Groups, tables: Mapping[str, ModelTable]) -> int:
    """The calls of a step of a model whose features of `groups` are on unique samples."""
    unique: Set[str] = {name for group in groups for name in group}
    looked_up = {name: unique & set(table.features) for name, table in tables.items()}
    if not any(looked_up.values()):
        return 0
    sums = any(looked_up[name] for name, table in tables.items() if table.pooled)
    each = CALLS_OF_A_GROUP * len(groups) + CALLS_OF_A_FEATURE * sum(map(len, looked_up.values()))
    return each + CALLS_OF_A_STEP + CALLS_OF_A_PART * sums
