"""What runs on a rank of the emulated cluster: the sides' steps, and what leaves its node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from benchmarks.cluster.network import bytes_sent
from benchmarks.combined.additions import PLAIN, OnCluster
from benchmarks.recd_train.ranks import TrainSteps, take_turns
from benchmarks.recd_train.workload import TrainSide

__all__ = ["NodeSteps", "on_nodes"]


@dataclass(frozen=True, kw_only=True)
class NodeSteps:
    """The steps of all sides, on one rank."""

    sides: Mapping[str, TrainSteps]
    dense: int
    """Bytes that leave the node where all ranks reduce the gradients of the dense parameters, by
    the link's counter: every side's steps have as many."""


def on_nodes(
    workload: OnCluster, sides: Mapping[str, TrainSide], rounds: int, batches: int
) -> NodeSteps:
    steps = take_turns(
        workload,
        sides,
        rounds=rounds,
        batches=batches,
        counted=batches,
        weighed=1,
        sent=bytes_sent,
        profiled=(PLAIN,),
    )
    # Plain TorchRec all-reduces nothing but the dense gradients.
    size = sum(steps[PLAIN].traffic["all_reduce"].values())
    gradients = torch.zeros(round(size) // 4)
    dist.barrier()
    before = bytes_sent()
    dist.all_reduce(gradients)
    dist.barrier()
    return NodeSteps(sides=steps, dense=bytes_sent() - before)
