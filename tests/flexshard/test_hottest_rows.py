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
from recd_plugins.errors import DataError, PluginError
from recd_plugins.planning.access.distribution import Integers, RowDistribution
from recd_plugins.planning.tables.model_tables import model_tables
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
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


def proposes(**parts: Any) -> FlexShardPlanner:
    """A policy with these parts of its own, which has proposed a plan."""
    behind = in_front(context(), {"search": "greedy"})
    made = type("Own", (FlexShardPlanner,), parts)(
        FlexShardConfig(goal="min_communication"), behind
    )
    made.propose(Histories(), dataclasses.replace(SLOW), 4)
    assert isinstance(made, FlexShardPlanner)
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: ids[:-1], "`hottest_rows` return as many rows as it is asked for"),
        (lambda ids: None, r"were asked for, but a NoneType came. Let `hottest_rows` return \["),
        (lambda ids: ids.tolist(), "were asked for, but a list came"),
        (lambda ids: ids + 0.5, r"were asked for, but an array \[[0-9]+\] of float64 came"),
        (lambda ids: ids * 0, "a row is named twice"),
        (lambda ids: ids + 10**9, "is none of them. Let `hottest_rows` return ids from 0 to "),
        (lambda ids: ids - 10**9, "is none of them. Let `hottest_rows` return ids from 0 to "),
    ],
)
def test_a_ranking_that_cannot_be_is_reported(change: Any, message: str) -> None:
    def hottest_rows(self: Any, table: str, rows: RowDistribution, count: int) -> Any:
        return change(rows.hottest(count))

    with pytest.raises(DataError, match=f"^sharding: flexshard: tier plan.*{message}"):
        proposes(hottest_rows=hottest_rows)


def halved(rows: RowDistribution) -> None:
    rows.p[:] = rows.p / 2


def sorted_in_place(rows: RowDistribution) -> None:
    rows.hottest(2).sort()


def added(rows: RowDistribution) -> None:
    counts = rows.counts
    counts += 1


@pytest.mark.parametrize("writes", [halved, sorted_in_place, added])
def test_a_ranking_that_writes_to_the_counts_it_is_handed_is_reported(writes: Any) -> None:
    def hottest_rows(self: Any, table: str, rows: RowDistribution, count: int) -> Any:
        writes(rows)
        return rows.hottest(count)

    message = "`hottest_rows` writes to an array that is read-only .* a copy: `rows.p.copy"
    with pytest.raises(DataError, match=f"^sharding: flexshard: tier plan: .*'t0'.*{message}"):
        proposes(hottest_rows=hottest_rows)


def test_another_error_of_a_ranking_stays_as_it_is() -> None:
    def hottest_rows(self: Any, table: str, rows: RowDistribution, count: int) -> Any:
        raise ValueError("no such table in my log")

    with pytest.raises(ValueError, match="no such table in my log"):
        proposes(hottest_rows=hottest_rows)


def test_a_copy_may_be_written_and_leaves_the_counts_as_they_are() -> None:
    counts = np.array([1, 2, 1])
    p, ids = np.array([3.0, 2.0, 1.0]), np.array([3, 0, 2, 1])
    rows = RowDistribution.of(counts, p, ids=ids)
    handed = rows.read_only()
    mine = handed.p.copy()
    mine[:] = 0
    assert handed.hottest(2).tolist() == [3, 0]
    assert handed.coverage(1) == rows.coverage(1)
    assert rows.p.tolist() == [3.0, 2.0, 1.0]
    assert rows.p.flags.writeable


def test_replicas_move_by_batches_and_not_by_one() -> None:
    batch: Any = object()
    with pytest.raises(
        DataError, match=r"^sharding: flexshard: .* is a object, .*retier\(\[batch\],"
    ):
        proposes().hotter(batch)


def chosen(**changed: Any) -> Any:
    """A policy's `choose` with some of what it chose changed."""

    def choose(self: Any, *given: Any) -> Any:
        return dataclasses.replace(FlexShardPlanner.choose(self, *given), **changed)

    return choose


@pytest.mark.parametrize(
    ("part", "made", "message"),
    [
        ("tables", lambda self, model: None, "its `tables` returned a NoneType, where it must"),
        (
            "tables",
            lambda self, model: {"t0": 3},
            "its `tables` returned as table 't0' the int 3, whose type must be ModelTable.",
        ),
        (
            "tables",
            lambda self, model: {"t9": model_tables(model)["t0"]},
            "its `tables` returned as table 't9', which the model does not have; ",
        ),
        ("choose", lambda self, *given: {}, "its `choose` returned a dict, where it must return"),
        (
            "choose",
            chosen(sizes={"t9": TableSizes()}),
            "its `choose` returned a size of table 't9'; ",
        ),
        ("choose", chosen(sizes=None), "its `choose` returned as `sizes` None, whose type must be"),
        (
            "choose",
            chosen(sizes={"t0": None}),
            "its `choose` returned as the size of table 't0' None, whose type must be TableSizes.",
        ),
        (
            "choose",
            chosen(report=None),
            "its `choose` returned as `report` None, whose type must be PlanReport.",
        ),
        (
            "choose",
            chosen(notices=None),
            "its `choose` returned as `notices` None, whose type must be Sequence.",
        ),
        (
            "choose",
            chosen(reason=None),
            "its `choose` returned a `reason` of None, where it must give the reason",
        ),
    ],
)
def test_what_a_policy_cannot_choose_is_reported(part: str, made: Any, message: str) -> None:
    with pytest.raises(PluginError, match=f"^sharding: flexshard: {message}"):
        proposes(**{part: made})


@pytest.mark.parametrize("wrong", [{"replicated": -1}, {"per_node": 2.5}, {"coalesce": "ranks"}])
def test_sizes_are_numbers_of_rows(wrong: Any) -> None:
    with pytest.raises(DataError, match=f"^TableSizes: .*`{next(iter(wrong))}`"):
        TableSizes(**wrong)


BEHIND: dict[str, Any] = {
    "propose": (None, "its `propose` returned None, whose type must be ShardingPlan."),
    "sharders": (None, "its `sharders` returned None, whose type must be Sequence."),
    "may_be_row_wise": (None, "its `may_be_row_wise` returned None, whose type must be bool."),
    "row_wise": (None, "its `row_wise` returned None, whose type must be HoldsRowWise."),
    "explain": (3, "its `explain` returned the int 3, whose type must be str."),
}


@pytest.mark.parametrize("part", BEHIND)
def test_what_a_planner_behind_does_not_answer_is_reported(part: str) -> None:
    made, says = BEHIND[part]
    plain = in_front(context(), {"search": "greedy"})
    others = plain.others
    assert others is not None
    parts = {"row_wise": lambda self, *given: self, part: lambda self, *given: made}
    others.__class__ = type("Wrong", (type(others),), parts)
    planner = FlexShardPlanner(FlexShardConfig(goal="min_communication"), plain)
    with pytest.raises(PluginError, match=f"^the planner Wrong: {says}"):
        planner.propose(Histories(), dataclasses.replace(SLOW), 4)
