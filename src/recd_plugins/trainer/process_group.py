"""The process group of a rank that a launcher started, and what the rank may use there: its device,
its threads, its open files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import torch
import torch.distributed as dist

from recd_plugins.errors import CapabilityError, so_many, without_frames
from recd_plugins.launch.environment import check_rank, meeting_place
from recd_plugins.launch.first_failure import left_failures
from recd_plugins.notices import noticed_if_long
from recd_plugins.registry.capability import check_gpus
from recd_plugins.stack import Stack
from recd_plugins.trainer.elastic import attempt_store

__all__ = ["process_group"]

LONG = 30.0
"""Seconds after which a rank says whom it waits for, as variables of an earlier job that a shell
still has would have it wait half an hour."""


@contextmanager
def process_group(stack: Stack) -> Iterator[torch.device]:
    """Join the group that the launcher's environment names (torchrun's variables)."""
    settings = stack.registry.train
    check_rank()
    local, locals_ = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if stack.device == "cuda":
        check_gpus(local + 1)
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    threads = settings.threads_of_each(locals_)  # torchrun has both begin with one
    torch.set_num_threads(threads)
    pa.set_cpu_count(threads)
    _open_as_many_files_as_allowed()
    backend = "nccl" if device.type == "cuda" else "gloo"
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        if (store := attempt_store(settings.hang_after)) is None:
            with noticed_if_long(LONG, _waits(rank, world_size)):
                dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    except dist.DistError as error:
        raise CapabilityError(
            f"RANK is set, so this is rank {rank} of {so_many(world_size, 'rank')}, which do not "
            f"meet at {meeting_place()} ({without_frames(error)}). Start all of them, as torchrun "
            "does, with a host that all reach and a free port (MASTER_ADDR, MASTER_PORT); or unset "
            "RANK, and the ranks of this machine are started here."
        ) from error
    try:
        with left_failures():
            yield device
    finally:
        dist.destroy_process_group()


def _waits(rank: int, world_size: int) -> str:
    return (
        f"RANK is set, so this is rank {rank} of {so_many(world_size, 'rank')}, and has waited "
        f"{LONG:.0f} s to meet the others at {meeting_place()}. If the variables are left from "
        "another job, unset RANK, and the ranks of this machine are started here."
    )


def _open_as_many_files_as_allowed() -> None:
    """Allow as many open files as the system permits. Each tensor of a batch from a reader's
    workers is an open file until it is released, and a window of hot batches may need more than the
    usual limit of 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS says that there is no limit, and has one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
