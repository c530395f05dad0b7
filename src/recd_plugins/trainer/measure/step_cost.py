"""The cost of a step: time, waiting for data, bytes through collectives, memory."""

from __future__ import annotations

import dataclasses
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from recd_plugins.slots import Callback
from recd_plugins.trainer.checkpoints.positions import Positions
from recd_plugins.trainer.measure.by_rank import by_rank
from recd_plugins.trainer.measure.memory import OTHER, OWNERS, PeakMemory, memory_owners
from recd_plugins.trainer.measure.traffic import COLLECTIVES, PHASES, Traffic, TrafficCounter

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch
    from recd_plugins.data.dataset import Split
    from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
    from recd_plugins.trainer.training import Training

__all__ = [
    "CostMeter",
    "CostSoFar",
    "StepCost",
]

_ROUTES = [(to, phase) for to in sorted(set(COLLECTIVES.values())) for phase in PHASES]

RANKS = 64
"""A cost has separate numbers for this many ranks; later ranks count only in the means."""

SPACING = 20
"""The least number of steps between two sampled steps."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The cost of a step, over all ranks."""

    steps: int
    """The number of steps that it covers: those since the last cost."""
    step_ms: float
    """The time of a step; mean over the steps and the ranks."""
    data_wait: float
    """The share of that time in which a rank waits for its reader; mean over the ranks."""
    dedupe_factor: float | None
    """Ids of deduplicated features over ids kept, of all ranks' sampled batches together. None
    without deduplication, without such ids, or if no step was sampled."""
    peak_memory_mib: float
    """The peak so far of the rank that needed most."""
    deduplicated_ids: float = 0.0
    """The number of these ids, before deduplication, in a sampled batch; mean over the ranks."""
    traffic: Traffic = field(default_factory=dict)
    """Bytes that a rank hands to each collective in a sampled step; mean over the ranks."""
    reading_ms: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of each part of reading a step's batch, whoever reads it, during the step or
    beside it; mean over the steps and the ranks. Empty if the loader does not measure them."""
    by_rank: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The `step_ms` and `wait_ms` of the first `RANKS` ranks: a step's time, and how much of it the
    rank waits for its reader. For a whole run, these count since its number of ranks last
    changed."""
    sent: Sequence[Sequence[float]] = ()
    """[R, R] bytes that each of these ranks hands to all-to-alls and sends for each of them, itself
    included, in a sampled step; empty if no step was sampled."""
    memory_mib: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The memory of these ranks, by owner (`OWNERS`); the owners add up to the peak so far."""

    @property
    def seconds(self) -> float:
        return self.steps * self.step_ms / 1e3

    def __str__(self) -> str:
        moved = [
            f"{collective.replace('_', '-')} {_size(sum(phases.values()))} ({_split(phases)})"
            for collective, phases in self.traffic.items()
        ]
        parts = [f"{self.step_ms:,.1f} ms, {self.data_wait:.0%} of it waiting for data"]
        if moved:
            parts.append(f"{', '.join(moved)} a rank")
        if self.dedupe_factor is not None:
            parts.append(f"dedupe factor {self.dedupe_factor:.2f} in sampled batches")
        parts.append(f"peak memory {self.peak_memory_mib:,.0f} MiB")
        return f"a step: {'; '.join(parts)}"

    def reading(self) -> str:
        """The milliseconds that reading a batch takes, part by part, in words."""
        whole = sum(self.reading_ms.values())
        each = ", ".join(f"{part} {value:,.2f}" for part, value in self.reading_ms.items())
        return f"reading a batch: {whole:,.2f} ms of whoever reads: {each}"


class CostMeter(Callback):
    """Measures the steps of a rank; `positions` gives the loader's part in them.

    Time, waiting and memory are measured in every step. Traffic and the dedupe factor take some
    milliseconds to count, so they are sampled in one step of `every`, and in at most one step of
    `SPACING`. Steps at the start and end of the run are not sampled, since DDP arranges its buckets
    and the pipeline fills and empties in them; nor are the steps that `skips` names. Which steps
    are sampled does not depend on where a run was resumed.
    """

    def __init__(
        self,
        positions: Positions,
        device: torch.device,
        *,
        start: int,
        steps: int,
        every: int,
        skips: Callable[[int], bool] = lambda step: False,
        before: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`before`: the lines of metrics that a resumed run already has."""
        self._positions = positions
        self._device = device
        self._start = start
        self._sampled = range(3, steps - 2)
        self._every = every
        self._skips = skips
        self._memory = PeakMemory(device)
        self._counter: TrafficCounter | None = None
        self._so_far = CostSoFar()
        self._rates = array("d")
        for line in before:
            if line["kind"] == "cost":
                self._so_far.add(_cost_of(line))
            if line["kind"] == "train":
                self._rates.append(line["samples_per_second"])
        self._reset()

    def _reset(self) -> None:
        self._steps = 0
        self._seconds = 0.0
        self._waited = self._positions.waited
        self._read = dict(self._positions.read_seconds)
        self._traffic: Traffic | None = None
        self._sent: dict[int, int] = {}
        self._ids: tuple[int, int] | None = None
        """The ids of the sampled batch's deduplicated features, and how many are kept."""

    def on_batch(self, training: Training, batch: Batch, split: Split) -> Batch:
        if self._counter is not None and batch.dedup is not None:
            self._ids = batch.dedup.id_counts()
            training.lines.append(("repeats", training.step, {"groups": repeats(batch.dedup)}))
        return batch

    def before_step(self, training: Training) -> None:
        self._began = time.perf_counter()
        step = training.step
        due = step in self._sampled and step % self._every == self._every - 1
        if due and not self._skips(step):
            self._sampled = range(step + SPACING, self._sampled.stop)
            if step >= self._start + 3:
                self._counter = TrafficCounter()
                self._counter.__enter__()

    def after_step(self, training: Training) -> None:
        if self._counter is not None:
            self._traffic, self._sent = self._counter.traffic, self._counter.sent
            self.close()
        self._seconds += time.perf_counter() - self._began
        self._steps += 1

    def on_metrics(self, training: Training, metrics: dict[str, float]) -> None:
        """Add samples per second to the metrics, and the cost as a separate line."""
        cost = self.cost(memory_owners(training.model, training.dense))
        self._so_far.add(cost)
        self._rates.append(metrics["samples"] / cost.seconds)
        metrics["samples_per_second"] = self._rates[-1]
        training.lines.append(("cost", training.step, dataclasses.asdict(cost)))

    def at_end(self, training: Training, summary: dict[str, Any]) -> None:
        cost = self._so_far.mean()
        if cost is not None:
            training.say(str(cost))
            if cost.reading_ms:
                training.say(cost.reading())
        rates = sorted(self._rates)
        summary["samples_per_second"] = rates[len(rates) // 2] if rates else 0
        summary["peak_memory_mib"] = cost.peak_memory_mib if cost else 0.0
        summary["cost"] = cost and dataclasses.asdict(cost)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self._steps,
            "seconds": self._seconds,
            "waited": self._positions.waited - self._waited,
            "read": self._unreported(),
            "traffic": self._traffic,
            "sent": list(self._sent.items()),
            "ids": self._ids,
            "sampled_from": self._sampled.start,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._seconds = state["steps"], state["seconds"]
        self._waited = self._positions.waited - state["waited"]
        read = self._positions.read_seconds
        self._read = {part: read[part] - state.get("read", {}).get(part, 0.0) for part in read}
        self._traffic, ids = state["traffic"], state.get("ids")
        self._ids = None if ids is None else tuple(ids)
        self._sent = dict(state.get("sent", ()))
        self._sampled = range(state["sampled_from"], self._sampled.stop)

    def _unreported(self) -> dict[str, float]:
        """Seconds of each part of reading since the last cost."""
        read = self._positions.read_seconds
        return {part: seconds - self._read.get(part, 0.0) for part, seconds in read.items()}

    def close(self) -> None:
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            self._counter = None

    def cost(self, held: Mapping[str, int] | None = None) -> StepCost:
        """The cost of the steps since the last cost; every rank must call it, after the same steps.
        `held`: bytes of this rank's memory, by owner."""
        self._wait_for_device()
        reading, steps = self._unreported(), self._steps
        every = _gathered(self._numbers(reading, held or {}), self._device)
        self._reset()
        return _cost_of_ranks(every, steps, [*reading])

    def _wait_for_device(self) -> None:
        """Count what the device still works on as time of the steps."""
        began = time.perf_counter()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._seconds += time.perf_counter() - began

    def _numbers(
        self, reading: Mapping[str, float], held: Mapping[str, int]
    ) -> dict[str, list[float]]:
        """This rank's numbers, as `_cost_of_ranks` takes them; of each as many as on any rank."""
        steps, traffic = max(1, self._steps), self._traffic or {}
        shown = min(RANKS, dist.get_world_size())
        return {
            "seconds": [self._seconds / steps],
            "waited": [(self._positions.waited - self._waited) / steps],
            "ids": [math.nan, math.nan] if self._ids is None else [*self._ids],
            "peak": [self._memory.peak()],
            "reading": [seconds / steps for seconds in reading.values()],
            "traffic": [traffic.get(to, {}).get(phase, 0) for to, phase in _ROUTES],
            "sent": [self._sent.get(rank, 0) for rank in range(shown)],
            "held": [held.get(owner, 0) for owner in OWNERS],
        }


def _gathered(mine: Mapping[str, Sequence[float]], device: torch.device) -> dict[str, torch.Tensor]:
    """[U, n] float64 on the CPU for each name: the n numbers of every rank."""
    own = torch.tensor(
        [number for numbers in mine.values() for number in numbers],
        dtype=torch.float64,
        device=device,
    )
    every = torch.stack(by_rank(own)).cpu()
    parts = every.split([len(numbers) for numbers in mine.values()], dim=1)
    return dict(zip(mine, parts, strict=True))


def _cost_of_ranks(every: Mapping[str, torch.Tensor], steps: int, parts: Sequence[str]) -> StepCost:
    """The cost of so many steps, from the numbers of `every` rank; reading has these `parts`."""
    means = {name: numbers.mean(0).tolist() for name, numbers in every.items()}
    (seconds,), (waited,), (ids, kept) = means["seconds"], means["waited"], means["ids"]
    traffic: dict[str, dict[str, float]] = {}
    for (collective, phase), size in zip(_ROUTES, means["traffic"], strict=True):
        if size:
            traffic.setdefault(collective, {})[phase] = size
    shown = every["sent"].shape[1]
    each = {name: numbers[:shown] for name, numbers in every.items()}
    owned = dict(zip(OWNERS, each["held"].T / 2**20, strict=True))
    owned[OTHER] = each["peak"][:, 0] / 2**20 - sum(owned.values())
    return StepCost(
        steps=steps,
        step_ms=seconds * 1e3,
        data_wait=waited / seconds if seconds else 0.0,
        dedupe_factor=ids / kept if kept > 0 else None,  # NaN if no step was sampled
        deduplicated_ids=ids if kept > 0 else 0.0,
        peak_memory_mib=float(every["peak"].max()) / 2**20,
        traffic=traffic,
        reading_ms={part: 1e3 * one for part, one in zip(parts, means["reading"], strict=True)},
        by_rank={
            "step_ms": (1e3 * each["seconds"][:, 0]).tolist(),
            "wait_ms": (1e3 * each["waited"][:, 0]).tolist(),
        },
        sent=each["sent"].tolist() if each["sent"].any() else (),
        memory_mib={
            owner: sizes.clamp(min=0).tolist() for owner, sizes in owned.items() if sizes.any()
        },
    )


def _cost_of(line: Mapping[str, Any]) -> StepCost:
    """The cost in a line of metrics; a line of an older run may lack some values."""
    names = [one.name for one in dataclasses.fields(StepCost)]
    return StepCost(**{name: line[name] for name in names if name in line})


class CostSoFar:
    """Sums up a run's costs so far; it keeps only two numbers of each, since there may be
    millions."""

    def __init__(self) -> None:
        self._times, self._waits = array("d"), array("d")
        self._steps = 0
        self._peak = 0.0
        self._factors, self._ids, self._kept = 0, 0.0, 0.0
        self._sampled = 0
        self._bytes: dict[tuple[str, str], float] = {}
        self._reading: dict[str, float] = {}
        self._reading_steps = 0
        self._by_rank: dict[str, list[float]] = {}
        self._ranked_steps = 0
        self._sent: list[list[float]] = []
        self._sent_steps = 0
        self._memory: Mapping[str, Sequence[float]] = {}

    def add(self, cost: StepCost) -> None:
        self._times.append(cost.step_ms)
        self._waits.append(cost.data_wait)
        self._steps += cost.steps
        self._peak = max(self._peak, cost.peak_memory_mib)
        if cost.dedupe_factor is not None:
            ids = cost.deduplicated_ids or 1.0  # lines of an older run do not say how many
            self._factors += 1
            self._ids += ids
            self._kept += ids / cost.dedupe_factor
        if cost.reading_ms:
            self._reading_steps += cost.steps
        for part, value in cost.reading_ms.items():
            self._reading[part] = self._reading.get(part, 0.0) + value * cost.steps
        self._add_ranks(cost)
        self._memory = cost.memory_mib or self._memory
        if cost.traffic:
            self._sampled += 1
        for to, phases in cost.traffic.items():
            for phase, size in phases.items():
                self._bytes[to, phase] = self._bytes.get((to, phase), 0) + size

    def _add_ranks(self, cost: StepCost) -> None:
        """Add the costs of each rank; a run that goes on with another number of ranks begins these
        anew."""
        if any(len(cost.by_rank.get(name, ())) != len(had) for name, had in self._by_rank.items()):
            self._by_rank, self._ranked_steps = {}, 0
            self._sent, self._sent_steps = [], 0
        if cost.by_rank:
            self._ranked_steps += cost.steps
        for name, values in cost.by_rank.items():
            sums = self._by_rank.get(name, [0.0] * len(values))
            added = [cost.steps * value for value in values]
            self._by_rank[name] = [a + b for a, b in zip(sums, added, strict=True)]
        if cost.sent:
            rows = self._sent or [[0.0] * len(cost.sent) for _ in cost.sent]
            self._sent = [
                [a + b for a, b in zip(*both, strict=True)]
                for both in zip(rows, cost.sent, strict=True)
            ]
            self._sent_steps += 1

    def mean(self) -> StepCost | None:
        """Medians of times, means of what was sampled, and the highest peak; None without steps."""
        if not self._times:
            return None
        traffic: dict[str, dict[str, float]] = {}
        for to, phase in (route for route in _ROUTES if route in self._bytes):
            traffic.setdefault(to, {})[phase] = self._bytes[to, phase] / self._sampled
        middle = len(self._times) // 2
        return StepCost(
            steps=self._steps,
            step_ms=sorted(self._times)[middle],
            data_wait=sorted(self._waits)[middle],
            dedupe_factor=self._ids / self._kept if self._kept else None,
            deduplicated_ids=self._ids / self._factors if self._factors else 0.0,
            peak_memory_mib=self._peak,
            traffic=traffic,
            reading_ms={part: value / self._reading_steps for part, value in self._reading.items()},
            by_rank={
                name: [value / self._ranked_steps for value in values]
                for name, values in self._by_rank.items()
            },
            sent=[[value / self._sent_steps for value in row] for row in self._sent] or (),
            memory_mib=self._memory,
        )


def _size(count: float) -> str:
    unit, name = (2**20, "MiB") if count >= 2**20 else (2**10, "KiB")
    return f"{count / unit:,.{0 if count >= 100 * unit else 1}f} {name}"


def _split(phases: Mapping[str, float]) -> str:
    return ", ".join(f"{phase} {_size(phases[phase])}" for phase in PHASES if phase in phases)


def repeats(batch: InverseKeyedJaggedTensor) -> list[dict[str, Any]]:
    """The repeats of each group: its features with their dedupe factors and their ids, how many
    samples there are and how many are unique, and [copies, unique samples that have so many],
    copies ascending."""
    found = []
    groups = zip(batch.groups, batch.inverse_lookup, batch.unique_counts, strict=True)
    for group, lookup, unique in groups:
        copies = torch.bincount(lookup, minlength=unique)
        numbers, counts = copies.unique(return_counts=True)
        found.append(
            {
                "features": {key: batch.dedupe_factor(key) for key in group},
                "ids": {key: batch.id_counts(key)[0] for key in group},
                "samples": len(lookup),
                "unique": unique,
                "copies": torch.stack([numbers, counts], 1).tolist(),
            }
        )
    return found
