"""SCARS: coalescing, a cache of hot rows, hot and normal batches.

`theory.py` has the paper's formulas. `scars_planner.py` makes a tier plan, in front of what another
planner plans: `cached_rows.py` says how many rows are cached, by the rules of `hot_set.py` and
within the `device_memory.py`; `uvm/` chooses kernels for tables in host memory. `hot_batches/` puts
samples all of whose rows are cached together; `hot_notices.py` says why there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recd_plugins.api import Addition, CacheRecord, hookimpl
from recd_scars.additions import ADDITIONS
from recd_scars.config import ScarsConfig
from recd_scars.scars_planner import build_scars


@hookimpl
def recd_cache() -> list[CacheRecord[Any]]:
    return [
        CacheRecord(
            name="scars",
            summary="Ids coalesced, the hottest rows of all tables on every rank.",
            config=ScarsConfig,
            build=build_scars,
        )
    ]


@hookimpl
def recd_additions() -> Sequence[Addition]:
    return ADDITIONS
