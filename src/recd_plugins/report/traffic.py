"""Draws the traffic of a step: bytes by collective, and bytes from rank to rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recd_plugins.report.drawing import Bar, Figure, bars, escaped, quantity
from recd_plugins.report.sources import Sources
from recd_plugins.trainer.measure.run_log import RunLog

__all__ = ["figures"]

WAY_INKS = {
    "all-to-all, ids": "sky",
    "all-to-all, forward": "blue",
    "all-to-all, backward": "purple",
    "all-reduce": "slate",
    "reduce-scatter": "green",
    "all-gather": "ochre",
}
"""The ink of each way in which bytes travel."""
OTHER = "pale"
"""The ink of any other way."""
LINKS = {
    "a2a_global": ("all-to-all, all ranks", "blue"),
    "a2a_intra": ("all-to-all, within nodes", "sky"),
    "a2a_cross": ("all-to-all, across nodes", "purple"),
    "ar_global": ("all-reduce, all ranks", "slate"),
    "ar_cross": ("all-reduce, across nodes", "green"),
}
PLANS = {
    "torchrec": "TorchRec's own plan",
    "row_wise": "row-wise",
    "row_wise_coalesced": "row-wise, coalesced per rank",
    "plan": "this plan",
}
CELL = 30
"""The height of a row of the matrix, in pixels."""
MOST = 16
"""The largest number of ranks for which the cells of a matrix have words."""


def figures(sources: Sources) -> Iterator[Figure]:
    moved = {run.name: _moved(_cost(run)) for run in sources.runs if _cost(run).get("traffic")}
    if moved:
        yield _collectives(moved)
    for run in sources.runs:
        if _cost(run).get("sent"):
            of = f" ({run.name})" if len(sources.runs) > 1 else ""
            yield _matrix(_cost(run)["sent"], run.environment.get("ranks_per_node", 1), of)
    for name, plan in sources.plans():
        if plan.get("bytes_by_collective"):
            yield _planned(plan["bytes_by_collective"], name)


def _cost(run: RunLog) -> Mapping[str, Any]:
    """The cost of the run's steps; while it runs, the latest cost with sampled traffic. Empty if
    there is none."""
    whole: Mapping[str, Any] = run.summary.get("cost") or {}
    if whole:
        return whole
    costs = [line for line in run.lines if line["kind"] == "cost" and line["traffic"]]
    return costs[-1] if costs else {}


def _moved(cost: Mapping[str, Any]) -> dict[str, float]:
    """Bytes by collective; those of all-to-alls by phase."""
    found: dict[str, float] = {}
    for to, phases in cost["traffic"].items():
        for phase, size in phases.items():
            way = f"all-to-all, {phase}" if to == "all_to_all" else to.replace("_", "-")
            found[way] = found.get(way, 0.0) + size
    return found


def _collectives(moved: Mapping[str, Mapping[str, float]]) -> Figure:
    ways = [way for way in WAY_INKS if any(way in one for one in moved.values())]
    ways += sorted({way for one in moved.values() for way in one} - set(WAY_INKS))
    every = [
        Bar(
            name=name,
            parts=[
                (f"{way.removeprefix('all-to-all, ')} {quantity(one[way])}", one[way],
                 WAY_INKS.get(way, OTHER))
                for way in ways
                if way in one
            ],
            total=quantity(sum(one.values())),
        )
        for name, one in moved.items()
    ]  # fmt: skip
    return Figure(
        title="Bytes that a rank hands to collectives in a step",
        says="; ".join(
            f"{name} {quantity(sum(one.values()))}: "
            + ", ".join(f"{way} {quantity(one[way])}" for way in ways if way in one)
            for name, one in moved.items()
        )
        + ".",
        drawing=bars(every, unit="B"),
        legend=[(way, WAY_INKS.get(way, OTHER)) for way in ways],
        note="Mean over ranks and over the steps that were sampled.",
        columns=["collective", *moved],
        rows=[[way, *(quantity(one.get(way, 0.0)) for one in moved.values())] for way in ways],
    )


def _planned(plans: Mapping[str, Mapping[str, float]], name: str) -> Figure:
    used = [link for link in LINKS if any(one[link] for one in plans.values())]
    known = [plan for plan in PLANS if plan in plans]
    return Figure(
        title=f"Bytes of tables by link, forecast ({name})",
        says="; ".join(
            f"{PLANS[plan]} "
            + ", ".join(f"{LINKS[link][0]} {quantity(plans[plan][link])}" for link in used)
            for plan in known
        )
        + ".",
        drawing=bars(
            [
                Bar(
                    name=PLANS[plan],
                    parts=[
                        (quantity(plans[plan][link]), plans[plan][link], LINKS[link][1])
                        for link in used
                    ],
                    total=quantity(sum(plans[plan].values())),
                )
                for plan in known
            ],
            unit="B",
        ),
        legend=[LINKS[link] for link in used],
        note="Mean of what a rank hands over in a step for tables; dense gradients come on top.",
        columns=["link", *(PLANS[plan] for plan in known)],
        rows=[[LINKS[link][0], *(quantity(plans[plan][link]) for plan in known)] for link in used],
    )


def _matrix(sent: Sequence[Sequence[float]], ranks_per_node: int, of: str) -> Figure:
    """The bytes from each rank, by row, to each rank, by column."""
    count, most = len(sent), max(map(max, sent)) or 1.0
    cell = CELL if count <= MOST else max(6, CELL * MOST // count)
    marks = []
    for row, sizes in enumerate(sent):
        if count <= MOST or row % 8 == 0:
            marks.append(
                f'<text x="-7" y="{row * cell + cell / 2 + 4:g}" text-anchor="end">{row}</text>'
                f'<text x="{100 * (row + 0.5) / count:.2f}%" y="{count * cell + 16:g}" '
                f'text-anchor="middle">{row}</text>'
            )
        for column, size in enumerate(sizes):
            marks.append(
                f'<rect x="{100 * column / count:.2f}%" y="{row * cell:g}" class="part" '
                f'width="{100 / count:.2f}%" height="{cell:g}" style="fill:var(--blue);'
                f'fill-opacity:{0.08 + 0.5 * size / most:.2f}"/>'
            )
            if count <= MOST:
                kind = "" if count <= 4 else " desk" if count <= 8 else " none"
                at, middle = 100 * (column + 0.5) / count, (row + 0.5) * cell + 4
                marks.append(
                    f'<text x="{at:.2f}%" y="{middle:g}" text-anchor="middle" '
                    f'class="word{kind}">{escaped(quantity(size))}</text>'
                )
    marks += [
        f'<line x1="{100 * edge / count:.2f}%" x2="{100 * edge / count:.2f}%" y1="0" '
        f'y2="{count * cell:g}" class="base"/><line x1="0" x2="100%" y1="{edge * cell:g}" '
        f'y2="{edge * cell:g}" class="base"/>'
        for edge in range(ranks_per_node, count, ranks_per_node)
    ]
    away = sum(size for i, row in enumerate(sent) for j, size in enumerate(row) if i != j)
    between = sum(
        size
        for i, row in enumerate(sent)
        for j, size in enumerate(row)
        if i // ranks_per_node != j // ranks_per_node
    )
    summary = f"{quantity(away)} leave their rank, and {quantity(between)} of these their node"
    return Figure(
        title=f"All-to-alls and sends, from rank to rank{of}",
        says=f"Bytes of a step from each rank to each: {summary}.",
        drawing=f'<svg class="plot" height="{count * cell + 38:g}" style="width:calc(100% - 30px);'
        f'margin-left:30px">{"".join(marks)}<text x="100%" y="{count * cell + 33:g}" '
        f'text-anchor="end" class="axis">to rank; rows are from rank</text></svg>',
        note=f"In a step {summary}. Lines part nodes; what is on the diagonal stays on its rank.",
        columns=["from", *(f"to {rank}" for rank in range(count))],
        rows=[[f"{rank}", *map(quantity, sizes)] for rank, sizes in enumerate(sent)],
    )
