"""The ablation as a picture: what each of RecD's steps adds to RM1's throughput."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.recd_train.figures import ABLATION
from benchmarks.recd_train.measured import MeasuredTraining

__all__ = ["draw"]

PAPER = {"plain KJT": 1.0, "+ O5, O6": 1.34, "+ O7": 2.42, "+ batch x3": 2.48}
"""The paper's figure 9; there O5 and O6 came with twice the batch."""


def draw(measured: MeasuredTraining, path: Path) -> None:
    """Write a PNG: samples/s relative to the baseline, with bars of this run beside the paper's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(ABLATION)
    gains = [measured.gains(name) for name in names]
    middles = [statistics.median(values) for values in gains]
    reach = [
        [middle - min(values) for middle, values in zip(middles, gains, strict=True)],
        [max(values) - middle for middle, values in zip(middles, gains, strict=True)],
    ]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    places = range(len(names))
    width = 0.38
    ours = axes.bar(places, middles, -width, align="edge", yerr=reach, capsize=3, label="this run")
    theirs = axes.bar(
        places, [PAPER[name] for name in names], width, align="edge", label="the paper, 48 A100s"
    )
    axes.bar_label(ours, fmt="%.2fx", padding=3)
    axes.bar_label(theirs, fmt="%.2fx", padding=3)
    axes.set_xticks(places, names)
    axes.set_ylabel("samples/s, times plain KJT's")
    axes.set_title(
        f"RM1-like, S = {measured.samples_per_session:.1f}, "
        f"DedupeFactor {measured.sides['+ O7'].dedupe_factor:.1f}; medians, range of "
        f"{len(gains[0])} rounds",
        fontsize="medium",
    )
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
