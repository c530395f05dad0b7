"""Value tests: the plans that the benchmark of pooled tables measures, and their parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.trainers.pooled import (
    AUTO,
    FITTED,
    JUDGED,
    OWN,
    Measured,
    Setting,
    candidates,
    equal_plans,
)
from benchmarks.trainers.pooled_model import PooledModel
from benchmarks.trainers.pooled_steps import SideSteps
from recd_plugins.planning.cluster.topology import Topology

SMALL = PooledModel(rows=(2_000, 300, 3), dim=8, exponent=1.1, lookups=2, batch_size=64)
SLOW = Topology(ranks_per_node=2, inter_node_gbps=0.01, intra_node_gbps=1)


def test_settings_that_fitted_the_prices_do_not_judge_them() -> None:
    assert not [setting for setting in JUDGED if setting in FITTED]
    assert {setting.model.lookups for setting in JUDGED} == {1, 3, 20}
    assert {setting.model.exponent for setting in JUDGED} == {1.05, 1.2}


def test_batches_follow_the_law_that_is_counted() -> None:
    (batch,) = SMALL.batches(1, seed=3)
    features = batch.sparse_features
    assert features.keys() == ["f0", "f1", "f2"]
    assert features.length_per_key() == [128] * 3
    profile = SMALL.profile(50, seed=3)
    hot = profile["t0"]
    assert hot.lookups == 2
    seen = np.concatenate([b.sparse_features["f0"].values() for b in SMALL.batches(50, seed=9)])
    share = np.isin(seen, hot.hottest(20)).mean()
    assert abs(share - hot.coverage(20)) < 0.05


def test_every_kind_of_plan_is_there_and_the_choice_is_the_last() -> None:
    sides = candidates(Setting(model=SMALL), SLOW)
    names = [side.name for side in sides]
    assert names[0] == OWN
    assert names[-1] == AUTO
    assert len(set(names)) == len(names)
    assert {"row-wise sums", "rows by rank", "rows by node", "all rows everywhere"} <= set(names)
    by_name = {side.name: side for side in sides}
    assert by_name[OWN].tiers is None
    everywhere = by_name["all rows everywhere"].tiers
    assert everywhere is not None
    assert {name: len(one.replicated) for name, one in everywhere.tables.items()} == SMALL.tables
    assert by_name[AUTO].expected_ms <= by_name[OWN].expected_ms


def test_equal_plans_take_turns_as_one() -> None:
    flat = dataclasses.replace(SMALL, exponent=0.0, rows=(1_000, 300, 200))
    fast = Topology(ranks_per_node=2, inter_node_gbps=100, intra_node_gbps=100)
    sides = candidates(Setting(model=flat), fast, quick=True)
    assert equal_plans(sides)[AUTO] == OWN, "with nothing to gain the choice is TorchRec's own plan"
    sides = candidates(Setting(model=SMALL), SLOW)
    chosen = sides[-1]
    twin = dataclasses.replace(chosen, name="a twin")
    equal = equal_plans([*sides[:-1], twin, chosen])
    assert equal["a twin"] == equal[AUTO]
    other = dataclasses.replace(twin, tiers=None, plan=chosen.plan)
    assert chosen.tiers is not None
    assert equal_plans([sides[0], other, chosen])["a twin"] != AUTO


def test_regret_is_by_the_rounds_that_did_not_choose_the_best() -> None:
    sides = candidates(Setting(model=SMALL), SLOW, quick=True)

    def steps(seconds: float, again: Sequence[float] = ()) -> SideSteps:
        return SideSteps([seconds] * 3, [0] * 3, 1.0, list(again))

    equal = {side.name: side.name for side in sides}
    took = {side.name: steps(2.0) for side in sides}
    took["rows by node"] = steps(1.0, [1.0, 1.0, 1.0])
    took[AUTO] = steps(1.5, [1.1, 1.1, 1.4])
    found = Measured(Setting(model=SMALL), sides, equal, [took] * 4)
    assert found.best == "rows by node"
    assert found.regret == pytest.approx(0.1)
    same = Measured(Setting(model=SMALL), sides, {**equal, AUTO: "rows by node"}, [took] * 4)
    assert same.regret == 0.0
    assert same.seconds(AUTO) == 1.0
