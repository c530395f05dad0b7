"""docs/together.md's picture, time against memory with each paper more: `python -m
benchmarks.scale.frontier`. Modelled, as docs/scale.md has it; nothing in it was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.scale.devices import A100
from benchmarks.scale.modelled import ModelledJob, job
from benchmarks.scale.sides import modelled_steps, step_of
from recd_flexshard.policy.goals import choose
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB
from recd_plugins.planning.step.step_forecast import StepForecast
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.planning.tier_plans.tier_plan import Coalesce

__all__ = ["CURVES", "curves", "files", "picture"]

MODEL, NODES = "RM2", 4
CURVES: Mapping[str, tuple[bool, Coalesce]] = {
    "tiers": (False, "none"),
    "tiers, ids coalesced": (False, "rank"),
    "unique samples, tiers": (True, "none"),
    "unique samples, tiers, ids coalesced": (True, "rank"),
}
"""Whether lookups are of unique samples, and how ids travel."""
SHARES = (0.0, *(2.0**-power for power in range(16, -1, -1)))
"""Of the replicas with which a step takes the least time."""
BESIDE = {
    "row-wise": (-8, -9, "end"),
    "FlexShard": (-8, 18, "end"),
    "SCARS": (8, 40, "middle"),
    "RecD": (8, 18, "start"),
    "together": (8, 20, "start"),
}
"""Where the words of a point stand, so that no curve runs through them: right, down, anchor."""
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 440, 64, 20, 24, 48
TICKS_GB, TICKS_MS = (3, 4, 5, 6, 7, 8, 9, 10), (25, 50, 100, 200)


@dataclass(frozen=True, kw_only=True)
class Ink:
    """Colours for one background."""

    text: str
    faint: str
    curves: tuple[str, ...]


INKS = {
    "light": Ink(
        text="#1f2328", faint="#8c959f", curves=("#bc4c00", "#9a6700", "#0969da", "#1a7f37")
    ),
    "dark": Ink(
        text="#e6edf3", faint="#768390", curves=("#f0883e", "#d29922", "#58a6ff", "#3fb950")
    ),
}


def curves(whole: ModelledJob, cluster: Cluster) -> dict[str, list[StepForecast]]:
    """Steps with the hottest rows on all ranks and in all nodes, from none to as many as save time,
    by each of `CURVES`."""
    return {
        name: list(_curve(whole, cluster, unique, coalesce))
        for name, (unique, coalesce) in CURVES.items()
    }


def _curve(
    whole: ModelledJob, cluster: Cluster, unique: bool, coalesce: Coalesce
) -> Iterator[StepForecast]:
    tables = whole.tables(unique=unique, world_size=cluster.world_size)
    sequences = {name: tables[name] for name in whole.sequences}
    fastest = choose(sequences, whole.prices(cluster), goal="min_communication", coalesce=coalesce)
    for share in SHARES:
        sizes = {
            name: TableSizes(
                replicated=int(share * one.sizes.replicated),
                per_node=int(share * one.sizes.per_node),
                coalesce=coalesce,
            )
            for name, one in fastest.tables.items()
        }
        yield step_of(whole, cluster, sizes, unique=unique)


def picture(ink: Ink) -> str:
    """The whole SVG."""
    whole, cluster = job(MODEL, A100), A100.cluster(NODES)
    body = [*_axes(ink)]
    for row, (name, steps) in enumerate(curves(whole, cluster).items()):
        colour = ink.curves[row]
        path = " ".join(",".join(f"{at:.1f}" for at in _at(step)) for step in steps)
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="3" '
            'stroke-linecap="round"/>'
        )
        y = HEIGHT - BOTTOM - 18 * (len(CURVES) - row)
        body.append(f'<path d="M{WIDTH - 290} {y - 4} h24" stroke="{colour}" stroke-width="3"/>')
        body.append(_text(WIDTH - 258, y, name, ink.text))
    for name, step in modelled_steps(whole, cluster).items():
        x, across = _at(step)
        body.append(f'<circle cx="{x:.1f}" cy="{across:.1f}" r="4.5" fill="{ink.text}"/>')
        words = f"{name}: {step.ms:.0f} ms, {step.memory / GB:.1f} GiB"
        right, down, anchor = BESIDE[name]
        body.append(_text(x + right, across + down, words, ink.text, anchor))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="system-ui, sans-serif" font-size="12" role="img">',
            f"<title>{MODEL} on {NODES} nodes of 8 A100, modelled: a step over its memory</title>",
            *body,
            "</svg>",
            "",
        ]
    )


def _axes(ink: Ink) -> Iterator[str]:
    for size in TICKS_GB:
        x, _ = _place(size, TICKS_MS[0])
        yield _line(x, TOP, x, HEIGHT - BOTTOM, ink)
        yield _text(x, HEIGHT - BOTTOM + 18, f"{size}", ink.faint, "middle")
    for ms in TICKS_MS:
        _, y = _place(TICKS_GB[0], ms)
        yield _line(LEFT, y, WIDTH - RIGHT, y, ink)
        yield _text(LEFT - 8, y + 4, f"{ms}", ink.faint, "end")
    yield _text(WIDTH / 2, HEIGHT - 10, "memory of a rank, GiB", ink.faint, "middle")
    yield _text(8, 14, "ms a step, by a logarithmic scale", ink.faint)


def _at(step: StepForecast) -> tuple[float, float]:
    return _place(step.memory / GB, step.ms)


def _place(size: float, ms: float) -> tuple[float, float]:
    low, high = TICKS_GB[0] - 0.2, TICKS_GB[-1] + 0.5
    least, most = math.log(TICKS_MS[0] * 0.92), math.log(TICKS_MS[-1] * 1.15)
    x = LEFT + (size - low) / (high - low) * (WIDTH - LEFT - RIGHT)
    y = TOP + (most - math.log(ms)) / (most - least) * (HEIGHT - TOP - BOTTOM)
    return x, y


def _line(x: float, y: float, to_x: float, to_y: float, ink: Ink) -> str:
    return (
        f'<path d="M{x:.1f} {y:.1f} L{to_x:.1f} {to_y:.1f}" stroke="{ink.faint}" '
        'stroke-width="0.5" opacity="0.5"/>'
    )


def _text(x: float, y: float, words: str, colour: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text {place} fill="{colour}" text-anchor="{anchor}">{escape(words)}</text>'


def files(themes: Sequence[str] = tuple(INKS)) -> dict[Path, str]:
    """Each file and its text."""
    return {PICTURES / f"frontier-{name}.svg": picture(INKS[name]) for name in themes}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
