"""What runs on a rank of the emulated cluster: the sides' steps, and what leaves its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.cluster.network import bytes_sent
from benchmarks.combined.additions import PLAIN, OnCluster
from benchmarks.recd_train.ranks import TrainSteps, take_turns
from benchmarks.recd_train.workload import TrainSide
from recd_plugins.dense_gradients.data_parallel import DTYPES
from recd_plugins.dense_gradients.once_a_node import OnceANode

__all__ = ["NodeSteps", "on_nodes"]


@dataclass(frozen=True, kw_only=True)
class NodeSteps:
    """The steps of all sides, on one rank."""

    sides: Mapping[str, TrainSteps]
    dense: Mapping[tuple[bool, str], int]
    """Bytes that leave the node when all ranks reduce the gradients of the dense parameters, by the
    link's counter: with DDP's ring over all ranks, or if they cross nodes once (True), in each
    precision."""

    def besides(self, name: str) -> float:
        """Bytes of a side's step that leave the node, without those of dense gradients."""
        side = self.sides[name]
        return side.sent - self.dense[side.dense_once, side.dense_kind]


def on_nodes(
    workload: OnCluster, sides: Mapping[str, TrainSide], rounds: int, batches: int
) -> NodeSteps:
    steps = take_turns(
        workload,
        sides,
        rounds=rounds,
        batches=batches,
        lead_in=1,
        counted=batches,
        weighed=1,
        sent=bytes_sent,
        profiled=(PLAIN,),
    )
    # Plain TorchRec all-reduces nothing but the dense gradients.
    size = sum(steps[PLAIN].traffic["all_reduce"].values())
    gradients = torch.zeros(round(size) // 4)
    world = dist.group.WORLD
    assert world is not None
    ways: dict[tuple[bool, str], Callable[[], object]] = {}
    for name, kind in {"fp32": torch.float32, **DTYPES}.items():
        once = OnceANode(world, workload.ranks_per_node, kind)
        ways[False, name] = partial(dist.all_reduce, gradients.to(kind))
        ways[True, name] = partial(_reduce, once, gradients)
    return NodeSteps(sides=steps, dense={way: _leaves(call) for way, call in ways.items()})


def _reduce(once: OnceANode, gradients: Tensor) -> None:
    once.all_reduce(gradients).wait()


def _leaves(call: Callable[[], object]) -> int:
    """Bytes that leave the node during a call that all ranks make."""
    dist.barrier()
    before = bytes_sent()
    call()
    dist.barrier()
    return bytes_sent() - before
