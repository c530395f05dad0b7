"""Runs side by side: what their metrics.jsonl and summary.json say, as rows and as curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLORS", "COLUMNS", "Curve", "RunLog", "draw_curves", "read_run", "row"]

COLUMNS = {
    "steps": "steps",
    "loss": "training loss",
    "test_loss": "test loss",
    "test_ne": "test NE",
    "test_auc": "test AUC",
    "samples_per_second": "samples/s",
    "step_ms": "step, ms",
    "dedupe_factor": "dedupe factor",
    "all_to_all_mib": "all-to-all, MiB a rank and step",
    "peak_memory_mib": "peak memory, MiB",
}
"""What `row` says of a run, in words."""

COLORS = ("#9db8d9", "#d9622b", "#4a7c59", "#8a5a9e", "#c9a227", "#3f6ea8", "#a8433f", "#7d7d7d")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One number over the steps of a run; steps at which it is not defined are left out."""

    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """What a run has told so far."""

    name: str
    lines: Sequence[Mapping[str, Any]]
    """The lines of metrics.jsonl; of the kinds train, test, cost and profile."""
    summary: Mapping[str, Any]
    """Empty until the run has ended."""

    def curve(self, kind: str, value: str) -> Curve:
        """Of the lines of `kind`: curve("test", "auc")."""
        said = [line for line in self.lines if line["kind"] == kind and line[value] is not None]
        return Curve(steps=[line["step"] for line in said], values=[line[value] for line in said])


def read_run(folder: Path, name: str | None = None) -> RunLog:
    """The run that lies in `folder`, ended or not."""
    file = folder / "metrics.jsonl"
    if not file.exists():
        raise DataError(
            f"{folder}: holds no metrics.jsonl, so no run. Name a folder that train.run named, "
            "as runs/latest."
        )
    whole = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    try:
        lines = [json.loads(line) for line in whole]
        summary_file = folder / "summary.json"
        summary = json.loads(summary_file.read_text()) if summary_file.exists() else {}
    except ValueError as error:
        raise DataError(f"{folder}: metrics.jsonl or summary.json is damaged: {error}.") from error
    return RunLog(name=name or folder.name, lines=lines, summary=summary)


def row(run: RunLog) -> dict[str, float | None]:
    """The run in numbers: the last of each curve, and what a step costs; keys as `COLUMNS`."""
    cost = run.summary.get("cost") or {}
    moved = (cost.get("traffic") or {}).get("all_to_all")
    return {
        "steps": _last(run.curve("train", "step")),
        "loss": _last(run.curve("train", "loss")),
        "test_loss": _last(run.curve("test", "loss")),
        "test_ne": _last(run.curve("test", "ne")),
        "test_auc": _last(run.curve("test", "auc")),
        "samples_per_second": run.summary.get("samples_per_second"),
        "step_ms": cost.get("step_ms"),
        "dedupe_factor": cost.get("dedupe_factor"),
        "all_to_all_mib": sum(moved.values()) / 2**20 if moved else None,
        "peak_memory_mib": cost.get("peak_memory_mib"),
    }


def draw_curves(runs: Sequence[RunLog], figure: Figure) -> None:
    """Loss in training, and loss and AUC on the test split, over the steps; a line for each run."""
    panels = [
        ("train", "loss", "training loss"),
        ("test", "loss", "test loss"),
        ("test", "auc", "test AUC"),
    ]
    shown = [panel for panel in panels if any(run.curve(*panel[:2]).steps for run in runs)]
    for axes, (kind, value, title) in zip(
        figure.subplots(1, len(shown), squeeze=False)[0] if shown else [], shown, strict=True
    ):
        for index, run in enumerate(runs):
            curve = run.curve(kind, value)
            axes.plot(
                curve.steps,
                curve.values,
                color=COLORS[index % len(COLORS)],
                label=run.name,
                marker="o" if len(curve.steps) < 30 else None,
                markersize=3,
                linewidth=1.4 + 2.2 * (len(runs) - 1 - index),  # runs that agree all show
                solid_capstyle="round",
            )
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if shown:
        figure.axes[0].legend(frameon=False)


def _last(curve: Curve) -> float | None:
    return curve.values[-1] if curve.values else None
