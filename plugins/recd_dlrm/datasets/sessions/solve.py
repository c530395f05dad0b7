"""Parameters that give a law the mean that its config asks for."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["solve"]


def solve(rising: Callable[[float], float], value: float, low: float, high: float) -> float:
    """The least x in [low, high] with rising(x) >= value, to a float's digits, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < value:
            low = middle
        else:
            high = middle
    return high
