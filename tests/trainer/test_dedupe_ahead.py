"""Ladder: worked values of the dedupe factor to come, then batches that a loader hands out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recd_plugins.trainer.measure import dedupe_ahead
from recd_plugins.trainer.measure.dedupe_ahead import KeptIds, read_ahead


def test_a_batch_counts_by_its_ids_and_one_without_ids_not_at_all() -> None:
    found = KeptIds.each([(10, 1), (90, 9), (0, 0)], of=6)
    assert found.factor == 10
    assert found.off() < 1e-6  # each keeps a tenth
    assert found.interval == pytest.approx((10 / 1.005, 10 / 0.995))
    # r = 12/30, e = (-2, 2): sqrt((1 - 2/8) * 2/1 * 8) / 12; of two batches t is 6.31, of 8 2.2
    uneven = KeptIds.each([(10, 2), (20, 10)], of=8)
    assert uneven.off() == pytest.approx(6.31 * math.sqrt(0.75 * 2 * 8) / 12)
    assert uneven.off(4) == pytest.approx(2.2 * math.sqrt(0.75 * 2 * 8) / 12 / 2)
    assert uneven._replace(of=2).off() == 0


def test_nothing_is_known_without_ids_and_little_of_one_batch() -> None:
    assert (KeptIds().factor, KeptIds().interval) == (None, None)
    assert KeptIds.each([(0, 0)] * 3, of=9).factor is None
    one = KeptIds.each([(8, 2)], of=9)
    assert (one.factor, one.interval) == (4, None)
    assert KeptIds.each([(8, 2)], of=1).off() == 0


def test_batches_that_came_first_promise_no_less_than_what_moved_among_them() -> None:
    drifting = [(100, 20)] * 16 + [(100, 30)] * 16
    assert KeptIds.each(drifting, of=math.inf).off() == pytest.approx(0.1 / 0.25)
    assert KeptIds.each(drifting, of=1e9).off() < 0.1  # drawn: their order says nothing
    of_ranks = KeptIds.each(drifting, of=math.inf)
    assert of_ranks.plus(of_ranks).off() == pytest.approx(0.1 / 0.25)
    even = KeptIds.each([(100, 20), (100, 30)] * 16, of=math.inf)
    assert even.off() < 0.1
    assert KeptIds.each([(0, 0), (100, 30)] * 2, of=math.inf).factor == pytest.approx(10 / 3)


class Loader:
    """Batches of which it is known how many ids they have and keep; drawn by lot."""

    def __init__(self, counts: list[tuple[int, int]]) -> None:
        self._counts = counts
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def places(self) -> int:
        return len(self)

    def spread(
        self, blocks: range, size: int, first: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        order = np.random.default_rng(0).permutation(first or len(self))
        for block in blocks:
            at = int(order[block])
            self.read.append(at)
            counts = self._counts[at]
            yield block, SimpleNamespace(dedup=SimpleNamespace(id_counts=lambda c=counts: c))


def test_more_batches_are_read_until_the_factor_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe_ahead, "SECONDS", math.inf)  # a busy machine is slow, not done
    even = Loader([(100, 25)] * 400)
    assert read_ahead(even, None, 1).factor == 4  # type: ignore[arg-type]
    assert len(even.read) == dedupe_ahead.FIRST

    draw = np.random.default_rng(1)
    counts = [(int(2000 * n), 1 + int(1000 * n * r)) for n, r in draw.random((400, 2))]
    uneven = Loader(counts)
    found = read_ahead(uneven, 300, 1)  # type: ignore[arg-type]
    assert sorted(uneven.read) == [*range(300)]  # of the run's batches alone, each once
    assert found.factor == pytest.approx(
        sum(n for n, _ in counts[:300]) / sum(k for _, k in counts[:300])
    )
    one, four = (read_ahead(Loader(counts[:40]), steps, 1) for steps in (40, 160))  # type: ignore[arg-type]
    assert (one.batches, one.off()) == (40, 0)  # of one epoch, and of four, which differ
    assert (four.batches, four.of) == (40, 160)
    assert four.off() > 0
    monkeypatch.setattr(dedupe_ahead, "SECONDS", -1.0)
    slow = read_ahead(Loader(counts), None, 1)  # type: ignore[arg-type]
    assert slow.batches == 2
    assert 0 < slow.off() < math.inf  # the first batch, which takes longest, is not the only one
    assert read_ahead(counts, None, 1) == KeptIds()  # type: ignore[arg-type]


def test_nine_of_ten_intervals_hold() -> None:
    """Uneven batches, drawn anew: what all of them show lies within what some of them promise."""
    draw, held = np.random.default_rng(2), 0
    for _ in range(200):
        ids = draw.integers(0, 2000, 500) * draw.integers(0, 2, 500)
        kept = np.ceil(ids * draw.random(500) ** 2).astype(int)
        some = draw.permutation(500)[:32]
        counts = [(int(n), int(k)) for n, k in zip(ids[some], kept[some], strict=True)]
        found = KeptIds.each(counts, of=500).interval
        assert found is not None
        held += found[0] <= ids.sum() / kept.sum() <= found[1]
    assert held >= 180


@pytest.mark.parametrize("batches", [2, 3, 4, 5])
def test_nine_of_ten_intervals_of_a_few_batches_hold(batches: int) -> None:
    """As many as a slow reader has read in time; one that promises nothing holds."""
    draw, held, wide = np.random.default_rng(batches), 0, 0
    for _ in range(400):
        ids = draw.integers(900, 1100, 100)
        kept = (ids * draw.normal(0.3, 0.03, 100)).astype(int)
        some = draw.permutation(100)[:batches]
        counts = [(int(n), int(k)) for n, k in zip(ids[some], kept[some], strict=True)]
        found = KeptIds.each(counts, of=100).interval
        wide += found is None
        low, high = found or (1.0, math.inf)
        held += low <= ids.sum() / kept.sum() <= high
    assert held >= 345  # 360 of 400, by 6 of which chance may be off
    assert wide <= 10
