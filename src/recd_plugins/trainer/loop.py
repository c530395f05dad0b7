"""The steps of a rank; between them callbacks, metrics, evaluation, checkpoints, a profile."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from recd_plugins.data.batch import Batch
from recd_plugins.data.reader.period_loader import last_period
from recd_plugins.errors import RecdError
from recd_plugins.hooks.blame import raised_by
from recd_plugins.registry import Choice
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.slots import Callback
from recd_plugins.slots.batch_check import BatchCheck
from recd_plugins.stack import Stack
from recd_plugins.trainer.assemble import Job
from recd_plugins.trainer.checkpoints.checkpoint import (
    Checkpoints,
    DiskFullError,
    NotFiniteError,
    ReachedState,
)
from recd_plugins.trainer.checkpoints.optimizer_numbers import restore_groups
from recd_plugins.trainer.checkpoints.positions import Positions, check_lengths, closing
from recd_plugins.trainer.checkpoints.random_state import set_random_state
from recd_plugins.trainer.divergence import divergence
from recd_plugins.trainer.measure.breakdown import explain_breakdown
from recd_plugins.trainer.measure.finite import FiniteInputs, FiniteLosses
from recd_plugins.trainer.measure.forecast_meter import ForecastMeter
from recd_plugins.trainer.measure.metrics import LabelMetrics
from recd_plugins.trainer.measure.step_cost import CostMeter
from recd_plugins.trainer.measure.step_profiler import StepProfiler
from recd_plugins.trainer.ranks_alike import (
    check_dense_alike,
    check_rates_alike,
    check_states_alike,
)
from recd_plugins.trainer.retiering import Retiering
from recd_plugins.trainer.run_callbacks import Callbacks
from recd_plugins.trainer.run_report import RunReport, defined
from recd_plugins.trainer.same_batches import notice_same_batch
from recd_plugins.trainer.stop_signal import Stopped, StopSignal
from recd_plugins.trainer.training import Training
from recd_plugins.trainer.watchdog import Watchdog

__all__ = ["Loop", "evaluates_again"]


class Loop:
    """Trains from the first step, or from the one that was reached, to the last of the settings;
    all ranks run the same loop.

    A run that was killed and resumed reports what an uninterrupted one does, except for times.
    """

    def __init__(
        self,
        stack: Stack,
        job: Job,
        checkpoints: Checkpoints,
        report: RunReport,
        positions: Positions,
        watchdog: Watchdog,
        reached: ReachedState | None,
        chosen: Sequence[tuple[Callback, Choice]],
    ) -> None:
        """`chosen`: the callbacks of registry.yaml; the host's own run before and after them."""
        self._reached = reached
        start = reached.step if reached else 0
        self._stack = stack
        self._settings = settings = stack.registry.train
        self._job = job
        self._checkpoints = checkpoints
        self._report = report
        self._positions = positions
        self._profile = StepProfiler(
            job.model,
            job.device,
            start=start,
            stop=settings.steps,
            after=settings.log_every,
            steps=settings.profile_steps,
        )
        self._parts: dict[str, float] | None = None
        if self._profile.too_short:
            report.say(
                f"train.profile_steps: {settings.steps - start} steps are too few to profile "
                f"{settings.profile_steps} of them"
            )
        self._unsaved: list[int] = []
        """The steps whose checkpoints the disk had no room for."""
        self._metrics_steps = (start, start)
        """The steps that the latest metrics of training cover: after the first, to the second."""
        self._evaluated = -1
        """The step that was evaluated last."""
        self._ended = ""
        """Why a callback ended the run."""
        self._meter = CostMeter(
            positions,
            job.device,
            start=start,
            steps=settings.steps,
            every=settings.log_every,
            skips=self._profile.covers,
            before=report.before,
        )
        report.before.clear()
        self._forecasts = ForecastMeter(stack)
        callbacks: list[tuple[Callback, Choice | None]] = [
            (self._meter, None),
            (self._forecasts, None),
            *chosen,
        ]
        self._retiering = self._moves_of_replicas(start) if settings.retier_every else None
        if self._retiering is not None:
            callbacks.append((self._retiering, None))
        self._callbacks = Callbacks(callbacks, stack.schema)
        self._training = Training(
            model=job.model,
            dense=job.dense,
            tables=job.model.fused_optimizer,
            settings=settings,
            device=job.device,
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            run=settings.run,
            step=start,
            labels=stack.schema.targets,
        )
        whose = f"{stack.registry.one('reader').who}: its loader yielded"
        if stack.ordered:
            whose = f"{stack.planning.who}: its `order` yielded"
        # Whoever made the ids has held them to the schema; a planner may have put them together.
        self._check = BatchCheck(stack.schema, whose, ids=stack.ordered)
        self._batches: Iterator[Batch] = map(self._read, positions)
        self._ahead: deque[Batch] = deque()
        self._window = LabelMetrics(job.device, stack.schema.targets)
        self._losses = FiniteLosses(job.device)
        self._inputs = FiniteInputs(job.device, lacking=bool(stack.schema.without_target))
        self._start = start
        self._period = last_period(positions.state) if start and stack.periods else None
        """The period of the latest batch, where data grow."""
        self._watchdog = watchdog

    def _moves_of_replicas(self, start: int) -> Retiering:
        return Retiering(
            self._stack.retiering_planner(),
            start=start,
            every=self._settings.retier_every,
            keep=self._settings.retier_batches,
            named=self._stack.planning.named,
            fill=lambda: self._job.pipeline.fill_pipeline(self._batches),
        )

    def run(self, stop: StopSignal) -> dict[str, Any]:
        """Train, to the end or until stopped; the summary."""
        self._stack.together = stop.together
        update = self._job.dense.register_step_pre_hook(lambda *_: self._call("before_update"))
        forward = self._job.model.register_forward_pre_hook(self._callbacks.refuse_forward)
        try:
            self._watchdog.mark("the start of the callbacks", starting=True)
            self._call("at_start")
            if self._reached is not None:
                self._go_on(self._reached)
            return self._run(stop)
        except KeyboardInterrupt as error:
            raise self._interruption(error) from error
        finally:
            update.remove()
            forward.remove()
            self._profile.close()
            self._callbacks.call("close")
            self._stack.together = bool

    def _interruption(self, error: KeyboardInterrupt) -> RecdError:
        """The error that ends a run which code interrupts: Ctrl-C raises nothing here."""
        raised = raised_by(error)
        who = f"plugin {raised.plugin!r} in {raised.place}" if raised else "some code"
        whole = self._checkpoints.latest()
        saved = (
            f"`recd train --resume` goes on from {whole}" if whole else "There is no checkpoint yet"
        )
        return RecdError(
            f"{who} raised KeyboardInterrupt after step {self._training.step}, while Ctrl-C asks a "
            "run to stop after its step. Have it raise another error, `training.stop(reason)` end "
            f"a run early, and signal.signal leave SIGINT alone. {saved}."
        )

    def _go_on(self, reached: ReachedState) -> None:
        """Take over what the run had counted and reported when the checkpoint was made, and the
        rates and numbers of its optimizers, which the scheduler of a new callback has just
        changed."""
        self._restore_replicas(reached)
        for line in restore_groups(self._job, reached.numbers, reached.rates):
            self._report.say(line)
        for name in self._callbacks.load_state_dict(reached.callbacks):
            self._report.say(f"callbacks: the checkpoint's state of {name} has no taker now")
        # Callbacks have drawn random numbers at their start, as they did when the run was new.
        set_random_state(reached.random, self._job.device)
        so_far, training = reached.so_far, self._training
        self._restore_counts(so_far)
        ended = so_far.get("ended", "") if reached.same_end else ""
        if reached.same_end:
            training.stopping = so_far.get("stopping", "")
            # Data that had ended may go on by now.
            self._ended = "" if so_far.get("data_ended") else ended
        finished = bool(ended) or reached.step == self._settings.steps
        if not finished and evaluates_again(reached, self._settings):
            self._evaluate()

    def _restore_replicas(self, reached: ReachedState) -> None:
        retiering, folder = self._retiering, reached.replicas
        if retiering is None or (folder is not None and retiering.restore(folder)):
            return
        hot = ", and its hot batches have other samples" if self._stack.ordered else ""
        self._report.say(
            "train.retier_every: replicas are planned anew, and are not where the run had "
            f"moved them. It adds floats in another order than an uninterrupted one{hot}"
        )

    def _restore_counts(self, so_far: Mapping[str, Any]) -> None:
        """Take over the counts of a checkpoint, as far as it has them."""
        if "window" in so_far:
            self._window.load_state_dict(so_far["window"])
        if "cost" in so_far:
            self._meter.load_state_dict(so_far["cost"])
            self._training.metrics = so_far["metrics"]
            first, last = so_far["metrics_steps"]
            self._metrics_steps = (first, last)
            self._unsaved = so_far["unsaved"]
            self._parts = so_far["parts_ms"]
        if "forecasts" in so_far:
            self._forecasts.load_state_dict(so_far["forecasts"])

    def _so_far(self) -> dict[str, Any]:
        """The counts and reasons that `_go_on` takes over."""
        training = self._training
        return {
            "window": self._window.state_dict(),
            "cost": self._meter.state_dict(),
            "forecasts": self._forecasts.state_dict(),
            "metrics": dict(training.metrics),
            "metrics_steps": self._metrics_steps,
            "unsaved": self._unsaved,
            "parts_ms": self._parts,
            "evaluated": self._evaluated == training.step,
            "stopping": training.stopping,
            "ended": self._ended,
            "data_ended": self._positions.over,
            "lines": self._report.lines,
        }

    def _call(self, event: str, *args: Any) -> None:
        self._callbacks.call(event, self._training, *args)
        if event not in ("on_metrics", "on_evaluation"):
            self._report_lines()

    def _report_lines(self) -> None:
        """Report the lines and values that callbacks left."""
        for line in self._training.lines:
            if isinstance(line, str):
                self._report.say(line)
            else:
                self._report.values(*line)
        self._training.lines.clear()

    def _run(self, stop: StopSignal) -> dict[str, Any]:
        settings, training = self._settings, self._training
        saved, self._ended = (training.step, self._ended) if self._ended else self._steps(stop)
        reason, step = self._ended, training.step
        if saved != step:
            self._save()
        finished = step == settings.steps or bool(reason)
        test = self._evaluate() if finished else None
        summary = {
            "finished": finished,
            "step": step,
            "world_size": training.world_size,
            "batch_size": settings.batch_size,
            "train": defined(training.metrics) or None,
            "train_steps": [self._metrics_steps[0] + 1, self._metrics_steps[1]],
            "test": test and defined(test),
            "parts_ms": self._parts,
            "run": str(settings.run),
            "unsaved": self._unsaved,
        }
        self._watchdog.mark("the end of the run")
        self._call("at_end", summary)
        if reason:
            self._report.say(f"ended after step {step} of {settings.steps}: {reason}")
        elif not finished:
            self._report.say(
                f"stopped after step {step} of {settings.steps}; `recd train --resume` goes on."
            )
        return summary

    def _steps(self, stop: StopSignal) -> tuple[int, str]:
        """Train to the end or the stop; returns the step last saved, and why a callback ended the
        run."""
        settings, training, saved = self._settings, self._training, self._training.step
        while (
            training.step < settings.steps
            and not self._positions.over
            and not stop.agreed(bool(training.stopping), self._losses.found)
        ):
            try:
                if not self._step():
                    break
            except Stopped:
                break
            step = training.step
            if step % settings.log_every == 0 or step == settings.steps:
                self._report_metrics()
            if settings.eval_every and step % settings.eval_every == 0 and step < settings.steps:
                self._evaluate()
            if settings.checkpoint_every and step % settings.checkpoint_every == 0:
                if step < settings.steps and stop.callback_is_next():
                    self._ended = self._asked()  # so a run that is resumed from here trains no step
                self._save()
                saved = step
        if stop.diverged:
            raise self._divergence()
        if self._positions.over:
            return saved, "the data have ended"
        return saved, self._asked() if stop.by_callback else ""

    def _asked(self) -> str:
        """Why a callback ends the run, in words."""
        return self._training.stopping or "a callback of another rank asked for it"

    def _step(self) -> bool:
        """Train a step; whether there was a batch for it."""
        training, number = self._training, self._training.step
        self._watchdog.mark(f"step {number + 1}", starting=number == self._start)
        with self._profile.step(number):
            self._call("before_step")
            try:
                outputs = self._job.pipeline.progress(self._batches)
            except StopIteration:
                if self._ahead:  # there was a batch: it is of code that was to train it
                    raise
                return False
        self._positions.trained()
        # Whoever keeps them must keep no graph: tiers would wait for its backward.
        training.outputs = tuple(output.detach() for output in outputs)
        training.batch = self._ahead.popleft()
        training.step += 1
        if number == self._start:
            notice_same_batch(training.batch, self._stack.registry.one("reader").who)
        self._inputs.add(training.step, training.batch)
        self._losses.add(training.step, training.batch, training.outputs[0])
        self._call("after_step")
        self._window.add(*training.outputs)
        if self._profile.ends(number):
            self._report_profile()
        self._report_period()
        return True

    def _report_period(self) -> None:
        """Report the counts of the latest batch's period once the batch is trained on."""
        periods = self._stack.periods
        if periods is None or self._period == (period := last_period(self._positions.state)):
            return
        first, self._period = 0 if self._period is None else self._period + 1, period
        for one in range(first, period + 1):  # some may have had no batch
            counts = periods.counts(one)
            self._report.values("period", self._training.step, {"period": one, **counts})
            named = (f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
            listed = ", ".join(named)
            self._report.say(f"period {one} from step {self._training.step} on: {listed}")

    def _read(self, batch: Batch) -> Batch:
        self._check(batch)
        batch = self._callbacks.on_batch(self._training, batch, "train")
        self._ahead.append(batch)
        return batch

    def _save(self) -> None:
        self._watchdog.mark(f"the checkpoint of step {self._training.step}")
        if self._losses.first():
            raise self._divergence()
        training = self._training
        check_dense_alike(training.model, training.dense, training.device)
        check_states_alike(training.model, training.dense)
        check_rates_alike(training.tables)
        self._call("on_checkpoint")
        states, so_far = self._callbacks.state_dict(), self._so_far()
        step = self._training.step
        self._report.sync()
        try:
            self._checkpoints.save(
                self._job, step, self._positions.state, states, so_far, self._write_replicas
            )
            if self._stack.periods is not None and dist.get_rank() == 0:
                self._stack.periods.remove_before(last_period(self._positions.state))
        except NotFiniteError as error:
            raise self._divergence(str(error)) from error
        except DiskFullError as error:
            if self._settings.on_full == "stop":
                raise
            self._unsaved.append(step)
            self._report.say(f"trained on without a checkpoint: {error}")

    def _write_replicas(self, folder: Path) -> None:
        if self._retiering is not None:
            self._retiering.save(folder, len(self._ahead))

    def _report_metrics(self) -> None:
        step = self._training.step
        values = self._window.metrics()
        self._call("on_metrics", values)
        self._training.metrics = values
        self._metrics_steps = (self._metrics_steps[1], step)
        self._report.metrics("train", step, values)
        self._report_lines()
        if not math.isfinite(values["loss"]):
            raise self._divergence()
        self._inputs.clear()

    def _divergence(self, what: str = "") -> RecdError:
        """The error that ends a run which cannot go on; every rank must call it."""
        step = self._training.step
        return divergence(self._stack, self._checkpoints, self._losses, self._inputs, step, what)

    def _report_profile(self) -> None:
        folder = self._settings.run
        self._parts = self._profile.finish(
            folder / "trace.json.gz" if dist.get_rank() == 0 else None
        )
        self._report.keep("timeline.json", json.dumps({"ranks": self._profile.timeline}) + "\n")
        self._report.values("profile", self._training.step, self._parts)
        for line in explain_breakdown(self._parts):
            self._report.say(line)

    def _evaluate(self) -> dict[str, float] | None:
        """Metrics on the test split, unless it is empty; the batches in flight wait meanwhile."""
        model, pipeline, device = self._job.model, self._job.pipeline, self._job.device
        training = self._training
        at = self._positions.state if self._stack.periods else None
        loader = self._stack.loader(training.rank, training.world_size, "test", at)
        check_lengths(loader, "test")
        limit = self._settings.eval_batches or len(loader)
        if not len(loader):
            self._report.say("the test split is empty: nothing to evaluate")
            return None
        window = LabelMetrics(device, self._stack.schema.targets, auc_samples=None)
        pipeline.detach()
        model.eval()
        with torch.no_grad(), closing(loader):
            for _, batch in zip(range(limit), loader, strict=False):
                self._watchdog.mark(f"a batch of the evaluation after step {training.step}")
                self._check(batch)
                training.batch = self._callbacks.on_batch(training, batch, "test")
                _, outputs = model(training.batch.to(device))
                training.outputs = tuple(outputs)
                window.add(*outputs)
                self._call("after_evaluation_step")
        model.train()
        pipeline.attach(sparse_dist=False)  # the ids of the batches in flight are exchanged already
        self._watchdog.mark(f"the metrics of the evaluation after step {training.step}")
        values = window.metrics()
        self._evaluated = training.step
        self._call("on_evaluation", values)
        self._report.metrics("test", training.step, values)
        self._report.values("calibration", training.step, {"labels": window.calibration})
        self._report_lines()
        return values


def evaluates_again(reached: ReachedState, settings: TrainSettings) -> bool:
    """Whether the step that was reached is due for an evaluation and its checkpoint was made before
    the evaluation, so that this is reported again."""
    step, every = reached.step, settings.eval_every
    due = step == settings.steps or (bool(every) and step % every == 0)
    ended = reached.same_end and bool(reached.so_far.get("ended"))
    return (due or ended) and not reached.so_far.get("evaluated", False)
