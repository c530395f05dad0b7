"""Draws what runs learned: loss, normalised entropy, AUC and calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from recd_plugins.report.drawing import Figure, Plot, Scale, number, share
from recd_plugins.report.sources import Sources
from recd_plugins.trainer.measure.run_log import Curve

__all__ = ["figures"]

CURVES = (
    ("train", "loss", "Training loss"),
    ("test", "loss", "Test loss"),
    ("test", "ne", "Test normalised entropy"),
    ("test", "auc", "Test AUC"),
)
FEW = 30
"""A curve with fewer values than this has dots too."""


def figures(sources: Sources) -> Iterator[Figure]:
    for kind, value, title in CURVES:
        curves = [(run.name, run.curve(kind, value), ink) for run, ink in sources.inks()]
        curves = [one for one in curves if one[1].steps]
        if curves:
            yield _curves(title, curves, sources)
    yield from _calibration(sources)


def _curves(title: str, curves: list[tuple[str, Curve, str]], sources: Sources) -> Figure:
    steps = [step for _, curve, _ in curves for step in curve.steps]
    plot = Plot(
        x=Scale(low=0, high=max(steps), unit=""),
        y=Scale.over(value for _, curve, _ in curves for value in curve.values),
        x_words="step",
    )
    drawn: list[Curve] = []
    for _, curve, ink in curves:
        # A run that agrees with an earlier one is dashed, so that both are visible.
        plot.line(
            list(zip(curve.steps, curve.values, strict=True)),
            ink,
            dashed=any(map(partial(_agree, curve), drawn)),
            end=number(curve.values[-1]),
            dots=len(curve.steps) < FEW,
        )
        drawn.append(curve)
    lasts = ", ".join(f"{name} {number(curve.values[-1])}" for name, curve, _ in curves)
    values = [dict(zip(curve.steps, curve.values, strict=True)) for _, curve, _ in curves]
    return Figure(
        title=title,
        says=f"{title} over the steps; at the end {lasts}.",
        drawing=plot.svg(),
        legend=sources.legend(),
        columns=["step", *(name for name, _, _ in curves)],
        rows=[
            [f"{step:,}", *(number(one.get(step), 4) for one in values)]
            for step in sorted(set(steps))
        ],
    )


def _agree(one: Curve, other: Curve) -> bool:
    """Whether two curves look the same."""
    return one.steps == other.steps and all(
        math.isclose(a, b, rel_tol=2e-3) for a, b in zip(one.values, other.values, strict=True)
    )


def _calibration(sources: Sources) -> Iterator[Figure]:
    """Figures of the last evaluation: what was predicted, and how often the label came."""
    found: dict[str, list[tuple[str, Any, str]]] = {}
    for run, ink in sources.inks():
        lines = [line for line in run.lines if line["kind"] == "calibration"]
        for label, bins in lines[-1]["labels"].items() if lines else ():
            if bins:  # empty if no sample of the evaluation has the label
                found.setdefault(label, []).append((run.name, bins, ink))
    for label, runs in found.items():
        most = 1.05 * max(value for _, bins, _ in runs for one in bins for value in one[:2])
        scale = Scale(low=0.0, high=min(1.0, most) or 1.0, unit="%")
        plot = Plot(x=scale, y=scale, x_words="predicted, mean of a bin of alike many samples")
        plot.line([(0.0, 0.0), (scale.high, scale.high)], "line", dashed=True)
        for _, bins, ink in runs:
            plot.line([(one[0], one[1]) for one in bins], ink, dots=True)
        ratios = {
            name: sum(p * w for p, _, w in bins) / max(sum(y * w for _, y, w in bins), 1e-12)
            for name, bins, _ in runs
        }
        summary = ", ".join(f"{name} {number(ratio)}" for name, ratio in ratios.items())
        yield Figure(
            title=f"Calibration of {label}: labels that came, by what was predicted",
            says=f"Bins of samples by prediction. Predicted over came: {summary}.",
            drawing=plot.svg(),
            legend=sources.legend(),
            note=f"Predicted over came, of all samples: {summary}. On the dashed line they agree.",
            columns=["run", "predicted", "came", "samples"],
            rows=[
                [name, share(p), share(y), f"{w:,.0f}"]
                for name, bins, _ in runs
                for p, y, w in bins
            ],
        )
