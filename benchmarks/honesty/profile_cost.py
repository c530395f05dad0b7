"""The time to count a profile until it is settled, compared with reading an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Figure
from benchmarks.honesty.tables import RANKS, Generated
from recd_plugins.planning.access.batches_of_ranks import BatchesOfRanks
from recd_plugins.planning.access.sample import count_sample

__all__ = ["profile_cost"]

SECONDS = 20.0
SHARE = 0.02


def profile_cost(folder: Path, samples: int) -> Iterator[Figure]:
    """Seconds of each rank, for a table of few stripes and one whose blocks are jumped to."""
    table = Generated(
        name=f"cost_{samples}",
        exponent=0.9,
        samples_per_session=4,
        samples=samples,
        rows=200_000,
        rows_per_stripe=16_384,
        batch_size=512,
    )
    stack = table.stack(folder)
    counted = table.counted(stack)
    stack.prepare()
    began = time.perf_counter()
    tally = count_sample(BatchesOfRanks(stack.read, RANKS), counted, most=None)
    tally.profile()
    seconds = (time.perf_counter() - began) / RANKS
    began = time.perf_counter()
    for _ in stack.read(0, RANKS):
        pass
    reading = time.perf_counter() - began
    yield Figure(
        name="cost of a profile: seconds of a rank, or 2% of its epoch's reading",
        value=seconds,
        unit="s",
        baseline=reading,
        target=max(SECONDS, SHARE * reading),
        at_most=True,
        note=f"{samples:,} samples in stripes of 16,384, of which {tally.counted_share:.1%} were "
        "counted; baseline: an epoch's reading",
    )
