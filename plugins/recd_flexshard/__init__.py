"""FlexShard: per-row tiers in front of TorchRec's tables, sized by what each row costs where.

`flexshard_planner.py` says which tables may have replicas, and has `policy/` turn prices into
sizes: by the paper's breakpoints, or by the optimum over all rows. The host profiles, and leaves
other tables to TorchRec's planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recd_flexshard.additions import ADDITIONS
from recd_flexshard.config import FlexShardConfig
from recd_flexshard.flexshard_planner import build_flexshard
from recd_plugins.api import Addition, ShardingRecord, hookimpl


@hookimpl
def recd_sharding() -> list[ShardingRecord[Any]]:
    return [
        ShardingRecord(
            name="flexshard",
            summary="Replicas of hot rows, two or three tiers, by expected time and memory.",
            config=FlexShardConfig,
            build=build_flexshard,
            in_front=True,
            tiers=True,
        )
    ]


@hookimpl
def recd_additions() -> Sequence[Addition]:
    return ADDITIONS
