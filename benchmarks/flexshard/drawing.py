"""Bytes predicted and observed, as a picture: the paper's figure 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.flexshard.sides import ROW_WISE
from recd_plugins.planning.prices.observed import Observed, draw_observed

__all__ = ["draw"]


def draw(observed: Mapping[str, Sequence[Observed]], path: Path) -> None:
    """Write a PNG: of the settings with row-wise beside the choice the one with the most plans."""
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
