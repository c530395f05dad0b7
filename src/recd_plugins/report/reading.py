"""Draws the reader's stalls: how much of a step waits for data, and the time to read a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recd_plugins.data.read_seconds import PARTS
from recd_plugins.report.drawing import INKS, Bar, Figure, Plot, Scale, bars, number, share
from recd_plugins.report.sources import Sources
from recd_plugins.trainer.measure.runs_compared import reading

__all__ = ["figures"]


def figures(sources: Sources) -> Iterator[Figure]:
    yield from _stalls(sources)
    yield from _reading(sources)


def _stalls(sources: Sources) -> Iterator[Figure]:
    """The share of each window of steps that waits for data."""
    stalls = [(run, run.curve("cost", "data_wait"), ink) for run, ink in sources.inks()]
    stalls = [one for one in stalls if one[1].steps]
    if not stalls:
        return
    plot = Plot(
        x=Scale(low=0, high=max(curve.steps[-1] for _, curve, _ in stalls)),
        y=Scale.over(
            [0.02, *(value for _, curve, _ in stalls for value in curve.values)],
            zero=True,
            unit="%",
        ),
        x_words="step",
    )
    for _, curve, ink in stalls:
        points = list(zip(curve.steps, curve.values, strict=True))
        plot.line(points, ink, end=share(curve.values[-1]), dots=len(points) < 30)
    worst = {
        run.name: max(
            (
                wait / max(step, 1e-9)
                for line in run.lines
                if line["kind"] == "cost" and line.get("by_rank")
                for step, wait in zip(*_of_ranks(line), strict=True)
            ),
            default=max(curve.values),
        )
        for run, curve, _ in stalls
    }
    summary = ", ".join(f"{name} {share(value)}" for name, value in worst.items())
    yield Figure(
        title="Stalls: the share of a step that waits for the reader",
        says=f"By window of steps, mean over ranks; the worst window of any rank: {summary}.",
        drawing=plot.svg(),
        legend=sources.legend(),
        note=f"Mean over ranks, by window of steps. The worst window of any rank: {summary}.",
        columns=["run", "up to step", "waits"],
        rows=[
            [run.name, f"{step:,}", share(value)]
            for run, curve, _ in stalls
            for step, value in zip(curve.steps, curve.values, strict=True)
        ],
    )


def _reading(sources: Sources) -> Iterator[Figure]:
    """The time to read a batch, part by part."""
    found = {run.name: reading(run) for run in sources.runs if reading(run)}
    if not found:
        return
    parts = list(dict.fromkeys(part for one in found.values() for part in one))
    inks = {part: INKS[place % len(INKS)] for place, part in enumerate(parts)}
    yield Figure(
        title="Reading a batch, ms of whoever reads",
        says="; ".join(
            f"{name}: " + ", ".join(f"{part} {number(one[part])}" for part in one)
            for name, one in found.items()
        )
        + " ms.",
        drawing=bars(
            [
                Bar(
                    name=name,
                    parts=[(f"{part} {number(ms)}", ms, inks[part]) for part, ms in one.items()],
                    total=f"{number(sum(one.values()))} ms",
                )
                for name, one in found.items()
            ],
            words="ms",
        ),
        legend=list(inks.items()),
        note="Beside the step or in it. What is no part of the reader's is a transform, by name.",
        columns=["part", *found, "what it holds"],
        rows=[
            [part, *(number(one.get(part)) for one in found.values()), PARTS.get(part, "")]
            for part in parts
        ],
    )


def _of_ranks(line: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    return line["by_rank"]["step_ms"], line["by_rank"]["wait_ms"]
