"""The training job of one rank: what `recd train` runs and a user's trainer may copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from recd_plugins.errors import RegistryError
from recd_plugins.launch.environment import check_rank
from recd_plugins.planning.planner_bases import agreed
from recd_plugins.stack import Stack
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.checkpoints.checkpoint import Checkpoints, Reached
from recd_plugins.trainer.checkpoints.positions import Positions, closing
from recd_plugins.trainer.checkpoints.reshard import resumed_position
from recd_plugins.trainer.loop import Loop, evaluates_again
from recd_plugins.trainer.run_folder import RunReport, check_resumable, set_aside
from recd_plugins.trainer.run_lock import RunLock

__all__ = ["process_group", "train"]


@contextmanager
def process_group(stack: Stack) -> Iterator[torch.device]:
    """Join the group that the launcher's environment names (torchrun's variables)."""
    settings = stack.registry.train
    check_rank()
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
    callbacks = stack.callbacks()
    with RunLock(settings.run) as lock, closing(stack.loader(rank, world_size)) as loader:
        agreed(lock.take)
        job = assemble(stack, device)
        reached: Reached | None = None
        lost: list[str] = []
        if resume:
            check_resumable(settings.run)
            latest, lost = checkpoints.whole(settings.on_damaged)
            reached = checkpoints.load(job, latest)
            if reached.step > settings.steps:
                raise RegistryError(
                    f"train.steps: {latest} is past step {settings.steps} already; raise "
                    "train.steps to train on."
                )
            loader.load_state_dict(resumed_position(loader.state_dict(), reached.loader))
        moved = set_aside(settings.run) if rank == 0 and not resume else None
        report = RunReport(
            settings.run,
            speaks=rank == 0,
            steps=settings.steps,
            reached=reached,
            again=reached is not None and evaluates_again(reached, settings),
        )
        report.say(stack.explain())
        if moved:
            report.say(f"the run before is now {moved}")
        for one in lost:
            report.say(f"a damaged checkpoint is passed over: {one}")
        went_on = f"resumed after step {reached.step}" if reached else "a new run"
        report.say(f"{went_on}: {settings.run}")
        dist.barrier()
        positions = Positions(loader, settings.steps - (reached.step if reached else 0))
        loop = Loop(stack, job, checkpoints, report, positions, reached, callbacks)
        summary = loop.run()
        report.close(summary)
        return summary
