"""Ladder: distributions, formulas and counts as values, then drawn ones."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.planning.access import row_counter
from recd_plugins.planning.access.access_profile import Counted, Profile, Tally, profile_batches
from recd_plugins.planning.access.counting import counters
from recd_plugins.planning.access.distribution import RowDistribution, drift, named_twice
from recd_plugins.planning.access.parametric import (
    exponential,
    half_normal,
    uniform,
    zipf,
)
from recd_plugins.planning.access.row_counter import RowCounter
from recd_plugins.planning.access.row_sketch import RowSketch
from recd_plugins.testing.batches import random_batches
from recd_plugins.testing.probe import SCHEMA


def counted(*batches: list[int], num_rows: int = 8, samples: int = 4) -> RowDistribution:
    counter = RowCounter(num_rows)
    for ids in batches:
        counter.add(np.array(ids, np.int64), samples)
    return counter.distribution()


def test_counts_become_runs_of_rows_alike_hottest_first() -> None:
    rows = counted([5, 5, 2, 7], [5, 2, 7, 1])
    assert rows.counts.tolist() == [1, 2, 1, 4]
    assert rows.p.tolist() == [3 / 8, 2 / 8, 1 / 8, 0]
    assert rows.ids is not None
    assert rows.ids.tolist() == [5, 2, 7, 1]
    assert rows.num_rows == 8
    assert rows.lookups == 1.0
    assert rows.coverage(1) == 3 / 8
    assert rows.coverage([0, 3, 8]).tolist() == [0, 7 / 8, 1]


def test_what_a_sketch_or_a_forecast_is_off_by_stays_with_it() -> None:
    rows = RowDistribution.of([1, 1], [0.5, 0.25], error=0.02, uncertainty=np.array([0.6, 0.0]))
    assert rows.interval(1) == pytest.approx((2 / 3 - 0.6, 1.0))  # no share is above 1
    once = rows.deduplicated(1.6)
    assert once.p.tolist() == pytest.approx([0.3125, 0.15625])
    assert once.error == pytest.approx(0.0125)
    assert once.interval(1) == rows.interval(1)
    assert RowDistribution.of([1, 1], [0.5, 0.25]).error == 0


def test_the_one_row_without_an_id_is_where_there_is_room() -> None:
    rows = RowDistribution.of([1, 1], [0.5, 0.25], ids=np.array([0]))
    assert rows.by_rank(2).tolist() == [[1, 0], [0, 1]]


def test_presence_tells_lookups_that_come_together() -> None:
    spread = counted([0], [0], [0], [], samples=10)
    joint = counted([0, 0, 0], [], [], [], samples=10)
    assert spread.p[0] == joint.p[0] == 3 / 40
    # By definition: 1 - (1 - q)^10 is the share of batches that hold the row.
    assert spread.appearing(10) == pytest.approx(3 / 4)
    assert joint.appearing(10) == pytest.approx(1 / 4)
    assert spread.coalesced(10).lookups == pytest.approx(3 / 40)
    assert joint.coalesced(10).lookups == pytest.approx(1 / 40)


def test_a_row_of_every_batch_is_as_present_as_it_is_looked_up() -> None:
    assert counted([0, 0], [0, 0]).presence[0] == 2 / 4
    assert counted([0] * 9, [0] * 9).presence[0] == 1.0


def test_a_sample_leaves_lookups_to_rows_that_it_lacks() -> None:
    """Half the batches foretell the other half."""
    draw = np.random.default_rng(0)
    rows = zipf(20_000, 1.0, 1.0)
    chance = np.repeat(rows.p, rows.counts)
    halves = [RowCounter(20_000), RowCounter(20_000)]
    for counter in halves:
        for _ in range(50):
            counter.add(draw.choice(20_000, 400, p=chance / chance.sum()), 100)
    seen, later = (counter.distribution() for counter in halves)
    sampled = halves[0].distribution(sample=True)
    assert sampled.lookups == pytest.approx(seen.lookups)
    ids = seen.hottest(len(seen.ids))  # type: ignore[arg-type]
    truly = drift(seen, later, len(ids)).now
    assert truly < 0.85
    assert seen.coverage(len(ids)) == 1
    # 20,000 lookups: shares are known to half a percent, and Ney's estimate is one.
    assert sampled.coverage(len(ids)) == pytest.approx(truly, abs=0.02)
    assert sampled.appearing(100) == pytest.approx(later.appearing(100), rel=0.05)
    assert counted([0, 1, 2], num_rows=3).lookups == 3 / 4  # all are seen: nothing to give


def test_rows_seen_once_come_before_those_never_seen() -> None:
    """Both have as much where all that is known is rows seen once; but for rounding."""
    for num_rows, seen in ((5, 1), (9, 2), (9, 4), (12, 5), (13, 1)):
        counter = RowCounter(num_rows)
        counter.add(np.arange(seen), 64)
        sampled = counter.distribution(sample=True)
        assert sampled.hottest(num_rows).tolist() == list(range(num_rows))


def test_dedup_divides_lookups_and_presence() -> None:
    rows = zipf(100, 20).deduplicated(4)
    assert rows.lookups == pytest.approx(5)
    assert rows.presence[0] == pytest.approx(min(zipf(100, 20).p[0], 1) / 4)
    with pytest.raises(DataError, match="DedupeFactor is 1 or more"):
        zipf(100, 20).deduplicated(0.5)


def test_a_part_is_the_rows_between_two_ranks() -> None:
    whole = counted([5, 5, 2, 7], [5, 2, 7, 1])
    part = whole.part(2, 6)
    assert part.counts.tolist() == [1, 1, 2]
    assert part.p.tolist() == [2 / 8, 1 / 8, 0]
    assert part.ids is None
    assert whole.part(2, 4).hottest(2).tolist() == [7, 1]


@pytest.mark.parametrize(
    ("counts", "p", "presence", "says"),
    [
        ([1, 1], [1.0, 2.0], [1.0, 1.0], "p must fall"),
        ([0], [1.0], [1.0], "a row or more"),
        ([1], [-1.0], [0.0], "p >= 0"),
        ([1], [1.0], [1.5], "from 0 to 1"),
        ([1, 1], [1.0], [1.0], "alike"),
    ],
)
def test_what_is_no_distribution_is_refused(
    counts: list[int], p: list[float], presence: list[float], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        RowDistribution(counts=np.array(counts), p=np.array(p), presence=np.array(presence, float))


def test_ids_are_known_or_asked_for_in_vain() -> None:
    assert counted([3, 3, 1]).hottest(2).tolist() == [3, 1]
    assert counted([3, 3, 1]).hottest(5).tolist() == [3, 1, 0, 2, 4]  # never seen: by id
    huge = RowDistribution.of([1, 1, 10**13 - 2], [2, 1, 0], ids=np.array([10**12, 1]))
    assert huge.hottest(4).tolist() == [10**12, 1, 0, 2]  # of more rows than memory has bytes
    with pytest.raises(
        CapabilityError, match=r"9,999,999,998 of them were never .* smaller budget"
    ):
        huge.hottest(10**10)
    with pytest.raises(DataError, match="ids of only 1 are known"):
        RowDistribution.of([1, 1, 1], [3, 2, 1], ids=np.array([7])).hottest(2)
    with pytest.raises(DataError, match="ids of only 0 are known"):
        zipf(10, 1).hottest(1)
    with pytest.raises(DataError, match=r"id 8 is not in \[0, 8\)"):
        counted([8])
    with pytest.raises(DataError, match="id -1 is not in"):
        counted([-1])
    with pytest.raises(DataError, match="nothing was counted"):
        RowCounter(4).distribution()


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.3])
def test_zipf_is_its_formula_summed_row_by_row(exponent: float) -> None:
    weight = np.arange(1, 20_001) ** -exponent
    share = np.cumsum(weight) / weight.sum()
    rows = zipf(20_000, 50, exponent)
    assert rows.num_rows == 20_000
    assert rows.lookups == pytest.approx(50)
    # Runs of up to 1/512 of the rank: their middle stands for them, to the second order.
    assert np.abs(rows.coverage(np.arange(1, 20_001)) - share).max() < 1e-6


@pytest.mark.parametrize("formula", [half_normal, exponential])
def test_half_normal_and_exponential_fall_off_at_their_scale(formula: object) -> None:
    rank = np.arange(1, 5001)
    scaled = rank / 500.0
    weight = np.exp(-0.5 * scaled**2) if formula is half_normal else np.exp(-scaled)
    share = np.cumsum(weight) / weight.sum()
    rows = formula(5000, 3.0, scale=0.1)  # type: ignore[operator]
    assert rows.lookups == pytest.approx(3)
    assert np.abs(rows.coverage(rank) - share).max() < 1e-5


def test_no_formula_rises() -> None:
    for formula, parameter in ((zipf, -1), (zipf, np.nan), (half_normal, 0), (exponential, np.inf)):
        with pytest.raises(DataError, match=f"not {parameter}"):
            formula(100, 1.0, parameter)


def test_uniform_rows_are_one_run() -> None:
    assert uniform(1000, 10).p.tolist() == [0.01]


def test_a_billion_rows_are_ten_thousand_bands() -> None:
    assert len(zipf(10**9, 100).counts) < 10_000


def test_drift_is_what_yesterdays_rows_take_today() -> None:
    yesterday = counted([0, 0, 0, 1, 1, 2])
    today = counted([1, 1, 1, 2, 2, 3, 0, 4])
    found = drift(yesterday, today, 2)
    assert found.then == 5 / 6
    assert found.now == 4 / 8  # rows 0 and 1
    assert found.best == 5 / 8  # rows 1 and 2
    assert found.best - found.now == 1 / 8
    assert found.stayed == 0.5
    same = drift(today, today, 3)
    assert (same.best - same.now, same.stayed) == (0, 1)
    gone = drift(counted([6, 7]), today, 2)
    assert (gone.now, gone.stayed) == (0, 0)
    assert drift(yesterday, today, 0).now == 0
    with pytest.raises(DataError, match="had 8 rows before and has 9 now"):
        drift(yesterday, counted([0], num_rows=9), 1)


@given(
    ids=st.lists(st.integers(0, 30), min_size=1, max_size=200),
    capacity=st.integers(1, 40),
    parts=st.integers(1, 4),
    known=st.tuples(st.booleans(), st.booleans()),
)
def test_a_sketch_errs_by_no_more_than_it_says(
    ids: list[int], capacity: int, parts: int, known: tuple[bool, bool]
) -> None:
    """Also where it counts exactly first, as long as there is room."""
    true = np.bincount(ids, minlength=31)
    sketch = RowSketch(capacity, 31 if known[0] else None)
    for part in np.array_split(np.array(ids, np.int64), parts):
        other = RowSketch(capacity, 31 if known[1] else None)
        other.add(part, 1)
        sketch.merge(*other.state())
    assert sketch.error <= len(ids) / (capacity + 1)
    rows = sketch.distribution(num_rows=31)
    assert rows.num_rows == 31
    assert rows.ids is not None
    estimates = np.repeat(rows.p, rows.counts)[: len(rows.ids)] * parts
    for row, estimate in zip(rows.ids, estimates, strict=True):
        assert true[row] - sketch.error - 1e-9 <= estimate <= true[row] + 1e-9
    kept = set(rows.ids.tolist())
    assert all(row in kept for row in range(31) if true[row] > sketch.error)


def test_a_sketch_with_room_for_all_rows_is_exact() -> None:
    ids = np.random.default_rng(0).zipf(1.5, 5000) % 1000
    sketch, counter = RowSketch(1000), RowCounter(1000)
    for part in np.array_split(ids, 5):
        sketch.add(part, 10)
        counter.add(part, 10)
    exact, found = counter.distribution(), sketch.distribution(1000)
    assert found.error == 0
    assert np.array_equal(exact.coverage(np.arange(1000)), found.coverage(np.arange(1000)))


def test_a_profile_is_per_table_or_per_feature_and_comes_back_from_its_file(
    tmp_path: Path,
) -> None:
    # One batch per step and rank: rank 0's are taken.
    batches = [step[0] for step in random_batches(SCHEMA, steps=4)]
    tables = {
        "item": Counted(num_rows=30, features=("item", "seen")),
        "seen": Counted(num_rows=30, features=("seen",)),
    }
    profile = profile_batches(batches, tables)
    both = sum(len(batch.features[key].values()) for batch in batches for key in ("item", "seen"))
    assert profile["item"].lookups * profile.samples == pytest.approx(both)
    assert profile["item"].lookups > profile["seen"].lookups
    profile.save(tmp_path / "profile.arrow")
    loaded = Profile.load(tmp_path / "profile.arrow")
    assert loaded.samples == profile.samples
    for name in tables:
        for part in ("counts", "p", "presence", "ids"):
            assert np.array_equal(getattr(loaded[name], part), getattr(profile[name], part))
    with pytest.raises(DataError, match="has no 'itme'; did you mean 'item'"):
        profile["itme"]
    with pytest.raises(DataError, match="batches have no feature 'shoe'; did you mean 'shop'"):
        profile_batches(batches, {"t": Counted(num_rows=9, features=("shoe",))})
    (tmp_path / "broken.arrow").write_bytes(b"ARROW1 and then nothing")
    with pytest.raises(DataError, match=r"is no Arrow file, or damaged\. A profile is"):
        Profile.load(tmp_path / "broken.arrow")
    with pytest.raises(DataError, match=r"there is no such file\. A profile is meant"):
        Profile.load(tmp_path / "gone.arrow")
    Profile(rows={"t": zipf(10, 1)}).save(tmp_path / "formula.arrow")
    assert Profile.load(tmp_path / "formula.arrow")["t"].ids is None


def test_ids_of_no_row_are_left_out_and_counted() -> None:
    """TorchRec trains with them, so a plan must not fail for them."""
    batches = [step[0] for step in random_batches(SCHEMA, steps=4)]
    ids = np.concatenate([batch.features["item"].values().numpy() for batch in batches])
    for exact_rows in (100, 9):
        tally = Tally(
            counted={"item": Counted(num_rows=10, features=("item",))}, exact_rows=exact_rows
        ).add(batches)
        assert tally.no_row == {"item": np.count_nonzero(ids >= 10)} != {"item": 0}
        profile = tally.profile()
        assert profile["item"].lookups * profile.samples == pytest.approx((ids < 10).sum())


def test_a_large_table_is_forecast_until_a_sketch_is_smaller() -> None:
    batches = [step[0] for step in random_batches(SCHEMA, steps=4)]
    tables = {"item": Counted(num_rows=30, features=("item",))}
    exact, large = (profile_batches(batches, tables, exact_rows=rows)["item"] for rows in (30, 29))
    assert np.array_equal(exact.coverage(np.arange(31)), large.coverage(np.arange(31)))
    assert np.array_equal(exact.interval(np.arange(31)), large.interval(np.arange(31)))
    assert np.ptp(exact.interval(5)) > 0

    sketch, counter = RowSketch(12, 30), RowCounter(30)
    for fold, batch in enumerate(batches):
        ids = batch.features["item"].values().numpy()
        sketch.add(ids, 8, fold)
        counter.add(ids, 8, fold)
    assert sketch.exact is None
    assert (sketch.samples, sketch.lookups) == (counter.samples, counter.counted[1].sum())
    assert sketch.error > 0


def test_all_tables_together_are_counted_within_one_bound_of_memory() -> None:
    rows = {"large": 60, "small": 10, "other": 20, "middle": 30}
    exact = {
        name
        for name, counter in counters(rows, exact_rows=60).items()
        if isinstance(counter, RowCounter)
    }
    assert exact == {"small", "other", "middle"}  # 60 rows; the largest are sketched first
    assert all(isinstance(one, RowSketch) for one in counters(rows, exact_rows=9).values())


def test_a_billion_rows_of_a_hundred_tables_are_counted_in_four_gigabytes() -> None:
    tables = {str(n): Counted(num_rows=10**7, features=("item",)) for n in range(100)}
    batches = [step[0] for step in random_batches(SCHEMA, steps=2)]
    tracemalloc.start()
    try:
        profile = profile_batches(batches, tables)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**30  # not 12 bytes of each row: 12 GB
    assert all(profile[name].num_rows == 10**7 for name in tables)
    sketches = [
        c for c in counters(dict.fromkeys(tables, 10**7)).values() if isinstance(c, RowSketch)
    ]
    # 16 bytes of a counter, and 8 of each lookup that waits to be counted.
    assert sum(24 * sketch.capacity for sketch in sketches) < 2 * 2**30


@pytest.mark.parametrize("far", [0, 2**62])
def test_a_row_that_is_named_twice_is_found(far: int) -> None:
    rows = np.append(np.random.default_rng(0).permutation(1000), far or 1000)
    assert not named_twice(rows)
    assert named_twice(np.append(rows, 7))
    assert not named_twice(rows[:0])


def test_batches_of_any_size_are_counted_but_for_the_rest_of_an_epoch() -> None:
    """A trainer's batches need not be of one size."""

    def batch(size: int) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=["f"], values=torch.arange(size) % 7, lengths=torch.ones(size, dtype=torch.int32)
        )

    tally = Tally(counted={"t": Counted(num_rows=7, features=("f",))})
    tally.add(map(batch, (64, 48, 80, 31)))
    assert (tally.samples, tally.batches, tally.batch_size) == (192, 3, 64)
    counter = tally.counters["t"]
    assert isinstance(counter, RowCounter)
    assert counter.counted[1].sum() == 192
    assert tally.profile()["t"].lookups * 192 == pytest.approx(192)


def test_batches_without_samples_count_for_nothing_beside_others() -> None:
    def batch(size: int) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=["f"], values=torch.arange(size) % 7, lengths=torch.ones(size, dtype=torch.int32)
        )

    def tally(*sizes: int) -> Tally:
        return Tally(counted={"t": Counted(num_rows=7, features=("f",))}).add(map(batch, sizes))

    assert (tally(0, 0, 64).batches, tally(64, 0, 64).batches) == (1, 2)
    for first, second in (((0, 0), (64,)), ((64,), (0, 0))):
        merged = tally(*first)
        merged.merge(tally(*second))
        assert (merged.samples, merged.batches, merged.batch_size) == (64, 1, 64)
        assert merged.profile()["t"].lookups == pytest.approx(1)
    merged = tally(0)
    merged.merge(tally(0, 0))
    with pytest.raises(DataError, match="no samples to count: 3 batches came, and none had a sam"):
        merged.profile()
    with pytest.raises(DataError, match="no batches to count"):
        tally().profile()


def test_batches_are_counted_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may have few ids of each of many tables: a call for each would take most of it."""
    asked: list[int] = []
    whole = row_counter._of_batches

    def counted(ids: list, folds: list) -> np.ndarray:
        asked.append(len(ids))
        return whole(ids, folds)

    monkeypatch.setattr(row_counter, "_of_batches", counted)
    counter = RowCounter(10)
    for number in range(40):
        counter.add(np.array([number % 3, 7, 7]), 2, number % 2)
    pairs, lookups, batches = counter.counted
    assert asked == [16, 16, 8]
    assert pairs.tolist() == [16 * row + fold for row in (0, 1, 2, 7) for fold in (0, 1)]
    assert lookups.tolist() == [7, 7, 6, 7, 7, 6, 40, 40]
    assert batches.tolist() == [7, 7, 6, 7, 7, 6, 20, 20]


def test_a_batch_that_lets_folds_be_joined_is_of_a_joined_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_counter, "MOST_PAIRS", 4)
    monkeypatch.setattr(row_counter, "BUFFER", 8)
    counter = RowCounter(10)
    counter.add(np.arange(10), 5, 3)
    _, numbers = counter.state()
    assert numbers[:16] == (5, *[0] * 15)
    assert numbers[-1] == 8
