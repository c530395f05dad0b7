"""Compares runs, by what they have left in their folders: in numbers, and as curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.trainer.measure.run_log import Curve, RunLog

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLUMNS", "RATES", "draw_curves", "reading", "row", "spread"]

COLUMNS = {
    "steps": "steps",
    "loss": "training loss",
    "test_loss": "test loss",
    "test_ne": "test NE",
    "test_auc": "test AUC",
    "samples_per_second": "samples/s",
    "step_ms": "step, ms",
    "dedupe_factor": "dedupe factor",
    "collectives_mib": "all collectives, MiB a rank and step",
    "all_to_all_mib": "of them all-to-all",
    "peak_memory_mib": "peak memory, MiB",
    "reading_ms": "reading a batch, ms",
}
"""The columns of `row`, in words."""

RATES = {"samples_per_second": "train", "step_ms": "cost"}
"""The columns that are medians over a run's lines of metrics, and the kinds of these lines."""

COLORS = ("#9db8d9", "#d9622b", "#4a7c59", "#8a5a9e", "#c9a227", "#3f6ea8", "#a8433f", "#7d7d7d")
"""The colors of the runs in `draw_curves`, in their order."""
LEAST_SPAN = 0.02
"""The least span of an axis, as a share of the largest value on it."""


def row(run: RunLog) -> dict[str, float | None]:
    """The run in numbers: the last of each curve, and the cost of a step; keys as in `COLUMNS`."""
    cost = run.summary.get("cost") or {}
    traffic = cost.get("traffic") or {}
    moved = traffic.get("all_to_all")
    every = [size for phases in traffic.values() for size in phases.values()]
    return {
        "steps": _last(run.curve("train", "step")),
        "loss": _last(run.curve("train", "loss")),
        "test_loss": _last(run.curve("test", "loss")),
        "test_ne": _last(run.curve("test", "ne")),
        "test_auc": _last(run.curve("test", "auc")),
        "samples_per_second": run.summary.get("samples_per_second"),
        "step_ms": cost.get("step_ms"),
        "dedupe_factor": cost.get("dedupe_factor"),
        "collectives_mib": sum(every) / 2**20 if every else None,
        "all_to_all_mib": sum(moved.values()) / 2**20 if moved else None,
        "peak_memory_mib": cost.get("peak_memory_mib"),
        "reading_ms": sum(reading(run).values()) or None,
    }


def reading(run: RunLog) -> dict[str, float]:
    """The milliseconds of each part of reading a batch; empty if the loader did not measure
    them."""
    return dict((run.summary.get("cost") or {}).get("reading_ms") or {})


def spread(run: RunLog) -> dict[str, tuple[float, float]]:
    """The quartiles of a run's rates over its lines of metrics. The first line does not count,
    since kernels compile and pipelines fill in it. A rate with fewer than three other lines is
    left out."""
    found = {}
    for key, kind in RATES.items():
        rates = sorted(run.curve(kind, key).values[1:])
        if len(rates) >= 3:
            found[key] = (rates[len(rates) // 4], rates[-1 - len(rates) // 4])
    return found


def draw_curves(runs: Sequence[RunLog], figure: Figure) -> None:
    """Draw loss in training, and loss and AUC on the test split, over the steps, with a line for
    each run."""
    panels = [
        ("train", "loss", "training loss"),
        ("test", "loss", "test loss"),
        ("test", "auc", "test AUC"),
    ]
    shown = [panel for panel in panels if any(run.curve(*panel[:2]).steps for run in runs)]
    for axes, (kind, value, title) in zip(
        figure.subplots(1, len(shown), squeeze=False)[0] if shown else [], shown, strict=True
    ):
        drawn: list[Curve] = []
        for index, run in enumerate(runs):
            curve = run.curve(kind, value)
            # Two runs that agree are both visible: the later one has dashes and smaller dots.
            axes.plot(
                curve.steps,
                curve.values,
                color=COLORS[index % len(COLORS)],
                label=run.name,
                marker="o" if len(curve.steps) < 30 else None,
                markersize=3 + 3 * (len(runs) - 1 - index),
                linewidth=1.6,
                linestyle=(0, (4, 4)) if curve in drawn else "solid",
            )
            drawn.append(curve)
        _widen(axes, drawn)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if shown:
        figure.axes[0].legend(frameon=False)


def _widen(axes: Any, curves: Sequence[Curve]) -> None:
    """Widen the axes to at least `LEAST_SPAN` of the values, so that no smaller difference looks
    large. A single evaluation is a dot beside its value, on axes that begin at step 0."""
    values = [value for curve in curves for value in curve.values]
    low, high = axes.get_ylim()
    least = LEAST_SPAN * max(map(abs, values))
    if high - low < least:
        middle = (high + low) / 2
        axes.set_ylim(middle - least / 2, middle + least / 2)
    axes.ticklabel_format(axis="y", useOffset=False)
    if all(len(curve.steps) <= 1 for curve in curves):
        last = max(step for curve in curves for step in curve.steps)
        axes.set_xlim(0, 1.1 * last)
        for value in dict.fromkeys(values):
            axes.annotate(f"{value:.4f} ", (last, value), ha="right", va="bottom", fontsize=8)


def _last(curve: Curve) -> float | None:
    return curve.values[-1] if curve.values else None
