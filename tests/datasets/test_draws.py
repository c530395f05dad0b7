"""Value tests: keyed draws are even, and share nothing with their neighbours."""

from __future__ import annotations

import math

import numpy as np

from recd_dlrm.datasets.draws import salt, streams, uniforms


def test_keyed_draws_are_even_and_independent_of_each_other() -> None:
    """Neighbouring subjects, counters and purposes share nothing; the bounds are five sigma."""
    n = 100_000
    ones, zeros, up = np.ones(n, np.int64), np.zeros(n, np.int64), np.arange(n)
    draws = [
        uniforms(streams(salt(0, "a"), up), zeros),
        uniforms(streams(salt(0, "a"), up), ones),
        uniforms(streams(salt(0, "a"), zeros), up),
        uniforms(streams(salt(0, "b"), up), zeros),
        uniforms(streams(salt(1, "a"), up), zeros),
    ]
    for one in draws:
        counts = np.bincount((one * 100).astype(int), minlength=100)
        chi_square = ((counts - n / 100) ** 2 / (n / 100)).sum()
        assert chi_square < 99 + 8 * math.sqrt(2 * 99)  # its mean and eight deviations
        assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 5 / math.sqrt(n)
    correlations = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlations).max() < 5 / math.sqrt(n)
