"""FlexShard: per-row tiers in front of TorchRec's tables, sized by what each row costs where.

`policy/` turns prices into sizes: the paper's breakpoints, and the optimum over all of them;
`flexshard_planner.py` profiles, chooses, and leaves other tables to TorchRec's planner.
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
