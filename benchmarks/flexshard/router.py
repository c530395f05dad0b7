"""What the router costs per id and per row: 30M rows, 2.5M of them hot, as in the paper's RM-2."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.harness import Figure, Limit, alternate, dropped, spread
from benchmarks.limits import entropy
from recd_plugins.tiers.routing.bitmap_router import BitmapRouter
from recd_plugins.tiers.routing.routed_ids import Segments

__all__ = ["router"]

HOT_SHARE = 0.85
"""The share of lookups of RM-2's DP and Flex rows."""
REPLICATED = 0.05
"""The share of the hot rows that is replicated."""


def router(rounds: int, num_rows: int, hot: int, ids: int) -> Iterator[Figure]:
    """Random ids, so that nearly each is a cache miss and no locality helps."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randperm(num_rows, generator=draw)[:hot]
    everywhere, in_nodes = rows[: int(REPLICATED * hot)], rows[int(REPLICATED * hot) :]
    made = BitmapRouter([num_rows], [everywhere], [in_nodes])
    asked = torch.randint(0, num_rows, (ids,), generator=draw)
    some = torch.rand(ids, generator=draw) < HOT_SHARE
    asked[some] = rows[torch.randint(0, hot, (int(some.sum()),), generator=draw)]
    segments = Segments((ids,), (0,))

    words = np.arange(max(made.nbytes // 8, 1))
    places, found = asked.numpy() % len(words), np.empty(ids, np.int64)
    sides = {
        "route": dropped(lambda: made.route(asked, segments)),
        "gather": dropped(lambda: words.take(places, out=found, mode="clip")),
    }
    measured = alternate(sides, rounds, of="router")
    each, gathered = ([one.cpu / ids * 1e9 for one in measured[side]] for side in sides)
    hot_share, shared = hot / num_rows, 1 - REPLICATED
    bits = entropy(hot_share) + hot_share * entropy(shared)
    note = f"{num_rows:,} rows, {hot:,} hot"
    yield Figure(
        name="router, time",
        value=statistics.median(each),
        unit="ns/id",
        target=15,
        at_most=True,
        limit=Limit(
            value=statistics.median(gathered),
            of=f"one read at random of {made.nbytes / 1e6:,.1f} MB, which the router has, and one "
            "write; bits are not counted, and ids not sorted by tier",
        ),
        spread=spread(each),
        note=f"{note} with {HOT_SHARE:.0%} of {ids:,} random ids; processor time of one thread",
    )
    yield Figure(
        name="router, memory",
        value=8 * made.nbytes / num_rows,
        unit="bits a row",
        target=2,
        at_most=True,
        limit=Limit(
            value=bits,
            of="the entropy of which tier a row is in, if rows are hot at random; no code that one "
            "read decodes is as short",
        ),
        note=note,
    )
