"""Rung 1 and 4 (values, a run): the scars suite on small tables has every row of its targets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.cluster.network import Network, available
from benchmarks.cluster.ranks import ClusterRanks
from benchmarks.scars.__main__ import compare
from benchmarks.scars.clicks import Clicks
from benchmarks.scars.steps import ScarsSide, trained
from benchmarks.scars.tables import LAWS, CriteoColumns, Law

READING = "reading in hot batches, of the time to read"
TARGETS = {
    **{f"rows of a coalesced batch against the formula, {name}": 2.0 for name in (*LAWS, "Criteo")},
    **{
        f"bytes of a step against the formula, {name}, {cached}% cached": 2.0
        for name in (*LAWS, "Criteo")
        for cached in (0, 1)
    },
    "rows of a batch that was not counted, Criteo": None,
    "communication of an epoch, 5x rows and 5x batch, exponential": 1.5,
    "communication of an epoch, 5x rows and 5x batch, half-normal": 1.5,
    "communication of an epoch, 5x rows and 5x batch, Zipf 1.05": 2.0,
    "coalescing kernel, times as fast as torch.unique with inverse": 2.0,
    "classification of samples, of the time to read them": 10.0,
    READING: 1.1,
}


@pytest.mark.usefixtures("one_thread")
def test_the_suite_on_small_tables() -> None:
    draw = np.random.default_rng(0)
    columns = CriteoColumns([draw.zipf(1.5, 4096) % 500 for _ in range(3)])
    report = compare(columns, num_rows=20_000, ids=20_000, samples=2_048, rounds=3)
    figures = {figure.name: figure for figure in report.figures}
    assert {name: figure.target for name, figure in figures.items()} == TARGETS
    assert len(figures) == len(report.figures)
    for figure in figures.values():
        assert figure.note
    for name in ("coalescing kernel, times as fast as torch.unique with inverse", READING):
        assert (figures[name].share or 0) > 0
        # No load of the machine changes these.
        if figure.target and figure.unit in ("% off", "times"):
            assert figure.met, figure


CLICKS = Clicks(law="half-normal", num_rows=400, tables=2, lookups=3, dim=8, pooled=False)
SIDES = {
    "plain": ScarsSide(name="plain"),
    "coalesced": ScarsSide(name="coalesced", coalesce="rank"),
    "hot": ScarsSide(name="SCARS", coalesce="rank", cached=0.8, hot_batches=True),
}


@pytest.mark.parametrize("pooled", [False, True], ids=["sequences", "bags"])
def test_sides_train_alike_and_hot_steps_send_less(pooled: bool) -> None:
    if missing := available():
        pytest.skip(f"no cluster can be emulated: it takes {missing}")
    clicks = dataclasses.replace(CLICKS, pooled=pooled)
    with Network(2, 1000) as network, ClusterRanks(network, 1) as ranks:
        found = {name: ranks.run(trained, clicks, side, 128, 16)[0] for name, side in SIDES.items()}
    plain, coalesced, hot = (found[name] for name in SIDES)
    # Equal but for the order in which floats are added, over 16 steps.
    assert coalesced.losses == pytest.approx(plain.losses, abs=1e-4)
    assert plain.hot == [False] * 16
    assert 0 < sum(hot.hot) < 16
    # The samples are the same, in another order.
    assert np.mean(hot.losses) == pytest.approx(np.mean(plain.losses), abs=0.05)
    assert sum(coalesced.sent) < sum(plain.sent)


@pytest.mark.parametrize("name", LAWS)
def test_ids_are_drawn_as_their_distribution_says(name: str) -> None:
    law = Law(name, 1_000, 2)
    (ids,) = law.draw(50_000, seed=1).values()
    counted = np.bincount(ids.numpy(), minlength=1_000)
    rows = law.rows["table"]
    assert rows.lookups == pytest.approx(2)
    assert counted.sum() == 100_000
    expected = 50_000 * np.repeat(rows.p, rows.counts)
    # A count's deviation is its root; none of 1,000 is off by 6.
    assert np.all(np.abs(counted - expected) < 6 * np.sqrt(expected) + 6)


def test_criteos_samples_are_drawn_whole() -> None:
    columns = CriteoColumns([np.array([0, 1, 1, 2]), np.array([5, 6, 6, 7])])
    one, other = columns.draw(100, seed=0).values()
    assert (other - one == 5).all()
    rows = columns.rows["cat_0"]
    assert rows.p.tolist() == [0.5, 0.25, 0.25]
    assert rows.ids is not None
    assert rows.ids.tolist() == [1, 0, 2]
    assert columns.rows["cat_1"].num_rows == 8
