"""Predicted against observed: how far the ledger can be trusted (FlexShard's figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.flexshard.sides import ROW_WISE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Observed", "draw", "draw_observed", "worst"]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One plan's traffic, such as bytes between nodes in a step, by a ledger and by a counter."""

    plan: str
    predicted: float
    observed: float

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was observed."""
        return abs(self.predicted / self.observed - 1)


def worst(plans: Sequence[Observed]) -> Observed:
    """The plan whose prediction is farthest off."""
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


def draw(observed: Mapping[str, Sequence[Observed]], path: Path) -> None:
    """Write a PNG of the setting with the most plans, among those measured with row-wise."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture = pyplot.figure(figsize=(6, 6), layout="constrained")
    drawn = {
        setting: plans
        for setting, plans in observed.items()
        if any(one.plan == ROW_WISE.name for one in plans)
    }
    setting, plans = max(drawn.items(), key=lambda each: len(each[1]))
    draw_observed(picture, plans, what="bytes between nodes", baseline=ROW_WISE.name)
    picture.suptitle(setting, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=150)
    pyplot.close(picture)
