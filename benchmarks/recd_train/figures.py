"""A figure for each row of the trainer's targets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, spread
from benchmarks.models import groups
from benchmarks.recd_train.ranks import Steps, step_memory, take_turns
from benchmarks.recd_train.workload import CLUSTERED, O5_O6, PLAIN, RANKS, RECD, Side, Workload
from recd_plugins.testing.gloo import GlooPool

__all__ = ["ABLATION", "Bench", "Measured"]

DEADLINE = 1800.0

BASELINE = "plain KJT"
ABLATION = {
    BASELINE: CLUSTERED,
    "+ O5, O6": O5_O6,
    "+ O7": RECD,
    "+ batch x3": Side(batch=3),
}
"""The paper's figure 9; its first two bars, a table by time and a clustered one, are as fast."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What sides of a workload took, in turns."""

    sides: Mapping[str, Steps]
    samples_per_session: float
    """S of the table, measured."""

    def gains(self, side: str, over: str = BASELINE) -> list[float]:
        """Samples/s over those of another side, round by round."""
        ours, theirs = self.sides[side], self.sides[over]
        return [
            ours.samples / mine / (theirs.samples / other)
            for mine, other in zip(ours.seconds, theirs.seconds, strict=True)
        ]

    def faster(self, name: str, side: str, *, target: float | None, note: str = "") -> Figure:
        times = [1e3 * statistics.median(self.sides[s].seconds) for s in (BASELINE, side)]
        said = f"{times[0]:,.0f} over {times[1]:,.0f} ms; S {self.samples_per_session:.1f} in the "
        said += f"table, DedupeFactor {self.sides[side].dedupe_factor:.2f}"
        return Figure(
            name=name,
            value=statistics.median(self.gains(side)),
            unit="x faster",
            baseline=1.0,
            target=target,
            spread=spread(self.gains(side)),
            note=f"{said}; {note}" if note else said,
        )


@dataclass(kw_only=True)
class Bench:
    """Tables in a folder, ranks in a pool; each method measures rows of the target table."""

    folder: Path
    scale: float
    samples: int
    rounds: int
    batches: int
    """Distinct ones that a rank trains on, again and again."""
    seed: int
    pool: GlooPool = field(default_factory=lambda: GlooPool(deadline=DEADLINE))

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.close()

    @property
    def settings(self) -> dict[str, Any]:
        rm1 = self.workload("rm1").registry(RECD)
        return {
            "models": f"benchmarks/models, every size times {self.scale:g}",
            "RM1": f"{len(rm1['dataset']['features'])} features, {len(groups(rm1))} groups, "
            f"D {rm1['model']['embedding_dim']}, {rm1['train']['batch_size']} samples a rank",
            "ranks": f"{RANKS} gloo ranks of one thread",
            "sharding": "row-wise sequences, table-wise bags, on both sides",
            "rounds": self.rounds,
            "batches": f"{self.batches} a rank, held ready, the same samples on both sides",
            "samples": self.samples,
        }

    def workload(self, model: str, **options: Any) -> Workload:
        return Workload(
            model=model,
            scale=self.scale,
            folder=self.folder,
            samples=self.samples,
            seed=self.seed,
            **options,
        )

    def turns(
        self, workload: Workload, sides: Mapping[str, Side], *, reading: bool = False
    ) -> Measured:
        found = workload.prepare()
        steps, *_ = self.pool.run(
            take_turns,
            workload,
            sides,
            rounds=self.rounds,
            batches=self.batches,
            reading=reading,
        )
        return Measured(sides=steps, samples_per_session=found)

    def ablation(self) -> Measured:
        return self.turns(self.workload("rm1"), ABLATION)

    def rm1(self, ablation: Measured) -> list[Figure]:
        plain, lookups = (ablation.sides[name].traffic for name in (BASELINE, "+ O5, O6"))
        return [
            ablation.faster("RM1-like step, S = 16.5", "+ O7", target=4),
            ablation.faster(
                "O5 + O6 alone, RM1-like step",
                "+ O5, O6",
                target=1,
                note=f"all-to-all {_mb(plain)} -> {_mb(lookups)} MB a rank",
            ),
            ablation.faster(
                "RM1-like throughput, batch x3",
                "+ batch x3",
                target=None,
                note="samples/s; each step has three times the samples",
            ),
        ]

    def sessions(self) -> list[Figure]:
        """Shorter sessions, down to none."""
        four = self.turns(self.workload("rm1", samples_per_session=4), _pair())
        one = self.turns(self.workload("rm1", samples_per_session=1), _pair())
        return [
            four.faster("RM1-like step, S = 4", "RecD", target=2.2),
            one.faster(
                "throughput at S = 1", "RecD", target=0.95, note="the same groups as at S = 16.5"
            ),
        ]

    def others(self) -> list[Figure]:
        return [
            self.turns(self.workload(model), _pair()).faster(
                f"{model.upper()}-like step", "RecD", target=target
            )
            for model, target in (("rm2", 1.4), ("rm3", 1.5))
        ]

    def bytes(self) -> list[Figure]:
        """Of RM1 without its item features: all that goes through is deduplicated."""
        workload = self.workload("rm1", items=False)
        workload.prepare()
        steps, *_ = self.pool.run(take_turns, workload, _pair(), rounds=0, batches=self.batches)
        plain, ours = (steps[name].traffic["all_to_all"] for name in (BASELINE, "RecD"))
        factor = steps["RecD"].dedupe_factor
        phases = ", ".join(
            f"{phase} {plain[phase] / 1e6:,.2f} -> {ours[phase] / 1e6:,.2f}" for phase in plain
        )
        return [
            Figure(
                name="all-to-all bytes over deduplicated features",
                value=sum(plain.values()) / sum(ours.values()),
                unit="x fewer",
                baseline=1.0,
                target=0.9 * factor,
                note=f"target: 0.9 x DedupeFactor {factor:.2f}; MB a rank and step: {phases}",
            )
        ]

    def reading(self) -> list[Figure]:
        """The reader within the step: the baseline's table lies by time."""
        sides = {BASELINE: PLAIN, "RecD": RECD}
        return [
            self.turns(self.workload("rm1"), sides, reading=True).faster(
                "RM1-like step, with reading",
                "RecD",
                target=None,
                note="each rank reads for itself: by time to KJTs, clustered to IKJTs",
            )
        ]

    def memory(self) -> list[Figure]:
        """Each side in processes of its own."""
        workload = self.workload("rm1")
        workload.prepare()
        peaks = {
            name: self._peak(workload, side)
            for name, side in ((BASELINE, CLUSTERED), ("O5, O6", O5_O6), ("RecD", RECD))
        }
        named = {
            "step memory, RM1-like": ("RecD", 15.0),
            "O5 + O6 alone, step memory, RM1-like": ("O5, O6", 100.0),
        }
        return [
            Figure(
                name=name,
                value=100 * peaks[side] / peaks[BASELINE],
                unit="%",
                baseline=100.0,
                target=target,
                at_most=True,
                note=f"{peaks[BASELINE] / 1e6:,.0f} -> {peaks[side] / 1e6:,.0f} MB: what a rank's "
                "resident memory peaks above its level between steps",
            )
            for name, (side, target) in named.items()
        ]

    def _peak(self, workload: Workload, side: Side) -> float:
        with GlooPool(deadline=DEADLINE) as fresh:
            peaks: Sequence[int] = fresh.run(
                step_memory, workload, side, steps=4, batches=self.batches
            )
        return statistics.mean(peaks)


def _pair() -> dict[str, Side]:
    return {BASELINE: CLUSTERED, "RecD": RECD}


def _mb(traffic: Mapping[str, Mapping[str, float]]) -> str:
    return f"{sum(traffic['all_to_all'].values()) / 1e6:,.1f}"
