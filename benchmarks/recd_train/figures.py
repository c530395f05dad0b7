"""A figure for each row of the trainer's targets."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from benchmarks.harness import Figure, spread
from benchmarks.models import groups
from benchmarks.recd_train.ranks import Steps, resident_memory, take_turns
from benchmarks.recd_train.workload import CLUSTERED, O5_O6, PLAIN, RANKS, RECD, Side, Workload
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.traffic import PHASES

__all__ = ["ABLATION", "Bench", "Measured"]

T = TypeVar("T")

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

    def gains(self, side: str, clock: Literal["seconds", "cpu"] = "seconds") -> list[float]:
        """Samples/s over the baseline's, round by round."""
        ours, theirs = self.sides[side], self.sides[BASELINE]
        pairs = zip(getattr(ours, clock), getattr(theirs, clock), strict=True)
        return [ours.samples / mine / (theirs.samples / other) for mine, other in pairs]

    def faster(self, name: str, side: str, *, target: float | None, note: str = "") -> Figure:
        times = [1e3 * statistics.median(self.sides[s].seconds) for s in (BASELINE, side)]
        said = f"{times[0]:,.0f} over {times[1]:,.0f} ms, processor time "
        said += f"{statistics.median(self.gains(side, 'cpu')):.2f}x; S "
        said += f"{self.samples_per_session:.1f} in the table"
        if self.sides[side].ids_kept:
            said += f", DedupeFactor {self.sides[side].dedupe_factor:.2f}"
        return Figure(
            name=name,
            value=statistics.median(self.gains(side)),
            unit="x faster",
            baseline=1.0,
            target=target,
            spread=spread(self.gains(side)),
            note=f"{said}; {note}" if note else said,
        )

    def lighter(self, name: str, side: str, *, target: float, note: str = "") -> Figure:
        """Mean of the steps' peaks."""
        ours, theirs = self.sides[side].memory, self.sides[BASELINE].memory
        shares = [100 * mine / other for mine, other in zip(ours, theirs, strict=True)]
        peaks = [statistics.mean(side) for side in (theirs, ours)]
        said = f"{_mb(peaks[0])} -> {_mb(peaks[1])} MB of tensors held at once"
        return Figure(
            name=name,
            value=100 * peaks[1] / peaks[0],
            unit="%",
            baseline=100.0,
            target=target,
            at_most=True,
            spread=spread(shares),
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
        self,
        workload: Workload,
        sides: Mapping[str, Side],
        *,
        weighed: int = 0,
        reading: bool = False,
    ) -> Measured:
        found = workload.prepare()
        steps, *_ = run(
            self.pool,
            take_turns,
            workload,
            sides,
            rounds=self.rounds,
            batches=self.batches,
            weighed=weighed,
            reading=reading,
        )
        return Measured(sides=steps, samples_per_session=found)

    def ablation(self) -> Measured:
        return self.turns(self.workload("rm1"), ABLATION, weighed=4)

    def rm1(self, ablation: Measured) -> list[Figure]:
        plain, lookups = (ablation.sides[name].exchanged for name in (BASELINE, "+ O5, O6"))
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
        ranks = run(
            self.pool,
            take_turns,
            workload,
            _pair(),
            rounds=0,
            batches=self.batches,
            counted=self.batches,
        )
        plain, ours = (
            {
                phase: statistics.mean(rank[name].traffic["all_to_all"][phase] for rank in ranks)
                for phase in PHASES
            }
            for name in (BASELINE, "RecD")
        )
        ids, kept = (
            sum(counts)
            for counts in zip(*((r["RecD"].ids, r["RecD"].ids_kept) for r in ranks), strict=True)
        )
        factor = ids / kept
        phases = ", ".join(f"{phase} {_mb(plain[phase])} -> {_mb(ours[phase])}" for phase in PHASES)
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

    def memory(self, ablation: Measured) -> list[Figure]:
        """Of tensors, which is exact; beside it what is resident, in processes of a side's own."""
        workload = self.workload("rm1")
        resident = {side: self._resident(workload, side) for side in (CLUSTERED, RECD)}
        return [
            ablation.lighter(
                "step memory, RM1-like",
                "+ O7",
                target=15,
                note=f"resident {_mb(resident[CLUSTERED])} -> {_mb(resident[RECD])} MB",
            ),
            ablation.lighter("O5 + O6 alone, step memory, RM1-like", "+ O5, O6", target=100),
        ]

    def _resident(self, workload: Workload, side: Side) -> float:
        with GlooPool(deadline=DEADLINE) as fresh:
            grown = run(fresh, resident_memory, workload, side, steps=4, batches=self.batches)
        return statistics.mean(grown)


def run(pool: GlooPool, function: Callable[..., T], *args: Any, **kwargs: Any) -> list[T]:
    """On the pool's ranks; what they print goes to stderr, as stdout may be JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        return pool.run(function, *args, **kwargs)


def _pair() -> dict[str, Side]:
    return {BASELINE: CLUSTERED, "RecD": RECD}


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f}"
