"""RecD: session deduplication from logs to training.

`log/` shards raw logs by session (O1), `etl/` clusters tables by session (O2), `dedup/` makes a
batch's unique samples (O3), `preprocess/` transforms ids on them (O4), `stats/` tells how much
a table repeats itself.
"""

from __future__ import annotations

from typing import Any

from recd_plugins import hookimpl
from recd_plugins.slots import DedupRecord


@hookimpl
def recd_dedup() -> list[DedupRecord[Any]]:
    return []
