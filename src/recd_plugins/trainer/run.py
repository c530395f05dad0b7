"""The training job of one rank: what `recd train` runs and a user's trainer may copy."""

from __future__ import annotations

import dataclasses
import math
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from recd_plugins.errors import RecdError, RegistryError
from recd_plugins.stack import Stack
from recd_plugins.trainer.assemble import Job, assemble
from recd_plugins.trainer.checkpoint import Checkpoints
from recd_plugins.trainer.metrics import Metrics, Window
from recd_plugins.trainer.positions import Positions
from recd_plugins.trainer.report import Report, defined
from recd_plugins.trainer.runs import check_resumable, set_aside
from recd_plugins.trainer.stop import StopSignal

__all__ = ["process_group", "train"]


@contextmanager
def process_group(stack: Stack) -> Iterator[torch.device]:
    """Join the group that the launcher's environment names (torchrun's variables)."""
    settings = stack.registry.train
    local, locals_ = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if stack.device == "cuda":
        if local >= torch.cuda.device_count():
            raise RegistryError(
                f"train.ranks: local rank {local} has no GPU, there are "
                f"{torch.cuda.device_count()}. Lower --ranks, or set train.device=cpu."
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(settings.threads or max(1, (os.cpu_count() or 1) // locals_))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def train(stack: Stack, device: torch.device, *, resume: bool = False) -> dict[str, Any]:
    """Train the registry's model over the current process group; the summary."""
    settings = stack.registry.train
    rank, world_size = dist.get_rank(), dist.get_world_size()
    checkpoints = Checkpoints(
        settings.run / "checkpoints",
        keep=settings.keep_checkpoints,
        registry=stack.registry.source.values,
    )
    loader = stack.loader(rank, world_size)
    job = assemble(stack, device)
    start = 0
    if resume:
        check_resumable(settings.run)
        latest = checkpoints.latest()
        start, position = checkpoints.load(job, latest)
        if start > settings.steps:
            raise RegistryError(
                f"train.steps: {latest} is past step {settings.steps} already; raise train.steps "
                "to train on."
            )
        loader.load_state_dict(position)
    moved = set_aside(settings.run) if rank == 0 and not resume else None
    report = Report(settings.run, speaks=rank == 0, steps=settings.steps, start=start)
    report.say(stack.explain())
    if moved:
        report.say(f"the run before is now {moved}")
    report.say(f"{'resumed after step ' + str(start) if resume else 'a new run'}: {settings.run}")
    dist.barrier()
    loop = _Loop(stack, job, checkpoints, report, Positions(loader, settings.steps - start))
    summary = loop.run(start)
    report.close(summary)
    return summary


class _Loop:
    """Steps, with logging, evaluation and checkpoints between them."""

    def __init__(
        self,
        stack: Stack,
        job: Job,
        checkpoints: Checkpoints,
        report: Report,
        positions: Positions,
    ) -> None:
        self._stack = stack
        self._settings = stack.registry.train
        self._job = job
        self._checkpoints = checkpoints
        self._report = report
        self._positions = positions
        self._rates: list[float] = []

    def run(self, start: int) -> dict[str, Any]:
        stop = StopSignal()
        step = saved = start
        try:
            step, saved, metrics = self._steps(start, stop)
        finally:
            stop.close()
        settings = self._settings
        if saved != step:
            self._checkpoints.save(self._job, step, self._positions.state)
        finished = step == settings.steps
        test = self._evaluate(step) if finished else None
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
            "peak_memory_mib": _peak_memory(self._job.device) / 2**20,
            "run": str(settings.run),
        }

    def _steps(self, start: int, stop: StopSignal) -> tuple[int, int, Metrics | None]:
        """Train to the end or the stop; the step reached, that last saved, the last metrics."""
        settings, step, saved = self._settings, start, start
        window = Window(self._job.device)
        metrics: Metrics | None = None
        began = time.perf_counter()
        while step < settings.steps and not stop.agreed():
            loss, logits, labels, weights = self._step()
            step += 1
            window.add(loss, logits, labels, weights)
            if step % settings.log_every == 0 or step == settings.steps:
                metrics = window.metrics()
                rate = metrics.samples / (time.perf_counter() - began)
                self._rates.append(rate)
                self._report.metrics("train", step, metrics, rate)
                _check_finite(metrics, step)
            if settings.checkpoint_every and step % settings.checkpoint_every == 0:
                self._checkpoints.save(self._job, step, self._positions.state)
                saved = step
            if settings.eval_every and step % settings.eval_every == 0 and step < settings.steps:
                self._evaluate(step)
            if step % settings.log_every == 0:
                began = time.perf_counter()  # evaluation and checkpoints do not count
        return step, saved, metrics

    def _step(self) -> tuple[torch.Tensor, ...]:
        loss, logits, labels, weights = self._job.pipeline.progress(self._positions)
        self._positions.trained()
        return loss, logits, labels, weights

    def _evaluate(self, step: int) -> Metrics | None:
        """Metrics on the test split, unless it is empty; the batches in flight wait meanwhile."""
        model, pipeline, device = self._job.model, self._job.pipeline, self._job.device
        loader = self._stack.loader(dist.get_rank(), dist.get_world_size(), "test")
        limit = self._settings.eval_batches or len(loader)
        if not len(loader):
            self._report.say("the test split is empty: nothing to evaluate")
            return None
        window = Window(device, auc_samples=None)
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


def _check_finite(metrics: Metrics, step: int) -> None:
    if not math.isfinite(metrics.loss):
        raise RecdError(
            f"the loss is {metrics.loss} by step {step}: training diverged. Lower "
            "train.optimizer.tables_lr or dense_lr; checkpoints before it are whole."
        )


def _peak_memory(device: torch.device) -> int:
    """Bytes: of the device where it counts them, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
