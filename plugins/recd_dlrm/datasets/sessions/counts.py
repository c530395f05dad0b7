"""Laws of counts with a mean that holds exactly: list lengths and session sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from recd_dlrm.datasets.columns import F64, I64
from recd_dlrm.datasets.sessions.solve import solve

__all__ = ["CountLaw"]


@dataclass(frozen=True)
class CountLaw:
    """A law over least, least + 1, ..., as a table of its distribution function."""

    least: int
    cdf: F64
    """P(count <= least + i) at index i; the last is 1."""

    def sample(self, uniforms: F64) -> I64:
        """A count for each number in [0, 1); [N] to [N]."""
        return self.cdf.searchsorted(uniforms, side="right") + self.least

    @property
    def probabilities(self) -> F64:
        """P(count = least + i) at index i."""
        return np.diff(self.cdf, prepend=0.0)

    @property
    def mean(self) -> float:
        return self.least + float((1 - self.cdf).sum())

    @classmethod
    def geometric(cls, mean: float, least: int, most: int) -> CountLaw:
        """P(k) ~ q^k over [least, most]: of all laws with this mean and range the flattest.

        q is solved so that the mean, cut included, is `mean`.
        """
        steps = np.arange(most - least + 1)

        def law(log_q: float) -> CountLaw:
            weights = np.exp(steps * log_q - max(0.0, log_q * (most - least)))
            return cls(least, _closed(weights.cumsum() / weights.sum()))

        return law(solve(lambda log_q: law(log_q).mean, mean, -50, 50))

    @classmethod
    def lognormal(cls, mean: float, sigma: float, most: int) -> CountLaw:
        """min(ceil(exp(mu + sigma z)), most), z normal: a body of short sessions, a heavy tail.

        P(count <= k) = Phi((log k - mu) / sigma) for 1 <= k < most; mu is solved so that the
        mean, rounding and cut included, is `mean`.
        """
        logs = [math.log(k) for k in range(1, most)]

        def law(mu: float) -> CountLaw:
            unit = -1 / (sigma * math.sqrt(2))
            below = [math.erfc((log - mu) * unit) / 2 for log in logs]
            return cls(1, _closed(np.array([*below, 1.0])))

        low, high = math.log(mean) - sigma**2 - 10 * sigma, math.log(most) + sigma
        return law(solve(lambda mu: law(mu).mean, mean, low, high))


def _closed(cdf: F64) -> F64:
    cdf[-1] = 1.0  # what rounding left open would be drawn as a count beyond the range
    return cdf
