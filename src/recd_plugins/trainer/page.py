"""Runs side by side as one HTML page that needs nothing beside itself."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.trainer.breakdown import PARTS
from recd_plugins.trainer.curves import COLORS, COLUMNS, RunLog, draw_curves, row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["page"]

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

DUBLIN = ("Creator", "Date", "Format", "Type")
"""What matplotlib would say of an SVG, its address included."""


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
    moved = {
        run.name: (run.summary["cost"].get("traffic") or {}).get("all_to_all", {})
        for run in runs
        if run.summary.get("cost")
    }
    if any(moved.values()):
        phases = list(dict.fromkeys(phase for one in moved.values() for phase in one))
        yield "<h2>All-to-all</h2><p>MiB that a rank hands over in a step, mean over the ranks.</p>"
        scaled = {
            name: {to: size / 2**20 for to, size in one.items()} for name, one in moved.items()
        }
        yield _svg(lambda figure: _bars(figure, scaled, phases), 9, 0.7 + 0.45 * len(moved))
    parts = {run.name: run.summary["parts_ms"] for run in runs if run.summary.get("parts_ms")}
    if parts:
        yield "<h2>Where a step's time goes</h2><p>Milliseconds, under the profiler: "
        yield "; ".join(f"<b>{part}</b> {_text(PARTS[part])}" for part in PARTS) + ".</p>"
        yield _svg(lambda figure: _bars(figure, parts, tuple(PARTS)), 9, 0.7 + 0.45 * len(parts))
    yield "</body></html>"


def _table(runs: Sequence[RunLog]) -> Iterator[str]:
    rows = [row(run) for run in runs]
    shown = [key for key in COLUMNS if any(one[key] is not None for one in rows)]
    yield "<table><tr><th>run</th>"
    yield from (f"<th>{_text(COLUMNS[key])}</th>" for key in shown)
    yield "</tr>"
    for run, values in zip(runs, rows, strict=True):
        cells = "".join(f"<td>{_number(key, values[key])}</td>" for key in shown)
        yield f"<tr><td>{_text(run.name)}</td>{cells}</tr>"
    yield "</table>"


def _number(key: str, value: float | None) -> str:
    if value is None:
        return ""
    if key.startswith(("loss", "test_")):
        return f"{value:.4f}"
    return f"{value:,.0f}" if value >= 100 or key == "steps" else f"{value:,.2f}"


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
