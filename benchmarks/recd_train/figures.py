"""A figure for each row of the trainer's target table."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness import Figure, Limit
from benchmarks.models import groups
from benchmarks.recd_train.measured import BASELINE, MeasuredTraining, megabytes
from benchmarks.recd_train.ranks import WARM_UP, resident_memory, take_turns
from benchmarks.recd_train.workload import (
    CLUSTERED,
    O5_O6,
    PLAIN,
    RANKS,
    RECD,
    TrainSide,
    TrainWorkload,
)
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.measure.traffic import PHASES

__all__ = ["ABLATION", "TrainBench"]

T = TypeVar("T")

DEADLINE = 3600.0

ABLATION = {
    BASELINE: CLUSTERED,
    "+ O5, O6": O5_O6,
    "+ O7": RECD,
    "+ batch x3": TrainSide(batch=3),
}
"""The paper's figure 9. There a clustered table alone is as fast as one by time."""

PAIR = {BASELINE: CLUSTERED, "RecD": RECD}

PROFILED_SIDES = (BASELINE, "RecD", "+ O7")
"""The sides that are profiled: those that have a limit, and the one of which it is made."""


@dataclass(frozen=True, kw_only=True)
class TrainBench:
    """Tables in a folder, ranks in a pool; each method measures rows of the target table."""

    folder: Path
    pool: GlooPool
    scale: float
    samples: int
    rounds: int
    batches: int
    """The number of distinct batches on which a rank trains repeatedly."""
    warm_up: int = WARM_UP
    """Rounds that come first and do not count."""
    quick: bool = False
    """Whether slow measurements are left out."""
    seed: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        rm1 = self.workload("rm1").registry(RECD)
        return {
            "models": f"benchmarks/models, every size times {self.scale:.3g}",
            "RM1": f"{len(rm1['dataset']['features'])} features, {len(groups(rm1))} groups, "
            f"D {rm1['model']['embedding_dim']}, {rm1['train']['batch_size']} samples a rank",
            "ranks": f"{RANKS} gloo ranks of one thread",
            "sharding": "row-wise sequences, table-wise bags, on both sides",
            "rounds": self.rounds,
            "batches": f"{self.batches} a rank, held ready, the same samples on both sides",
            "samples": self.samples,
        }

    def ablation(self) -> MeasuredTraining:
        return self._turns(self.workload("rm1"), ABLATION, weighed=self.batches)

    def rm1(self, ablation: MeasuredTraining) -> list[Figure]:
        exchanged = [
            megabytes(ablation.sides[name].exchanged) for name in (BASELINE, "+ O5, O6", "+ O7")
        ]
        return [
            ablation.faster("RM1-like step, S = 16.5", "+ O7", target=4, limited=True),
            ablation.faster(
                "O5 + O6 alone, RM1-like step",
                "+ O5, O6",
                target=1,
                note=f"all-to-all {exchanged[0]} and {exchanged[1]} MB a rank",
            ),
            ablation.lighter("O5 + O6 alone, step memory", "+ O5, O6", target=100),
            ablation.faster(
                "RM1-like throughput, batch x3",
                "+ batch x3",
                note="samples/s; a step has three times the samples, and holds "
                f"{statistics.mean(ablation.memory_shares('+ batch x3')):.0f}% of the memory",
            ),
        ]

    def memory(self, ablation: MeasuredTraining) -> list[Figure]:
        """The memory of tensors, which is exact; and resident memory, in separate processes."""
        note = ""
        if not self.quick:
            plain, ours = (megabytes(self._resident(side)) for side in PAIR.values())
            note = f"resident {plain} and {ours} MB"
        return [ablation.lighter("step memory, RM1-like", "+ O7", target=15, note=note)]

    def sessions(self) -> list[Figure]:
        """The figures of shorter sessions, down to none."""
        figures = []
        if not self.quick:
            four = self._turns(self.workload("rm1", samples_per_session=4), PAIR)
            figures.append(four.faster("RM1-like step, S = 4", "RecD", target=2.2, limited=True))
        one = self._turns(self.workload("rm1", samples_per_session=1), PAIR)
        note = "the same groups as at S = 16.5"
        what = "throughput at S = 1"
        return [*figures, one.faster(what, "RecD", target=0.95, limited=True, note=note)]

    def others(self) -> list[Figure]:
        return [
            self._turns(self.workload(model), PAIR).faster(
                f"{model.upper()}-like step", "RecD", target=target, limited=True
            )
            for model, target in (("rm2", 1.4), ("rm3", 1.5))
        ]

    def bytes(self) -> list[Figure]:
        """The bytes of RM1 without its item features: everything that is sent is deduplicated."""
        workload = self.workload("rm1", items=False)
        workload.prepare()
        ranks = run(
            self.pool,
            take_turns,
            workload,
            PAIR,
            rounds=0,
            batches=self.batches,
            warm_up=self.warm_up,
            counted=self.batches,
        )
        plain, ours = (
            [
                statistics.mean(rank[name].traffic["all_to_all"][phase] for rank in ranks)
                for phase in PHASES
            ]
            for name in PAIR
        )
        recd = [rank["RecD"] for rank in ranks]
        factor = sum(one.ids for one in recd) / sum(one.ids_kept for one in recd)
        phases = ", ".join(
            f"{phase} {megabytes(before)} and {megabytes(after)}"
            for phase, before, after in zip(PHASES, plain, ours, strict=True)
        )
        return [
            Figure(
                name="all-to-all bytes over deduplicated features",
                value=sum(plain) / sum(ours),
                unit="x fewer",
                baseline=1.0,
                target=0.9 * factor,
                limit=Limit(
                    value=factor,
                    of="the DedupeFactor: ids and rows of unique samples; lengths are left out",
                ),
                note=f"target: 0.9 x DedupeFactor {factor:.2f}; MB a rank and step: {phases}",
            )
        ]

    def reading(self) -> list[Figure]:
        """The figures with reading in the step; the baseline's table is in the order of time."""
        sides = {BASELINE: PLAIN, "RecD": RECD}
        return [
            self._turns(self.workload("rm1"), sides, reading=True).faster(
                "RM1-like step, with reading",
                "RecD",
                note="each rank reads for itself: by time to KJTs, clustered to IKJTs",
            )
        ]

    def workload(self, model: str, **options: Any) -> TrainWorkload:
        return TrainWorkload(
            model=model,
            scale=self.scale,
            folder=self.folder,
            samples=self.samples,
            seed=self.seed,
            **options,
        )

    def _turns(
        self,
        workload: TrainWorkload,
        sides: Mapping[str, TrainSide],
        *,
        weighed: int = 0,
        reading: bool = False,
    ) -> MeasuredTraining:
        found = workload.prepare()
        ranks = run(
            self.pool,
            take_turns,
            workload,
            sides,
            rounds=self.rounds,
            batches=self.batches,
            warm_up=self.warm_up,
            weighed=weighed,
            reading=reading,
            profiled=() if reading else PROFILED_SIDES,
        )
        steps = {
            name: dataclasses.replace(
                first, memory=[size for rank in ranks for size in rank[name].memory]
            )
            for name, first in ranks[0].items()
        }
        return MeasuredTraining(sides=steps, samples_per_session=found)

    def _resident(self, side: TrainSide) -> float:
        workload = self.workload("rm1")
        workload.prepare()
        with GlooPool() as fresh:
            grown = run(
                fresh,
                resident_memory,
                workload,
                side,
                steps=min(4, self.rounds),
                batches=self.batches,
                warm_up=self.warm_up,
            )
        return statistics.mean(grown)


def run(pool: GlooPool, function: Callable[..., T], *args: Any, **kwargs: Any) -> list[T]:
    """Run the function on the pool's ranks; what they print goes to stderr, since stdout may be
    JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        return pool.run(function, *args, deadline=DEADLINE, **kwargs)
