"""Ladder: two ranks. Which rows are hot is a policy of its own: a stranger's decayed counts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from test_planner import SLOW, Histories, context, in_front, skewed
from test_retier import ONE_RANK_A_NODE, shifted

from recd_flexshard.config import FlexShardConfig
from recd_flexshard.flexshard_planner import FlexShardPlanner
from recd_plugins.errors import DataError
from recd_plugins.planning.access.distribution import Integers, RowDistribution
from recd_plugins.testing.gloo import GlooPool

SLOWLY = 0.9


class Decayed(FlexShardPlanner):
    """Hot are the rows that were looked up most so far, older batches counting less each time."""

    name = "decayed"

    def __init__(self, config: FlexShardConfig, context: Any) -> None:
        super().__init__(config, context)
        self.scores: dict[str, Any] = {}

    def hottest_rows(self, table: str, rows: RowDistribution, count: int) -> Integers:
        now = np.zeros(rows.num_rows)
        known = rows.hottest(rows.num_rows)
        now[known] = np.repeat(rows.p, rows.counts)
        before = self.scores.get(table, now)
        self.scores[table] = SLOWLY * before + (1 - SLOWLY) * now
        return np.argsort(-self.scores[table], kind="stable")[:count]


def hot_rows(kind: type[FlexShardPlanner]) -> list[list[int]]:
    """The replicas of a table by the plan, and once the batches' hot rows are others."""
    config = FlexShardConfig(goal="max_memory_saving", tiers=2)
    made = kind(config, in_front(context(), {"search": "greedy"}))
    group = dist.group.WORLD
    assert group is not None
    made.plan(Histories(), ONE_RANK_A_NODE, group)
    made.sharders()
    found = []
    for _ in range(2):
        assert made.tier_plan is not None
        found.append(made.tier_plan.tables["t0"].replicated.tolist())
        made.retier([shifted(batch, 250) for batch in skewed(2, 32)], group)
    return found


def both() -> tuple[list[list[int]], list[list[int]]]:
    return hot_rows(FlexShardPlanner), hot_rows(Decayed)


def test_a_decayed_ranking_is_slower_to_forget_in_planning_and_in_retiering(
    gloo_pool: GlooPool,
) -> None:
    first, second = gloo_pool.run(both, world_size=2)
    assert first == second  # rank 0 ranks, all ranks have it
    (planned, moved), (kept_at_first, kept) = first
    assert set(kept_at_first) == set(planned)  # of one profile the two agree, but for ties
    assert len(kept) == len(moved) == len(planned) < 500
    assert moved[0] == 250
    assert kept[0] == 0
    assert 250 in moved
    assert set(kept) != set(moved)


def test_a_ranking_that_names_too_few_rows_is_reported() -> None:
    class Few(FlexShardPlanner):
        def hottest_rows(self, table: str, rows: RowDistribution, count: int) -> Integers:
            return rows.hottest(count)[:-1]

    behind = in_front(context(), {"search": "greedy"})
    made = Few(FlexShardConfig(goal="min_communication"), behind)
    with pytest.raises(DataError, match="`hottest_rows` name as many as it is asked for"):
        made.propose(Histories(), dataclasses.replace(SLOW), 4)
