"""Draws the time of a step: each rank's thread and collectives, and the parts of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recd_plugins.report.drawing import (
    Bar,
    Figure,
    Scale,
    bars,
    escaped,
    number,
    share,
    words_within,
)
from recd_plugins.report.sources import Sources
from recd_plugins.trainer.measure.breakdown import PARTS

__all__ = ["figures"]

PART_INKS = {
    "dense": "slate",
    "lookup": "blue",
    "pooling": "purple",
    "exchange": "sky",
    "exposed": "orange",
    "data": "ochre",
    "optimizer": "green",
    "other": "pale",
}
"""The ink of each part of a step."""
LANE, THREAD, FLIGHT = 18, 20, 7
"""The heights in pixels of a rank's name, of its thread and of a row of collectives."""


def figures(sources: Sources) -> Iterator[Figure]:
    timed = [run for run in sources.runs if run.timeline]
    if timed:
        longest = max(rank["ms"] for run in timed for rank in run.timeline)
        for run in timed:
            of = f": {run.name}" if len(timed) > 1 else ""
            yield _timeline(run.timeline, longest, of)
    parts = {run.name: run.summary["parts_ms"] for run in sources.runs if _profiled(run.summary)}
    if not parts:
        return
    every = [
        Bar(
            name=name,
            parts=[
                (f"{part} {number(one[part])}", one[part], PART_INKS[part]) for part in PART_INKS
            ],
            total=f"{number(sum(one.values()))} ms",
        )
        for name, one in parts.items()
    ]
    summary = "; ".join(
        f"{name}: " + ", ".join(f"{part} {number(one[part])} ms" for part in PART_INKS)
        for name, one in parts.items()
    )
    yield Figure(
        title="Parts of a step, mean over profiled steps and ranks",
        says=summary,
        drawing=bars(every, words="ms"),
        legend=list(PART_INKS.items()),
        wide=True,
        columns=["part", *parts, "what it holds"],
        rows=[
            [part, *(number(one[part]) for one in parts.values()), PARTS[part]]
            for part in PART_INKS
        ],
    )


def _profiled(summary: Mapping[str, Any]) -> bool:
    return bool(summary.get("parts_ms"))


def _timeline(ranks: Sequence[Mapping[str, Any]], longest: float, of: str) -> Figure:
    marks: list[str] = []
    rows: list[list[str]] = []
    y = 0.0
    named = []
    for place, rank in enumerate(ranks):
        exposed = [(start, end) for part, start, end in rank["thread"] if part == "exposed"]
        hidden = _hidden(rank["collectives"], exposed)
        named.append(f"rank {place} {number(rank['ms'])} ms, {share(hidden)} of collectives hidden")
        marks.append(
            f'<text x="0" y="{y + 12:g}" class="word name">rank {place}</text><text x="100%" '
            f'y="{y + 12:g}" text-anchor="end" class="word">{number(rank["ms"])} ms; '
            f"{share(hidden)} of collectives hidden</text>"
        )
        y += LANE
        for part, start, end in rank["thread"]:
            marks.append(_block(start, end, longest, y, THREAD, PART_INKS[part], "part"))
            marks += words_within(
                part, (start + end) / 2 / longest, (end - start) / longest, y + 14, PART_INKS[part]
            )
        y += THREAD + 4
        flights, lanes = _flights(rank["collectives"], exposed, longest, y)
        marks += flights
        y += lanes * (FLIGHT + 2) + 12
        rows += [[f"rank {place}", *row] for row in _times(rank, exposed)]
    scale = Scale(low=0, high=longest)
    ticks = "".join(
        f'<line x1="{100 * scale.at(value):.2f}%" x2="{100 * scale.at(value):.2f}%" y1="0" '
        f'y2="{y:g}" class="grid"/><text x="{100 * scale.at(value):.2f}%" y="{y + 13:g}" '
        f'text-anchor="{"start" if not value else "middle"}">{escaped(words)}</text>'
        for value, words in scale.ticks(6)
        if scale.at(value) < 0.9
    )
    used = {part for rank in ranks for part, _, _ in rank["thread"]}
    return Figure(
        title=f"A step of each rank{of}",
        says="Each rank's thread and the collectives in flight beside it: "
        + "; ".join(named)
        + ".",
        drawing=f'<svg class="plot" height="{y + 20:g}">{ticks}'
        f'<text x="100%" y="{y + 13:g}" text-anchor="end" class="axis">ms</text>'
        f"{''.join(marks)}</svg>",
        legend=[
            *((part, ink) for part, ink in PART_INKS.items() if part in used),
            ("thin: a collective; orange where it is waited for", "sky"),
        ],
        note="The median step of those that were profiled. Each rank's clock begins with its step.",
        wide=True,
        columns=["rank", "what", "from, ms", "takes, ms", "waited for, ms"],
        rows=rows,
    )


def _flights(
    collectives: Sequence[tuple[str, float, float]],
    exposed: Sequence[tuple[float, float]],
    longest: float,
    y: float,
) -> tuple[list[str], int]:
    """Collectives in lanes from `y` on, orange while a rank waits for them, and the number of
    lanes."""
    marks: list[str] = []
    free: list[float] = []
    for _, start, end in collectives:
        lane = next((lane for lane, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [end]
        top = y + lane * (FLIGHT + 2)
        marks.append(_block(start, end, longest, top, FLIGHT, "sky", "flight"))
        for first, last in exposed:
            if max(first, start) < min(last, end):
                inside = max(first, start), min(last, end)
                marks.append(_block(*inside, longest, top, FLIGHT, "orange", "flight"))
    return marks, len(free)


def _times(rank: Mapping[str, Any], exposed: Sequence[tuple[float, float]]) -> Iterator[list[str]]:
    """A row for each collective of a rank, and for each part of its thread's time, in
    milliseconds."""
    for name, start, end in rank["collectives"]:
        waited = sum(max(0.0, min(b, end) - max(a, start)) for a, b in exposed)
        yield [name.replace("_", "-"), number(start), number(end - start), number(waited)]
    totals: dict[str, float] = {}
    for part, start, end in rank["thread"]:
        totals[part] = totals.get(part, 0.0) + end - start
    for part, ms in totals.items():
        yield [f"thread: {part}", "", number(ms), ""]


def _block(
    start: float, end: float, longest: float, y: float, height: float, ink: str, kind: str
) -> str:
    return (
        f'<rect x="{100 * start / longest:.3f}%" width="{100 * (end - start) / longest:.3f}%" '
        f'y="{y:g}" height="{height:g}" class="{kind}" style="fill:var(--{ink})"/>'
    )


def _hidden(collectives: Sequence[Sequence[Any]], exposed: Sequence[tuple[float, float]]) -> float:
    """The share of the time with a collective in flight in which the rank does not wait."""
    flown, until = 0.0, 0.0
    for _, start, end in sorted(collectives, key=lambda one: one[1]):
        flown += max(0.0, end - max(start, until))
        until = max(until, end)
    waited = sum(end - start for start, end in exposed)
    return max(0.0, 1 - waited / flown) if flown else 1.0
