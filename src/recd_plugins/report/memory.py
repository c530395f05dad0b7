"""Draws the peak memory of each rank, by owner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from recd_plugins.report.drawing import Bar, Figure, bars, number
from recd_plugins.report.sources import Sources

__all__ = ["figures"]

OWNERS = {
    "tables": ("blue", "rows of embedding tables at home on the rank"),
    "table optimizer": ("sky", "the fused optimizer's state of these rows"),
    "replicas": ("orange", "copies of hot rows, with their optimizer state"),
    "dense": ("purple", "dense parameters and buffers"),
    "gradients": ("ochre", "gradients of these, as they lie after a step"),
    "dense optimizer": ("green", "the dense optimizer's state"),
    "other": ("pale", "batches, activations, buffers; on a CPU Python and its libraries too"),
}
"""The ink of each owner, and what it holds."""
MOST = 8
"""The largest number of ranks that are drawn for a run."""


def figures(sources: Sources) -> Iterator[Figure]:
    found: dict[str, Mapping[str, Sequence[float]]] = {}
    for run in sources.runs:
        known = [line["memory_mib"] for line in run.lines if line.get("memory_mib")]
        if known:
            found[run.name] = known[-1]
    if not found:
        return
    several = len(found) > 1
    every: list[Bar] = []
    rows: list[list[str]] = []
    for name, owned in found.items():
        ranks = len(next(iter(owned.values())))
        for rank in range(min(ranks, MOST)):
            held = {owner: owned[owner][rank] for owner in OWNERS if owner in owned}
            every.append(
                Bar(
                    name=f"{name}, rank {rank}" if several else f"rank {rank}",
                    parts=[
                        (f"{owner} {number(size)}", size, OWNERS[owner][0])
                        for owner, size in held.items()
                    ],
                    total=f"{number(sum(held.values()))} MiB",
                )
            )
            rows += [[name, f"{rank}", owner, number(size)] for owner, size in held.items()]
    owners = [owner for owner in OWNERS if any(owner in owned for owned in found.values())]
    yield Figure(
        title="Peak memory of a rank, by owner",
        says="; ".join(
            f"{bar.name} {bar.total}: {', '.join(words for words, _, _ in bar.parts)} MiB"
            for bar in every[:4]
        )
        + ".",
        drawing=bars(every, words="MiB"),
        legend=[(owner, OWNERS[owner][0]) for owner in owners],
        note="; ".join(f"{owner}: {OWNERS[owner][1]}" for owner in owners) + ".",
        wide=True,
        columns=["run", "rank", "owner", "MiB"],
        rows=rows,
    )
