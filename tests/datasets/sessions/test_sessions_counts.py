"""Value tests: laws of lengths and of session sizes have the mean and the range asked for."""

from __future__ import annotations

import numpy as np
import pytest

from recd_dlrm.datasets.sessions.laws import CountLaw, solve


@pytest.mark.parametrize(
    ("mean", "least", "most"), [(1, 1, 4), (20, 1, 80), (0.3, 0, 5), (4.5, 1, 5), (7, 2, 7)]
)
def test_lengths_have_their_mean_within_their_range(mean: float, least: int, most: int) -> None:
    law = CountLaw.geometric(mean, least, most)
    assert law.mean == pytest.approx(mean, abs=1e-9)
    lengths = law.sample(np.linspace(0, 1, 10_001)[:-1])
    assert least <= lengths.min() <= lengths.max() <= most
    np.testing.assert_allclose(
        np.bincount(lengths - least, minlength=law.cdf.size) / 10_000, law.probabilities, atol=2e-4
    )


def test_session_sizes_have_their_mean_and_their_tail() -> None:
    law = CountLaw.lognormal(16.5, 1.5, 10_000)
    assert law.mean == pytest.approx(16.5, rel=1e-9)
    sizes = law.sample(np.random.default_rng(0).random(1_000_000))
    assert abs(sizes.mean() - 16.5) < 5 * sizes.std() / 1000 < 0.3  # five standard errors
    assert (sizes > 1000).sum() > 100
    assert 1 == sizes.min() < sizes.max() <= 10_000


@pytest.mark.parametrize("sigma", [0.1, 1.5, 4.0])
@pytest.mark.parametrize(("mean", "most"), [(10, 10), (9.9, 10), (1, 1), (1, 10), (999.5, 1000)])
def test_session_sizes_have_their_mean_next_to_the_ends_of_their_range(
    mean: float, most: int, sigma: float
) -> None:
    assert CountLaw.lognormal(mean, sigma, most).mean == pytest.approx(mean, rel=1e-9)


def test_solve_finds_where_a_rising_function_reaches_a_value() -> None:
    assert solve(lambda x: x**3, 27, -50, 50) == pytest.approx(3, abs=1e-15)
    assert solve(lambda x: float(x >= 1), 1, 0, 8) == 1  # where it steps over the value
