"""The laws of list lengths, session sizes and hot ids.

Counts have exact means, and ids have exact probabilities over [0, num_ids). A sample is the law's
inverse distribution function at a uniform number: no rejection, no tail beyond num_ids, and no
table of num_ids entries. Rank 0 is the hottest id; `Scatter` spreads the ranks over the ids, as
hashing does in a log.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recd_dlrm.datasets.flat_columns import F64, I64, U64
from recd_plugins.api import RegistryError

__all__ = ["CountLaw", "Distribution", "IdLaw", "Scatter", "id_law", "solve"]


def solve(rising: Callable[[float], float], value: float, low: float, high: float) -> float:
    """The least x in [low, high] with rising(x) >= value, to a float's precision, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < value:
            low = middle
        else:
            high = middle
    return high


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
        """P(k) ~ q^k over [least, most]: the flattest of all laws with this mean and range.

        q is solved so that the mean, with the cut, is `mean`.
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
        mean, with rounding and cut, is `mean`.
        """
        return _lognormal(mean, sigma, most)


@cache
def _lognormal(mean: float, sigma: float, most: int) -> CountLaw:
    """The law, solved once: a process asks for the same law many times, and solving takes 0.1 s."""
    logs = [math.log(k) for k in range(1, most)]

    def law(mu: float) -> CountLaw:
        unit = -1 / (sigma * math.sqrt(2))
        below = [math.erfc((log - mu) * unit) / 2 for log in logs]
        return CountLaw(1, _closed(np.array([*below, 1.0])))

    low, high = math.log(mean) - sigma**2 - 10 * sigma, math.log(most) + sigma
    if law(high).mean < mean:  # almost all sessions have the largest size
        high = math.log(most) + 10 * sigma
    return law(solve(lambda mu: law(mu).mean, mean, low, high))


def _closed(cdf: F64) -> F64:
    cdf[-1] = 1.0  # a gap left by rounding would be drawn as a count beyond the range
    return cdf


Distribution = Literal["zipf", "half_normal", "exponential", "uniform"]


class IdLaw(ABC):
    """A law over ids; subclasses define it over ranks."""

    def __init__(self, num_ids: int, scatter: Scatter | None) -> None:
        self.num_ids = num_ids
        self._scatter = scatter

    def sample(self, uniforms: F64) -> I64:
        """An id for each number in [0, 1); [N] to [N]."""
        # Rounding near 1 may step one past the last rank.
        ranks = np.minimum(self._rank(uniforms).astype(np.int64), self.num_ids - 1)
        return ranks if self._scatter is None else self._scatter.id_of(ranks)

    def probabilities(self, ids: NDArray[Any]) -> F64:
        """p(id) of each id in [0, num_ids); [N] to [N]."""
        ranks = ids.astype(np.int64)
        return self._mass(ranks if self._scatter is None else self._scatter.rank_of(ranks))

    def agreement(self, most: int) -> F64:
        """The chance that m draws all yield the same id, the sum of p(id)^m, for m = 0..most.

        Ranks from 2^16 on are left out; for two draws or more they add less than 2^-16.
        """
        chances = np.ones(most + 1)
        masses = self._mass(np.arange(min(self.num_ids, 1 << 16)))
        powers = masses
        for m in range(2, most + 1):
            powers = powers * masses[: powers.size]
            powers = powers[powers > 1e-30]  # they fall with the rank, so the hottest are left
            chances[m] = powers.sum()
        return chances

    @abstractmethod
    def _rank(self, uniforms: F64) -> NDArray[Any]: ...

    @abstractmethod
    def _mass(self, ranks: I64) -> F64: ...


class _Uniform(IdLaw):
    """p(k) = 1 / n."""

    def _rank(self, uniforms: F64) -> NDArray[Any]:
        return uniforms * self.num_ids

    def _mass(self, ranks: I64) -> F64:
        return np.full(ranks.shape, 1.0 / self.num_ids)


class _Exponential(IdLaw):
    """p(k) ~ exp(-k / scale)."""

    def __init__(self, num_ids: int, scale: float, scatter: Scatter | None) -> None:
        super().__init__(num_ids, scatter)
        self._scale = scale
        self._whole = -math.expm1(-num_ids / scale)

    def _rank(self, uniforms: F64) -> NDArray[Any]:
        return -self._scale * np.log1p(-uniforms * self._whole)

    def _mass(self, ranks: I64) -> F64:
        return np.exp(-ranks / self._scale) * (-math.expm1(-1 / self._scale) / self._whole)


class _HalfNormal(IdLaw):
    """p(k) ~ the integral of exp(-x^2 / (2 scale^2)) over [k, k + 1)."""

    def __init__(self, num_ids: int, scale: float, scatter: Scatter | None) -> None:
        super().__init__(num_ids, scatter)
        self._unit = scale * math.sqrt(2)
        self._whole = math.erf(num_ids / self._unit)

    def _rank(self, uniforms: F64) -> NDArray[Any]:
        import torch  # numpy has no erfinv; only this law needs the import

        return torch.erfinv(torch.from_numpy(uniforms * self._whole)).numpy() * self._unit

    def _mass(self, ranks: I64) -> F64:
        import torch

        edges = torch.from_numpy(np.stack((ranks, ranks + 1)) / self._unit)
        above: F64 = torch.erfc(edges).numpy()
        mass: F64 = (above[0] - above[1]) / self._whole
        return mass


class _Zipf(IdLaw):
    """p(k) ~ (k + 1)^-s.

    Sums over the first ranks are in a table. Beyond it the midpoint rule is exact to 1e-11: the sum
    of k^-s over a..b is the integral of x^-s from a - 1/2 to b + 1/2.
    """

    HEAD = 1 << 16

    def __init__(self, num_ids: int, s: float, scatter: Scatter | None) -> None:
        super().__init__(num_ids, scatter)
        self._s = s
        head = min(num_ids, self.HEAD)
        self._sums = (np.arange(1.0, head + 1) ** -s).cumsum()
        self._end = head + 0.5
        self._tail = float(self._area(np.array(num_ids + 0.5)))
        self._total = float(self._sums[-1]) + self._tail

    def _rank(self, uniforms: F64) -> NDArray[Any]:
        mass = uniforms * self._total
        ranks = self._sums.searchsorted(mass, side="right")
        beyond = np.flatnonzero(ranks == self._sums.size)
        if beyond.size:
            tail = np.minimum(mass[beyond] - self._sums[-1], self._tail)
            # Rank k, the number k + 1, covers [k + 1/2, k + 3/2).
            ranks[beyond] = self._area_inverse(tail) - 0.5
        return ranks

    def _mass(self, ranks: I64) -> F64:
        numbers = ranks.astype(np.float64) + 1
        return numbers**-self._s / self._total

    def _area(self, x: F64) -> F64:
        """The integral from the table's end to x."""
        power = 1 - self._s  # near 0 the integral is a log: expm1 keeps its digits
        log = np.log(x / self._end)
        return log if power == 0 else np.expm1(power * log) * (self._end**power / power)

    def _area_inverse(self, area: F64) -> F64:
        power = 1 - self._s
        log = area if power == 0 else np.log1p(area * (power / self._end**power)) / power
        return self._end * np.exp(log)


class Scatter:
    """A seeded bijection of [0, n): rank to id and back, in constant memory.

    Rounds of an odd multiple, a shift and a xor-shift permute the next power of two; values outside
    [0, n) are permuted again until they are inside.
    """

    ROUNDS = 3

    def __init__(self, n: int, seed: int) -> None:
        width = max(1, (n - 1).bit_length())
        dice = random.Random(f"scatter/{seed}/{n}")
        self._n = np.uint64(n)
        self._mask = np.uint64((1 << width) - 1)
        self._half = np.uint64((width + 1) // 2)
        odd = [dice.getrandbits(width) | 1 for _ in range(self.ROUNDS)]
        self._keys = [(np.uint64(a), np.uint64(dice.getrandbits(width))) for a in odd]
        self._inverse = [np.uint64(pow(a, -1, 1 << width)) for a in odd]

    def id_of(self, ranks: I64) -> I64:
        return self._walk(ranks, self._forth)

    def rank_of(self, ids: I64) -> I64:
        return self._walk(ids, self._back)

    def _walk(self, values: I64, step: Callable[[U64], U64]) -> I64:
        x = step(values.astype(np.uint64))
        outside = np.flatnonzero(x >= self._n)
        while outside.size:
            x[outside] = step(x[outside])
            outside = outside[x[outside] >= self._n]
        return x.view(np.int64)

    def _forth(self, x: U64) -> U64:
        for times, plus in self._keys:
            x = (x * times + plus) & self._mask
            x ^= x >> self._half
        return x

    def _back(self, x: U64) -> U64:
        for (_, plus), inverse in zip(self._keys[::-1], self._inverse[::-1], strict=True):
            x = x ^ (x >> self._half)  # undoes itself: the shift is at least half the width
            x = ((x - plus) * inverse) & self._mask
        return x


def id_law(
    distribution: Distribution,
    num_ids: int,
    *,
    skew: float | None = None,
    scatter: int | None = None,
) -> IdLaw:
    """The law over [0, num_ids); ids are ranks unless `scatter` seeds a `Scatter`.

    `skew` is the exponent s of zipf (1.05 by default), and for half_normal and exponential
    the scale as a share of num_ids (0.1 by default).
    """
    spread = None if scatter is None else Scatter(num_ids, scatter)
    if skew is not None and distribution == "uniform":
        raise RegistryError("does not apply to uniform ids: leave it out.", where="skew")
    if skew is not None and skew <= 0:
        raise RegistryError(f"must be > 0, but is {skew!r}.", where="skew")
    match distribution:
        case "uniform":
            return _Uniform(num_ids, spread)
        case "zipf":
            return _Zipf(num_ids, 1.05 if skew is None else skew, spread)
        case "half_normal":
            return _HalfNormal(num_ids, (0.1 if skew is None else skew) * num_ids, spread)
        case "exponential":
            return _Exponential(num_ids, (0.1 if skew is None else skew) * num_ids, spread)
