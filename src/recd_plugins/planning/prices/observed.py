"""Predicted against observed: how far the ledger can be believed (FlexShard's figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Observed", "draw_observed", "worst"]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One plan's traffic, say bytes between nodes in a step, of a ledger and of a counter."""

    plan: str
    predicted: float
    observed: float

    @property
    def error(self) -> float:
        """Of what was observed, the share by which the prediction is off."""
        return abs(self.predicted / self.observed - 1)


def worst(plans: Sequence[Observed]) -> Observed:
    """The plan whose prediction is furthest off."""
    return max(plans, key=lambda one: one.error)


def draw_observed(figure: Figure, plans: Sequence[Observed], *, what: str, baseline: str) -> None:
    """Reductions against the plan named `baseline`, predicted and observed, on one diagonal."""
    (base,) = (one for one in plans if one.plan == baseline)
    axes = figure.add_subplot()
    axes.plot([0, 100], [0, 100], linewidth=0.5, color="grey")
    for one in plans:
        if one is not base:
            axes.plot(
                100 * (1 - one.predicted / base.predicted),
                100 * (1 - one.observed / base.observed),
                "o",
                label=one.plan,
            )
    axes.set_xlabel(f"predicted reduction of {what}, %")
    axes.set_ylabel("observed, %")
    axes.set_title(f"against {baseline}; off by {worst(plans).error:.1%} at most")
    axes.legend()
