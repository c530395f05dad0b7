"""`python -m recd_plugins.trainer.tuning.trial_rank`: one rank of a trial of `recd tune`."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import RecdError
from recd_plugins.launch.environment import die_with_parent
from recd_plugins.launch.processes import own_memory
from recd_plugins.notices import hide_warnings
from recd_plugins.storage.whole_file import write_whole

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch

__all__ = ["OUT_OF_MEMORY", "WARM_UP", "trial", "write_found"]

OUT_OF_MEMORY = "out-of-memory-"
"""The start of the name of the file by which a rank reports that memory did not suffice."""

WARM_UP = 2
"""Steps that are not timed, since the pipeline fills and optimizers make their states."""

HEADROOM = 2**29
"""How many bytes beyond twice the budget a rank on the CPU may ask for before it is refused."""


def trial(
    registry: Path,
    overrides: list[str],
    *,
    steps: int,
    budget: float,
    into: Path,
    until: float | None = None,
    window: int = 1,
) -> dict[str, Any]:
    """Train over the launcher's group; returns the largest peak of memory above its level, samples
    per second, the ids of a sample in the batch that has most of them, and for each step the
    slowest rank's seconds and the ranks' mean loss.

    It ends early if the mean of that loss over `window` steps is at most `until`. If memory does
    not suffice, a file in `into` says so.
    """
    import torch
    import torch.distributed as dist

    from recd_plugins.stack import load
    from recd_plugins.trainer.assemble import assemble
    from recd_plugins.trainer.checkpoints.positions import Positions
    from recd_plugins.trainer.measure.memory import PeakMemory
    from recd_plugins.trainer.process_group import process_group

    stack = load(registry, overrides)
    with process_group(stack) as device, _report_out_of_memory(into):
        loader = stack.loader(dist.get_rank(), dist.get_world_size())
        job = assemble(stack, device)
        positions = Positions(loader, WARM_UP + steps)
        # The level includes what reading holds for any batch: stripes, an advisor's sample.
        ids = [0.0]
        batches = _counted(chain([next(positions)], positions), ids)
        memory = PeakMemory(device)
        if device.type == "cpu":
            _refuse_beyond(2 * int(budget * 2**20) + HEADROOM)
        seconds, losses = [], []
        for step in range(1, WARM_UP + steps + 1):
            began = time.perf_counter()
            outputs = job.pipeline.progress(batches)
            positions.trained()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)
            losses.append(outputs[0].detach().double())
            if until is not None and step % window == 0:
                latest = torch.stack(losses[-window:]).mean()
                dist.all_reduce(latest)
                if float(latest) <= until * dist.get_world_size() and step > WARM_UP:
                    break
        # On CUDA this is all that torch holds; on the CPU what the steps add to the process.
        peak = memory.peak() if device.type == "cuda" else memory.above()
        worst = torch.tensor([peak, statistics.median(seconds[WARM_UP:]), max(ids)], device=device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        samples = stack.registry.train.batch_size * dist.get_world_size()
        slowest, mean = torch.tensor(seconds, device=device), torch.stack(losses)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        dist.all_reduce(mean)
        return {
            "memory_mib": float(worst[0]) / 2**20,
            "samples_per_second": samples / float(worst[1]),
            "ids_per_sample": float(worst[2]),
            "seconds": slowest.tolist(),
            "losses": (mean / dist.get_world_size()).tolist(),
        }


def _counted(batches: Iterator[Batch], ids: list[float]) -> Iterator[Batch]:
    """The batches; the ids of a sample of each are added to `ids`, except deduplicated ones."""
    for batch in batches:
        ids.append(batch.features.values().numel() / max(1, len(batch.labels)))
        yield batch


@contextmanager
def _report_out_of_memory(into: Path) -> Iterator[None]:
    """If memory did not suffice, write a file that says so before other ranks see this one end."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if _is_out_of_memory(error):
            (into / f"{OUT_OF_MEMORY}{os.getpid()}").touch()
        raise


def _refuse_beyond(more: int) -> None:
    """Have the system refuse torch more memory than this, so that a trial which is far too large
    does not exhaust the machine."""
    held = own_memory("VmData")
    if held is not None:  # only Linux counts what malloc asks for under RLIMIT_DATA
        limit = held + more
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if limit < (1 << 62 if hard == resource.RLIM_INFINITY else hard):  # a larger one has no use
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory did not suffice: torch raises a RuntimeError on the CPU, and its own error on
    CUDA."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("allocate memory" in text or "bad_alloc" in text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--registry", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--until", type=float, default=None)
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    options = vars(parser.parse_args())
    write_found(lambda: trial(**options), options["into"] / "trial.json")


def write_found(find: Callable[[], Any], file: Path) -> None:
    """Call `find` as a rank that ends with its parent; rank 0 writes the result as JSON."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a trial has nothing to save
    hide_warnings()
    try:
        found = find()
    except RecdError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if os.environ["RANK"] == "0":
        write_whole(file, json.dumps(found))


if __name__ == "__main__":
    main()
