"""FlexShard: per-row tiers in front of TorchRec's tables, sized by what each row costs where."""

from __future__ import annotations

from typing import Any

from recd_plugins import hookimpl
from recd_plugins.slots import ShardingRecord


@hookimpl
def recd_sharding() -> list[ShardingRecord[Any]]:
    return []
