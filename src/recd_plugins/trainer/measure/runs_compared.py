"""Runs side by side: their metrics.jsonl and summary.json as rows, curves and one HTML page."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.data.read_seconds import PARTS as READING
from recd_plugins.errors import DataError
from recd_plugins.trainer.measure.beside import Beside, why_parted
from recd_plugins.trainer.measure.breakdown import PARTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "COLORS",
    "COLUMNS",
    "Curve",
    "RunLog",
    "draw_curves",
    "page",
    "read_run",
    "reading",
    "row",
    "spread",
]

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
"""What `row` says of a run, in words."""

RATES = {"samples_per_second": "train", "step_ms": "cost"}
"""The columns that are medians over a run's lines of metrics, and the kind of these lines."""

COLORS = ("#9db8d9", "#d9622b", "#4a7c59", "#8a5a9e", "#c9a227", "#3f6ea8", "#a8433f", "#7d7d7d")


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; background: #fafaf8;
       max-width: 72rem; margin: 3rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; font-weight: 600; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .9rem; border-bottom: 1px solid #e3e3dd; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { font-weight: 500; color: #5b6875; } p { color: #5b6875; max-width: 46rem; }
svg { max-width: 100%; height: auto; }
"""

LEAST_SPAN = 0.02
"""What axes span at least, as a share of the largest value that they show."""

DUBLIN = ("Creator", "Date", "Format", "Type")
"""What matplotlib would say of an SVG, its address included."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One number over the steps of a run; steps at which it is not defined are left out."""

    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """What a run has logged so far."""

    name: str
    lines: Sequence[Mapping[str, Any]]
    """The lines of metrics.jsonl; of the kinds train, test, cost and profile."""
    summary: Mapping[str, Any]
    """Empty until the run has ended."""

    def curve(self, kind: str, value: str) -> Curve:
        """The curve of a value in the lines of `kind`: curve("test", "auc")."""
        lines = [line for line in self.lines if line["kind"] == kind and line[value] is not None]
        return Curve(steps=[line["step"] for line in lines], values=[line[value] for line in lines])


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
    """The milliseconds of each part of reading a batch, where the loader tells them."""
    return dict((run.summary.get("cost") or {}).get("reading_ms") or {})


def spread(run: RunLog) -> dict[str, tuple[float, float]]:
    """The quartiles of a run's rates over its lines of metrics but the first, in which kernels
    compile and pipelines fill; of fewer than three lines nothing is known."""
    found = {}
    for key, kind in RATES.items():
        rates = sorted(run.curve(kind, key).values[1:])
        if len(rates) >= 3:
            found[key] = (rates[len(rates) // 4], rates[-1 - len(rates) // 4])
    return found


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
        drawn: list[Curve] = []
        for index, run in enumerate(runs):
            curve = run.curve(kind, value)
            # A run that agrees with one before it shows through it: dashes, smaller dots on top.
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
    """Have the axes show nothing that is less than `LEAST_SPAN` of the values as a difference: one
    evaluation is a dot beside its value, on axes that begin with the run."""
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


def page(runs: Sequence[RunLog], title: str) -> str:
    """A table of the runs, their curves, what they move and where their steps' time goes."""
    return "\n".join(_page(runs, title)) + "\n"


def _page(runs: Sequence[RunLog], title: str) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>"
    yield f"<h1>{_text(title)}</h1>"
    yield from _table(runs)
    if any(run.lines for run in runs):
        yield "<h2>Curves</h2>"
        yield _svg(lambda figure: draw_curves(runs, figure), 11, 3.4)
    moved = {run.name: _moved(run) for run in runs if run.summary.get("cost")}
    if any(moved.values()):
        ways = sorted({way for one in moved.values() for way in one})
        yield "<h2>Collectives</h2>"
        yield "<p>MiB that a rank hands over in a step, mean over the ranks.</p>"
        yield _svg(lambda figure: _bars(figure, moved, ways), 9, 0.9 + 0.45 * len(moved))
    yield from _reading(runs)
    yield from _forecasts(runs)
    parts = {run.name: run.summary["parts_ms"] for run in runs if run.summary.get("parts_ms")}
    if parts:
        yield "<h2>Where a step's time goes</h2><p>Milliseconds, under the profiler: "
        yield "; ".join(f"<b>{part}</b> {_text(PARTS[part])}" for part in PARTS) + ".</p>"
        yield _svg(lambda figure: _bars(figure, parts, tuple(PARTS)), 9, 0.7 + 0.45 * len(parts))
    yield "</body></html>"


def _moved(run: RunLog) -> dict[str, float]:
    """MiB by collective; all-to-alls by what they are for."""
    found: dict[str, float] = {}
    for to, phases in (run.summary["cost"].get("traffic") or {}).items():
        for phase, size in phases.items():
            way = f"all-to-all, {phase}" if to == "all_to_all" else to.replace("_", "-")
            found[way] = found.get(way, 0.0) + size / 2**20
    return found


def _reading(runs: Sequence[RunLog]) -> Iterator[str]:
    """What each part of reading a batch takes."""
    found = {run.name: reading(run) for run in runs if reading(run)}
    if not found:
        return
    parts = list(dict.fromkeys(part for one in found.values() for part in one))
    words = "; ".join(f"<b>{part}</b> {_text(READING[part])}" for part in READING)
    yield "<h2>Reading a batch</h2>"
    yield f"<p>Milliseconds of whoever reads, beside the step or in it: {words}; the others are "
    yield "transforms, by name.</p><table><tr><th>run</th>"
    yield from (f"<th>{_text(part)}</th>" for part in parts)
    yield "</tr>"
    for name, one in found.items():
        cells = "".join(
            f"<td>{one[part]:,.2f}</td>" if part in one else "<td></td>" for part in parts
        )
        yield f"<tr><td>{_text(name)}</td>{cells}</tr>"
    yield "</table>"


def _forecasts(runs: Sequence[RunLog]) -> Iterator[str]:
    """What was forecast of each run, beside what came."""
    if not any(run.summary.get("forecasts") for run in runs):
        return
    yield "<h2>Forecast beside fact</h2>"
    for run in runs:
        found = [Beside.of(one) for one in run.summary.get("forecasts") or ()]
        if not found:
            continue
        yield f"<table><tr><th>{_text(run.name)}</th><th>forecast</th><th>fact</th></tr>"
        for one in found:
            cells = "".join(f"<td>{_text(cell)}</td>" for cell in one.words)
            yield f"<tr>{cells}</tr>"
        yield "</table>"
        yield from (f"<p>{_text(line)}</p>" for line in why_parted(found))


def _table(runs: Sequence[RunLog]) -> Iterator[str]:
    rows = [row(run) for run in runs]
    shown = [key for key in COLUMNS if any(one[key] is not None for one in rows)]
    yield "<table><tr><th>run</th>"
    yield from (f"<th>{_text(COLUMNS[key])}</th>" for key in shown)
    yield "</tr>"
    for run, values in zip(runs, rows, strict=True):
        quartiles = spread(run)
        cells = "".join(
            f"<td>{_number(key, values[key])}{_between(key, quartiles.get(key))}</td>"
            for key in shown
        )
        yield f"<tr><td>{_text(run.name)}</td>{cells}</tr>"
    yield "</table>"
    if any(spread(run) for run in runs):
        yield "<p>Rates are medians over the lines of metrics; small, the quartiles.</p>"


def _number(key: str, value: float | None) -> str:
    if value is None:
        return ""
    if key.startswith(("loss", "test_")):
        return f"{value:.4f}"
    return f"{value:,.0f}" if value >= 100 or key == "steps" else f"{value:,.2f}"


def _between(key: str, quartiles: tuple[float, float] | None) -> str:
    if quartiles is None:
        return ""
    low, high = (_number(key, one) for one in quartiles)
    return f" <small>{low} to {high}</small>"


def _bars(figure: Figure, sides: dict[str, Any], parts: Sequence[str]) -> None:
    """A stacked bar for each run."""
    axes = figure.subplots()
    names = list(sides)
    left = [0.0] * len(names)
    for part, color in zip(parts, COLORS, strict=False):
        widths = [sides[name].get(part, 0.0) for name in names]
        axes.barh(names, widths, left=left, label=part, height=0.6, color=color)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(frameon=False, loc="outside right upper")


def _svg(draw: Callable[[Figure], None], width: float, height: float) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    # The same runs give the same page: no date, and ids from a fixed salt.
    with matplotlib.rc_context({"svg.hashsalt": "recd", "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        figure.patch.set_alpha(0)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=dict.fromkeys(DUBLIN))
    text = file.getvalue()
    return text[text.index("<svg") :]


def _text(text: str) -> str:
    return html.escape(text)
