"""Ladder: rates that are held out by hand, then forecasts of drawn tables whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.planning.access import row_counter, sample
from recd_plugins.planning.access.access_profile import Counted
from recd_plugins.planning.access.distribution import Floats, Integers, RowDistribution, falling
from recd_plugins.planning.access.forecast import (
    EXACT,
    FOLDS,
    STUDENT,
    FoldCounts,
    Forecast,
    _classes,
    _Folds,
    forecast,
)
from recd_plugins.planning.access.row_counter import RowCounter
from recd_plugins.planning.access.sample import count_sample, sample_of

ROWS = 20_000


def zipf(exponent: float, seed: int) -> Floats:
    """[ROWS] the chance of each row; ids say nothing of it."""
    weight = np.arange(1.0, ROWS + 1) ** -exponent
    return np.random.default_rng(seed).permutation(weight / weight.sum())


def drawn(chance: Floats, batches: int, lookups: int, seed: int) -> RowCounter:
    draw, counter = np.random.default_rng(seed), RowCounter(ROWS)
    order = np.argsort(-chance)
    ends = np.cumsum(chance[order])
    for number in range(batches):
        at = np.searchsorted(ends, draw.random(lookups) * ends[-1])
        counter.add(order[at], lookups // 4, number * FOLDS // batches)
    return counter


def of_pairs(
    pairs: list[tuple[int, int, int]], folds: int, num_rows: int, *, in_order: bool = False
) -> Forecast | None:
    """Of rows, folds and lookups, in folds of ten samples; each lookup in a batch of its own."""
    rows, fold, lookups = (np.array(column) for column in zip(*pairs, strict=True))
    found = FoldCounts(
        rows=rows,
        folds=fold,
        lookups=lookups,
        holding=lookups,
        samples=np.array([10] * folds + [0] * (FOLDS - folds)),
    )
    runs = np.unique(np.bincount(rows, lookups))[::-1].astype(np.int64)
    return forecast(found, runs, num_rows, in_order=in_order)


def test_how_far_folds_are_apart_by_hand() -> None:
    # Either fold has row 0 before row 1. It takes 3 of 4 lookups in one, and 3 of 5 in the other.
    pairs = [(0, 0, 3), (0, 1, 3), (1, 0, 1), (1, 1, 2)]
    found, first = (of_pairs(pairs, 2, 2, in_order=order) for order in (False, True))
    assert found is not None
    assert first is not None
    deviation = np.std([3 / 4, 3 / 5], ddof=1)
    expected = np.hypot(12.7 * deviation / np.sqrt(2), 0.005)
    assert found.uncertainty.tolist() == pytest.approx([expected, 0, 0])
    assert first.uncertainty.tolist() == pytest.approx([1, 0, 0])  # no share is further off
    assert found.unseen == 0


def test_rows_of_a_class_take_alike_shares_of_what_it_had_held_out() -> None:
    # Rows 0 and 1 are of one class by either fold, [19, 20]; row 2 is of it by fold 0 alone.
    pairs = [(0, 0, 19), (0, 1, 20), (1, 0, 20), (1, 1, 20), (2, 0, 19), (2, 1, 5)]
    found = of_pairs(pairs, 2, 3)
    assert found is not None
    # Of 58 lookups in fold 0 the class has 39 by two rows; in fold 1 all 45, by three.
    shares = [(39 / 58 / 2, 1 / 3), (39 / 58, 2 / 3)]
    wide = [12.7 * np.std(each, ddof=1) / np.sqrt(2) for each in shares]
    assert found.uncertainty.tolist() == pytest.approx([*np.hypot(wide, 0.005), 0, 0])


def test_classes_are_joined_until_they_have_had_enough() -> None:
    unused = np.zeros(0, np.int64)
    folds = _Folds(
        pairs=FoldCounts(rows=unused, folds=unused, lookups=unused, holding=unused, samples=unused),
        num_rows=6,
        bands=unused,
        counts=unused,
        band=unused,
        starts=unused,
        size=unused,
        fold=unused,
        weight=np.zeros(0),
        classes=6,
        whole=np.arange(6),
        others=np.arange(6),
    )
    had, promised = np.array([9, 60, 30, 25, 60, 20]), np.array([9.0, 30, 10, 12, 50, 30])
    # 60 are enough, 30 and 25 together; 20 are not, and no class is behind them.
    expected = [0, 60 / 30, 55 / 22, 55 / 22, 80 / 80, 80 / 80]
    assert folds._ratios(had, np.zeros(6), promised).tolist() == pytest.approx(expected)
    assert folds._ratios(np.zeros(6, np.int64), np.zeros(6), np.zeros(6)).tolist() == [0] * 6


def test_one_fold_that_was_looked_up_says_nothing_of_others() -> None:
    found = of_pairs([(0, 0, 3)], 2, 2)
    assert found is not None
    assert found.uncertainty.tolist() == [1, 1]
    assert of_pairs([(0, 0, 3)], 1, 2) is None


def test_what_is_unseen_falls_on_as_it_fell_from_fold_to_fold() -> None:
    pairs = [*((0, fold, 1) for fold in range(4)), (1, 0, 2), (2, 1, 1), (2, 2, 1)]
    found = of_pairs(pairs, 4, 10)
    assert found is not None
    # Row 1 is in one fold alone, row 2 in two, with 2 lookups each: 1 + 2 / 2 / (4 - 1) = 4 / 3.
    power = np.log(4 / 3) / np.log(3 / 2)
    assert found.unseen == pytest.approx(2 * (3 / 4) ** power / 40)
    assert found.unseen_holding == found.unseen
    whole = of_pairs(pairs, 4, 3)
    assert whole is not None
    assert whole.unseen == 0


def test_students_t_and_classes_are_those_of_tables() -> None:
    printed = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306]
    printed += [2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]
    assert list(STUDENT[1:]) == pytest.approx(printed, abs=0.01)
    assert _classes(1).tolist() == _classes(EXACT).tolist() == list(range(17))
    assert _classes(17).tolist() == [*range(17), 18]
    assert _classes(20).tolist() == [*range(17), 18, 19, 21]


@pytest.mark.parametrize("exponent", [0.8, 1.05, 1.3])
@pytest.mark.parametrize("batches", [16, 128])
def test_a_forecast_is_what_later_batches_look_up(exponent: float, batches: int) -> None:
    chance = zipf(exponent, 1)
    counter = drawn(chance, batches, 400, seed=2)
    own, rows = counter.distribution(), counter.distribution(sample=True)
    assert rows.lookups == pytest.approx(own.lookups)
    assert rows.ids is not None
    sizes = np.unique(np.geomspace(10, len(rows.ids), 12).astype(int))
    truly = np.cumsum(chance[rows.ids])[sizes - 1]
    # 6,400 lookups tell a share of a half to a standard error of 0.6 points.
    assert np.abs(rows.coverage(sizes) - truly).max() < 0.02
    low, high = rows.interval(sizes)
    assert np.mean((low <= truly) & (truly <= high)) >= 0.9
    assert own.coverage(sizes)[-1] == 1 > truly[-1] + 0.03
    # So are the distinct rows of a batch: the expectation, by the true chances.
    assert rows.appearing(100) == pytest.approx(-np.expm1(400 * np.log1p(-chance)).sum(), rel=0.03)


def ten_hot_rows(
    share: Callable[[int], float], *, batches: int, seed: int
) -> tuple[RowCounter, list[float]]:
    """The counts of the first FOLDS batches, of each of which ten rows have a `share`; and the
    shares that they have of the others."""
    counter, served = RowCounter(ROWS), []
    draw = np.random.default_rng(seed)
    for number in range(batches):
        ids = np.where(draw.random(2000) < share(number), draw.integers(0, 10, 2000), 10)
        ids = np.where(ids == 10, draw.integers(10, ROWS, 2000), ids)
        if number < FOLDS:
            counter.add(ids, 500, number)
        else:
            served.append(float(np.mean(ids < 10)))
    return counter, served


def test_the_first_batches_say_less_of_later_ones() -> None:
    """Rows rise and fall: what 16 folds agree on in their mean, a later one need not."""
    counter, served = ten_hot_rows(lambda number: 0.3 + 0.2 * math.sin(number), batches=32, seed=3)
    held = []
    for in_order in (False, True):
        low, high = counter.distribution(sample=True, in_order=in_order).interval(10)
        held.append(np.mean([low <= share <= high for share in served]))
    assert held[0] < 0.6
    assert held[1] > 0.9


@pytest.mark.parametrize(("each", "known"), [(1, True), (2, True), (8, False)])
def test_kinds_of_batches_that_take_turns_are_known_once_they_took_enough(
    each: int, known: bool
) -> None:
    """So many folds have ten hot rows, the next as many others: a run has both alike."""
    counter, served = ten_hot_rows(
        lambda number: 0.9 if number // each % 2 else 0.1, batches=64, seed=5
    )
    low, high = counter.distribution(sample=True, in_order=True).interval(10)
    assert low <= np.mean(served) <= high
    assert (high - low < 0.1) is known


def test_rows_that_come_and_go_widen_the_interval_of_the_first_batches() -> None:
    """Each fold shares rows with its neighbours alone: held out of them, it looks foretold."""
    draw = np.random.default_rng(4)
    drifts, stays = RowCounter(ROWS), RowCounter(ROWS)
    for number in range(64):
        ids = draw.integers(0, 400, 2000)
        drifts.add(number // 8 * 300 + ids, 500, number * FOLDS // 64)
        stays.add(ids, 500, number * FOLDS // 64)
    seen = 7 * 300 + 400
    low, high = drifts.distribution(sample=True, in_order=True).interval(seen)
    assert low < 0.2  # in batches of another time none of these rows comes
    assert high == 1
    low, _ = drifts.distribution(sample=True).interval(seen)
    assert low > 0.9  # of batches from all over it they are all that there is
    for rows in (200, 300):  # where nothing drifts, next to nothing is added
        (low, high), (least, most) = (
            stays.distribution(sample=True, in_order=in_order).interval(rows)
            for in_order in (True, False)
        )
        assert least > low
        assert high - low < 5 * (most - least)
        assert high - low < 0.06


def test_a_time_without_lookups_is_none_of_which_rows_came_and_went() -> None:
    counter, draw = RowCounter(ROWS), np.random.default_rng(5)
    for number in range(64):
        ids = draw.integers(0, 400, 2000 if number >= 40 else 0)
        counter.add(ids, 500, number * FOLDS // 64)
    low, high = counter.distribution(sample=True, in_order=True).interval(200)
    assert high - low < 0.06


def test_lookups_that_come_together_are_held_out_together() -> None:
    """Sessions of 20 samples repeat a row: its lookups foretell none of another batch."""
    draw, counter = np.random.default_rng(0), RowCounter(ROWS)
    for number in range(64):
        counter.add(np.repeat(draw.integers(ROWS, size=5), 20), 100, number // 8)
    own, rows = counter.distribution(), counter.distribution(sample=True)
    assert own.coverage(320) > 0.99
    low, high = rows.interval(320)
    assert low <= 320 / ROWS <= high
    assert rows.coverage(320) == pytest.approx(320 / ROWS, abs=0.03)


def test_batches_that_come_again_are_as_they_were() -> None:
    counter = drawn(zipf(0.8, 1), 16, 400, seed=3)
    later, again = (counter.distribution(sample=True, counted_share=share) for share in (0.0, 1.0))
    half = counter.distribution(sample=True, counted_share=0.5)
    own = counter.distribution()
    assert again.coverage(1000) == pytest.approx(own.coverage(1000))
    between = (later.coverage(1000) + own.coverage(1000)) / 2
    assert half.coverage(1000) == pytest.approx(between)
    assert again.interval(1000) == pytest.approx((own.coverage(1000),) * 2)


def test_what_was_seen_whole_is_left_nothing_unseen() -> None:
    counter = RowCounter(3)
    for fold in range(FOLDS):
        counter.add(np.array([0, 0, 0, 1, 1, 2]), 2, fold)
    rows = counter.distribution(sample=True)
    assert rows.counts.tolist() == [1, 1, 1]
    assert rows.p.tolist() == pytest.approx([1.5, 1.0, 0.5])
    assert rows.interval(1) == pytest.approx((0.495, 0.505))  # every fold says the same
    assert rows.interval([0, 3])[1].tolist() == pytest.approx([0, 1])


def test_runs_that_rise_share_what_they_have() -> None:
    counts = np.array([1, 2, 3])
    assert falling(np.array([3.0, 2.0, 1.0]), counts).tolist() == [3, 2, 1]
    assert falling(np.array([1.0, 4.0, 0.0]), counts).tolist() == [3, 3, 0]
    assert falling(np.array([1.0, 2.0, 3.0]), counts).tolist() == pytest.approx([14 / 6] * 3)


def test_a_formula_has_no_interval() -> None:
    rows = RowDistribution.of([1, 1], [0.3, 0.1])
    assert rows.interval(1) == pytest.approx((0.75, 0.75))


class Epoch(list[int]):
    """A loader that begins anywhere, and has the blocks in any order."""

    asked = range(0)

    places = 10_000

    def spread(self, blocks: range, size: int) -> Iterator[tuple[int, int]]:
        self.asked = blocks
        for block in blocks[: len(self) // size - blocks.start]:
            yield from ((block, 7 * block % (len(self) // size) * size + n) for n in range(size))


def test_batches_come_from_all_over_an_epoch_or_are_the_first() -> None:
    spread = list(sample_of(Epoch(range(6400)), 128))
    assert [fold for fold, _ in spread[::2]] == [block % FOLDS for block in range(64)]
    assert [batch for _, batch in spread[::2]] == [14 * block for block in range(64)]
    few = Epoch(range(6400))
    uneven = Epoch(range(6400))
    assert len(list(sample_of(uneven, 70))) == 70
    assert uneven.asked == range(35)  # of 2: all of which are taken
    few.places = 10  # reading is dear: more batches in each place
    assert len({fold for fold, _ in sample_of(few, 100)}) == 10
    assert len(list(sample_of(few, 100))) == 100
    first = list(sample_of(range(100), 32))
    assert first == [(number // 2, number) for number in range(32)]
    assert [fold for fold, _ in sample_of(range(4), 16)] == [0, 4, 8, 12]


def test_a_fold_is_counted_like_any_other() -> None:
    """Which fold holds a row is of no account for what was counted."""
    ids: list[Integers] = [np.array([n % 5, n % 3]) for n in range(16)]
    one, many = RowCounter(9), RowCounter(9)
    for number, each in enumerate(ids):
        one.add(each, 2)
        many.add(each, 2, number % FOLDS)
    for part in ("counts", "p", "presence", "ids"):
        found, expected = (getattr(c.distribution(), part) for c in (many, one))
        assert np.array_equal(found, expected), part


class Drawn(list[int]):
    """An epoch of batches whose ids are drawn by Zipf's law."""

    places = 10_000

    def __init__(self, exponent: float, batches: int = 512) -> None:
        super().__init__(range(batches))
        chance = zipf(exponent, 1)
        self._order = np.argsort(-chance)
        self._ends = np.cumsum(chance[self._order])
        self.read = 0

    def spread(self, blocks: range, size: int) -> Iterator[tuple[int, KeyedJaggedTensor]]:
        for block in blocks[: max(0, len(self) // size - blocks.start)]:
            for number in range(size):
                draw = np.random.default_rng([block, number])
                at = np.searchsorted(self._ends, draw.random(512) * self._ends[-1])
                lengths, values = (
                    torch.ones(512, dtype=torch.int32),
                    torch.from_numpy(self._order[at]),
                )
                self.read += 1
                yield block, KeyedJaggedTensor(["item"], values, lengths=lengths)


def test_more_is_counted_until_nothing_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "SECONDS", math.inf)  # a busy machine is slow, not done
    tables = {"item": Counted(num_rows=ROWS, features=("item",))}
    known, unknown = Drawn(1.3), Drawn(0.8)
    for epoch in (known, unknown):
        tally = count_sample(epoch, tables, most=None)
        assert tally.samples == 512 * epoch.read
        assert tally.epoch == 512
        assert tally.counted_share == epoch.read / 512
    assert 64 < known.read < unknown.read <= 512
    few = count_sample(Drawn(0.8), tables, most=8)
    assert few.samples == 8 * 512
    profile = few.profile()["item"]
    assert profile.interval(200)[0] < profile.coverage(200) < profile.interval(200)[1]


def test_folds_are_joined_where_pairs_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = [drawn(zipf(1.05, 1), 32, 400, seed=seed) for seed in (2, 3)]
    expected = RowCounter(ROWS)
    for counter in apart:
        expected.merge(*counter.state())
    assert expected.counted.shape[1] > 4000
    monkeypatch.setattr(row_counter, "MOST_PAIRS", 4000)
    joined = RowCounter(ROWS)
    for counter in (drawn(zipf(1.05, 1), 32, 400, seed=2), apart[1]):
        joined.merge(*counter.state())
    assert joined.counted.shape[1] < expected.counted.shape[1]
    own, of_all = joined.distribution(), expected.distribution()
    assert np.array_equal(own.ids, of_all.ids)
    assert np.array_equal(own.presence, of_all.presence)
    later, fuller = (one.distribution(sample=True) for one in (joined, expected))
    # What is drawn follows from the seeds, and so does how near they come, on all processors.
    assert later.coverage(500) == pytest.approx(fuller.coverage(500), abs=0.02)
    joined.add(np.array([1]), 100, 15)  # into the fold that has it now
    assert joined.samples == expected.samples + 100


def test_what_was_counted_is_explained() -> None:
    tables = {"item": Counted(num_rows=ROWS, features=("item",))}
    own = [batch for _, batch in Drawn(1.05).spread(range(10), 1)]
    first = count_sample(own, tables, most=5).explain()
    assert first.startswith("counted: 2,560 samples, 50.0% of an epoch, the first of the trainer")
    assert "from all over it" in count_sample(Drawn(1.05), tables, most=5).explain()
    every = count_sample(own, tables, most=10).explain()  # a list, of which no next epoch is read
    assert every.startswith("counted: 5,120 samples, 100.0% of an epoch, from all over it. If the")


def test_ids_that_each_epoch_draws_anew_are_forecast_for_a_loader_without_a_length() -> None:
    """As negatives are: what one epoch has is not what the next one looks up."""
    draw = np.random.default_rng(0)

    def epoch() -> list[KeyedJaggedTensor]:
        ids = torch.from_numpy(draw.integers(0, ROWS, (20, 400)))
        each = torch.ones(400, dtype=torch.int32)
        return [KeyedJaggedTensor(keys=["item"], values=one, lengths=each) for one in ids]

    class Endless:
        def __iter__(self) -> Iterator[KeyedJaggedTensor]:
            return iter(once)

    once, tables = epoch(), {"item": Counted(num_rows=ROWS, features=("item",))}
    replayed, anew = (
        count_sample(one, tables, most=20).profile()["item"] for one in (once, Endless())
    )
    assert replayed.ids is not None
    later = np.concatenate([batch.values().numpy() for batch in epoch()])
    chosen = len(replayed.ids)
    served = float(np.isin(later, replayed.ids).mean())
    assert replayed.coverage(chosen) == 1  # by the samples that were counted, which come again
    assert anew.coverage(chosen) == pytest.approx(served, abs=0.03)
    assert served < 0.9
