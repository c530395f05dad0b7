"""What the sides of a workload took when they took turns, and the figures that follow."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.harness import Figure, Limit, spread
from benchmarks.limits import least_step
from benchmarks.recd_train.ranks import TrainSteps

__all__ = ["BASELINE", "MeasuredTraining", "megabytes"]

BASELINE = "plain KJT"


@dataclass(frozen=True, kw_only=True)
class MeasuredTraining:
    """Rank 0's steps of each side, with the memory of all ranks' steps. The other sides are
    compared with `BASELINE`."""

    sides: Mapping[str, TrainSteps]
    samples_per_session: float
    """S of the table, measured."""

    def gains(self, side: str, clock: Literal["seconds", "cpu"] = "seconds") -> list[float]:
        """Samples/s divided by the baseline's, round by round."""
        ours, theirs = self.sides[side], self.sides[BASELINE]
        pairs = zip(getattr(ours, clock), getattr(theirs, clock), strict=True)
        return [ours.samples / mine / (theirs.samples / other) for mine, other in pairs]

    def memory_shares(self, side: str) -> list[float]:
        """The most bytes that a step's tensors take at once, in % of the baseline's, step by
        step."""
        pairs = zip(self.sides[side].memory, self.sides[BASELINE].memory, strict=True)
        return [100 * mine / other for mine, other in pairs]

    def faster(
        self,
        name: str,
        side: str,
        *,
        target: float | None = None,
        limited: bool = False,
        note: str = "",
    ) -> Figure:
        """`limited`: the side pools unique samples, so that its limit is theirs."""
        ours, theirs = self.sides[side], self.sides[BASELINE]
        times = [1e3 * statistics.median(one.seconds) for one in (theirs, ours)]
        notes = [
            f"{times[0]:,.0f} and {times[1]:,.0f} ms, processor time "
            f"{statistics.median(self.gains(side, 'cpu')):.2f}x",
            f"S {self.samples_per_session:.1f} in the table"
            + (f", DedupeFactor {ours.dedupe_factor:.2f}" if ours.ids_kept else ""),
        ]
        return Figure(
            name=name,
            value=statistics.median(self.gains(side)),
            unit="x faster",
            baseline=1.0,
            target=target,
            limit=self.limit(side) if limited else None,
            spread=spread(self.gains(side)),
            note="; ".join([*notes, note] if note else notes),
        )

    def limit(self, side: str) -> Limit | None:
        """How many times faster a side can be by its unique samples; None if the baseline was not
        profiled."""
        plain, ours = self.sides[BASELINE], self.sides[side]
        if not plain.parts:
            return None
        least = least_step(plain.parts, ours.deduplicated, ours.dedupe_factor)
        return Limit(
            value=1 / least,
            of=f"the baseline's step ({profiled(plain)}): pooling over the DedupeFactor "
            f"{ours.dedupe_factor:.2f}, lookups, exchanges and waiting over it for "
            f"{ours.deduplicated:.0%} of the ids, all else as it is; expanding is left out; the "
            f"step on unique samples has {profiled(ours)}",
        )

    def lighter(self, name: str, side: str, *, target: float, note: str = "") -> Figure:
        shares = self.memory_shares(side)
        peaks = [statistics.mean(self.sides[one].memory) for one in (BASELINE, side)]
        held = f"{megabytes(peaks[0])} and {megabytes(peaks[1])} MB of tensors held at once"
        return Figure(
            name=name,
            value=statistics.mean(shares),
            unit="%",
            baseline=100.0,
            target=target,
            at_most=True,
            spread=spread(shares),
            note=f"{held}; {note}" if note else held,
        )


def profiled(side: TrainSteps) -> str:
    """The parts of a side's step, and how much longer it took under the profiler."""
    parts = ", ".join(f"{part} {time:,.0f}" for part, time in side.parts.items())
    slower = sum(side.parts.values()) / (1e3 * statistics.median(side.seconds))
    return f"{parts} ms, {slower:.2f}x an unprofiled one"


def megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f}"
