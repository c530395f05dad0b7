"""The steps of a rank; between them logging, evaluation, checkpoints, re-tiering, a profile."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from recd_plugins.errors import RecdError
from recd_plugins.stack import Stack
from recd_plugins.trainer.assemble import Job
from recd_plugins.trainer.checkpoints.checkpoint import Checkpoints
from recd_plugins.trainer.checkpoints.positions import Positions
from recd_plugins.trainer.measure.breakdown import told
from recd_plugins.trainer.measure.metrics import Metrics, MetricsWindow
from recd_plugins.trainer.measure.step_cost import CostMeter, StepCost, mean_cost
from recd_plugins.trainer.measure.step_profiler import StepProfiler
from recd_plugins.trainer.retiering import Retiering
from recd_plugins.trainer.run_folder import RunReport, defined

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch

__all__ = ["Loop", "StopSignal"]


class Loop:
    """Trains from step `start` to the settings' last; all ranks run it alike."""

    def __init__(
        self,
        stack: Stack,
        job: Job,
        checkpoints: Checkpoints,
        report: RunReport,
        positions: Positions,
        start: int,
    ) -> None:
        self._stack = stack
        self._settings = settings = stack.registry.train
        self._job = job
        self._checkpoints = checkpoints
        self._report = report
        self._positions = positions
        self._start = start
        self._meter = CostMeter(
            positions, job.device, start=start, steps=settings.steps, every=settings.log_every
        )
        self._batches: Iterator[Batch] = iter(self._meter)
        self._retiering: Retiering | None = None
        if settings.retier_every:
            self._retiering = Retiering(
                stack.retiering_planner(),
                start=start,
                every=settings.retier_every,
                keep=settings.retier_batches,
            )
            self._batches = self._retiering.watch(self._batches)
        self._profile = StepProfiler(
            job.model,
            job.device,
            start=start,
            stop=settings.steps,
            after=settings.log_every,
            steps=settings.profile_steps,
        )
        if self._profile.too_short:
            report.say(
                f"train.profile_steps: {settings.steps - start} steps are too few to profile "
                f"{settings.profile_steps} of them"
            )
        self._costs: list[StepCost] = []
        self._rates: list[float] = []
        self._parts: dict[str, float] | None = None

    def run(self) -> dict[str, Any]:
        """Train, to the end or until stopped; the summary."""
        stop = StopSignal()
        try:
            step, saved, metrics = self._steps(stop)
        finally:
            stop.close()
        settings = self._settings
        if saved != step:
            self._checkpoints.save(self._job, step, self._positions.state)
        finished = step == settings.steps
        test = self._evaluate(step) if finished else None
        cost = mean_cost(self._costs)
        if cost is not None:
            self._report.say(str(cost))
        if not finished:
            self._report.say(
                f"stopped after step {step} of {settings.steps}; `recd train --resume` goes on."
            )
        return {
            "finished": finished,
            "step": step,
            "world_size": dist.get_world_size(),
            "batch_size": settings.batch_size,
            "train": metrics and defined(dataclasses.asdict(metrics)),
            "test": test and defined(dataclasses.asdict(test)),
            "samples_per_second": sorted(self._rates)[len(self._rates) // 2] if self._rates else 0,
            "peak_memory_mib": cost.peak_memory_mib if cost else 0.0,
            "cost": cost and dataclasses.asdict(cost),
            "parts_ms": self._parts,
            "run": str(settings.run),
        }

    def _steps(self, stop: StopSignal) -> tuple[int, int, Metrics | None]:
        """Train to the end or the stop; the step reached, that last saved, the last metrics."""
        settings, step, saved = self._settings, self._start, self._start
        window = MetricsWindow(self._job.device)
        metrics: Metrics | None = None
        while step < settings.steps and not stop.agreed():
            window.add(*self._step(step))
            if self._profile.ends(step):
                self._tell_profile(step + 1)
            step += 1
            if step % settings.log_every == 0 or step == settings.steps:
                metrics = self._tell(step, window)
            if settings.checkpoint_every and step % settings.checkpoint_every == 0:
                self._checkpoints.save(self._job, step, self._positions.state)
                saved = step
            if settings.eval_every and step % settings.eval_every == 0 and step < settings.steps:
                self._evaluate(step)
        return step, saved, metrics

    def _step(self, number: int) -> tuple[torch.Tensor, ...]:
        with (
            self._profile.step(number),
            self._meter.step(number, sample=not self._profile.covers(number)),
        ):
            if self._retiering is not None:
                self._retiering.before(number)
            outputs = self._job.pipeline.progress(self._batches)
        self._positions.trained()
        # Whoever keeps them must keep no graph: tiers would wait for its backward.
        return tuple(output.detach() for output in outputs)

    def _tell(self, step: int, window: MetricsWindow) -> Metrics:
        cost = self._meter.cost()
        metrics = window.metrics()
        rate = metrics.samples / cost.seconds
        self._costs.append(cost)
        self._rates.append(rate)
        self._report.metrics("train", step, metrics, rate)
        self._report.values("cost", step, dataclasses.asdict(cost))
        if not math.isfinite(metrics.loss):
            raise RecdError(
                f"the loss is {metrics.loss} by step {step}: training diverged. Lower "
                "train.optimizer.tables_lr or dense_lr; checkpoints before it are whole."
            )
        return metrics

    def _tell_profile(self, step: int) -> None:
        folder = self._settings.run
        self._parts = self._profile.finish(
            folder / "trace.json.gz" if dist.get_rank() == 0 else None
        )
        self._report.values("profile", step, self._parts)
        for line in told(self._parts):
            self._report.say(line)

    def _evaluate(self, step: int) -> Metrics | None:
        """Metrics on the test split, unless it is empty; the batches in flight wait meanwhile."""
        model, pipeline, device = self._job.model, self._job.pipeline, self._job.device
        loader = self._stack.loader(dist.get_rank(), dist.get_world_size(), "test")
        limit = self._settings.eval_batches or len(loader)
        if not len(loader):
            self._report.say("the test split is empty: nothing to evaluate")
            return None
        window = MetricsWindow(device, auc_samples=None)
        pipeline.detach()
        model.eval()
        with torch.no_grad():
            for _, batch in zip(range(limit), loader, strict=False):
                _, outputs = model(batch.to(device))
                window.add(*outputs)
        model.train()
        pipeline.attach(sparse_dist=False)  # the ids of the batches in flight are exchanged already
        metrics = window.metrics()
        self._report.metrics("test", step, metrics)
        return metrics


class StopSignal:
    """Ctrl-C and SIGTERM: a flag that any rank's signal raises and that all ranks read alike.

    Each step starts an all-reduce of one number and reads that of the step before, so the
    agreement is never waited for.
    """

    def __init__(self) -> None:
        self._asked = False
        self._group = dist.new_group(backend="gloo")
        self._flag = torch.zeros(1)
        self._work: dist.Work | None = None
        self._before = {
            number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def agreed(self) -> bool:
        """Whether any rank had been asked to stop one call ago; every rank must call it."""
        stop = False
        if self._work is not None:
            self._work.wait()
            stop = bool(self._flag)
        self._flag = torch.tensor([float(self._asked)])
        self._work = dist.all_reduce(
            self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return stop

    def close(self) -> None:
        """Wait for the last agreement and give the signals back."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
