"""A rank of `recd doctor`'s try at collectives: `python -m recd_plugins.launch.try_collectives`."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from recd_plugins.launch.environment import die_with_parent
from recd_plugins.launch.first_failure import left_failures

__all__ = ["probe"]


def probe() -> None:
    """All-to-all and all-reduce over the launcher's group, by NCCL where each rank has a device; an
    error if a number is wrong."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = "nccl" if torch.cuda.device_count() >= world_size else "gloo"
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(backend)
    sent = torch.arange(world_size, device=device, dtype=torch.float32) + rank * world_size
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    expected = torch.arange(world_size, device=device) * world_size + rank
    if not torch.equal(got, expected.to(got)):
        raise RuntimeError(f"rank {rank}: all-to-all gave {got.tolist()}")
    total = torch.ones((), device=device)
    dist.all_reduce(total)
    if int(total) != world_size:
        raise RuntimeError(f"rank {rank}: all-reduce gave {int(total)} of {world_size}")
    dist.destroy_process_group()


if __name__ == "__main__":
    die_with_parent()
    with left_failures():
        probe()
