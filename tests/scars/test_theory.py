"""Value and property tests: SCARS' formulas against counting and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_plugins.errors import DataError, RegistryError
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.access.parametric import exponential, half_normal, uniform, zipf
from recd_scars.theory import Memory, coalesced, cost, epoch, optimal_cache, plain

CHANCES = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40)


def test_two_rows_by_hand() -> None:
    rows = RowDistribution.of([1, 1], [0.5, 0.25])
    assert plain(rows, batch_size=2, width=4) == 2 * 0.75 * 4
    # Of 2 samples: 1 - 0.5^2 = 0.75 of row 0, 1 - 0.75^2 = 0.4375 of row 1; 1.5 indices.
    assert coalesced(rows, batch_size=2, width=4) == pytest.approx(1.5 + 4 * (0.75 + 0.4375))
    assert coalesced(rows, batch_size=2, width=4, cached=1) == pytest.approx(1.5 + 4 * 0.4375)
    assert epoch(rows, samples=10, batch_size=2, width=4, cached=2) == pytest.approx(5 * 1.5)
    assert epoch(rows, samples=10, batch_size=2, width=4) == pytest.approx(5 * (1.5 + 4 * 1.1875))


def marginal(rows: RowDistribution, memory: Memory, cached: int) -> float:
    """The numbers that one more row saves of each sample's; below 0, it costs (equations 8 to 10).

    It saves its own way to the device, and shrinks the batch, so that others travel more often.
    """
    return cost(rows, memory, cached) - cost(rows, memory, cached + 1)


def test_what_one_more_row_saves_by_hand() -> None:
    rows = RowDistribution.of([1, 1], [0.5, 0.25])
    memory = Memory(capacity=12, per_sample=4, width=4)
    # Batches of 3 without a cache, of 2 with a row: 1 - 0.5^3 and 1 - 0.75^3 of the rows' 4.
    none, one = 0.75 + 4 / 3 * (0.875 + 0.578125), 0.75 + 4 / 2 * 0.4375
    assert marginal(rows, memory, 0) == pytest.approx(none - one)


@pytest.mark.parametrize("make", [zipf, half_normal, exponential, uniform])
def test_expected_rows_are_those_of_drawn_batches(make: object) -> None:
    rows: RowDistribution = make(5_000, 1.0)  # type: ignore[operator]
    draws = np.random.default_rng(0)
    chances = np.repeat(rows.p, rows.counts)
    counted = [len(np.unique(draws.choice(5_000, 2_000, p=chances))) for _ in range(40)]
    # 40 batches of about 1,000 distinct rows: the mean's deviation is below half a percent.
    assert coalesced(rows, batch_size=2_000, width=1) - 2_000 == pytest.approx(
        np.mean(counted), rel=0.02
    )


@pytest.mark.parametrize(("make", "most"), [(exponential, 1.5), (half_normal, 1.5), (zipf, 2.0)])
def test_five_times_the_rows_and_batch_move_less_than_twice_as_much(
    make: object, most: float
) -> None:
    small, large = (make(size, 1.0) for size in (100_000, 500_000))  # type: ignore[operator]
    before = epoch(small, samples=1, batch_size=2_048, width=64)
    after = epoch(large, samples=1, batch_size=5 * 2_048, width=64)
    assert after / before < most


@given(CHANCES, st.integers(1, 8), st.floats(1.0, 200.0), st.floats(0.5, 40.0))
@settings(max_examples=at_most(300), deadline=None)
def test_the_optimum_is_that_of_brute_force(
    chances: list[float], width: int, spare: float, per_sample: float
) -> None:
    rows = RowDistribution.of(np.ones(len(chances), int), chances)
    memory = Memory(capacity=per_sample + spare, per_sample=per_sample, width=width)
    most = min(rows.num_rows, memory.most_cached)
    least = min(cost(rows, memory, cached) for cached in range(most + 1))
    found = optimal_cache(rows, memory)
    assert found.per_sample == pytest.approx(least, rel=2e-6)
    assert found.per_sample == cost(rows, memory, found.cached)
    assert 0 <= found.cached <= most


def test_halving_on_the_marginal_alone_can_miss_the_optimum() -> None:
    # Three hot rows, then a plateau: its first row is not worth its memory, all of it is.
    rows = RowDistribution.of([3, 176], [0.9, 0.0275])
    memory = Memory(capacity=160.0, per_sample=0.738, width=1)
    low, high = 0, memory.most_cached
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if marginal(rows, memory, middle) > 0 else (low, middle)
    least = min(cost(rows, memory, cached) for cached in range(memory.most_cached + 1))
    assert cost(rows, memory, low) > 1.03 * least
    assert optimal_cache(rows, memory).per_sample == pytest.approx(least, rel=2e-6)


def test_large_tables_take_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = zipf(100_000_000, 26.0, exponent=1.05)
    memory = Memory(capacity=5e9, per_sample=50_000, width=64)
    counted: list[int] = []

    def counting(rows: RowDistribution, memory: Memory, cached: int) -> float:
        counted.append(cached)
        return cost(rows, memory, cached)

    monkeypatch.setattr("recd_scars.theory.cost", counting)
    found = optimal_cache(rows, memory)
    assert 0 < len(counted) < 3_000
    for other in np.linspace(0, memory.most_cached, 50, dtype=int):
        assert found.per_sample <= cost(rows, memory, int(other)) * (1 + 2e-6)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(RegistryError, match="does not hold one sample"):
        Memory(capacity=10, per_sample=11, width=4)
    for nothing in ({"per_sample": 0}, {"width": 0}):
        with pytest.raises(RegistryError, match="give more memory"):
            Memory(**{"capacity": 10, "per_sample": 1, "width": 4, **nothing})
    with pytest.raises(DataError, match="moves nothing"):
        coalesced(uniform(10, 1.0), batch_size=0, width=4)
