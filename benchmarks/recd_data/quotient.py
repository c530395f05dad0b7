"""One side's time divided by the other's, round by round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.harness import Figure, Limit, Round, spread

__all__ = ["quotient"]


def quotient(
    name: str,
    above: Sequence[Round],
    below: Sequence[Round],
    *,
    target: float | None = None,
    at_most: bool = False,
    unit: str = "x",
    limit: Limit | None = None,
    note: str = "",
) -> Figure:
    """The median of above / below, of the wall times of each round; the times in the note."""
    values = [one.wall / other.wall for one, other in zip(above, below, strict=True)]
    times = [statistics.median(one.wall for one in side) * 1e3 for side in (above, below)]
    walls = f"{times[0]:,.1f} over {times[1]:,.1f} ms"
    return Figure(
        name=name,
        value=statistics.median(values),
        unit=unit,
        baseline=1.0,
        target=target,
        at_most=at_most,
        limit=limit,
        spread=spread(values),
        note=f"{walls}; {note}" if note else walls,
    )
