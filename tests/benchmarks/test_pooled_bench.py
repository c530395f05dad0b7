"""Value tests: the plans that the benchmark of pooled tables measures, and their parts."""

from __future__ import annotations

import numpy as np

from benchmarks.trainers.pooled import AUTO, FITTED, JUDGED, OWN, Setting, candidates
from benchmarks.trainers.pooled_model import PooledModel
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
