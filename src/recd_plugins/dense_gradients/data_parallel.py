"""The `data_parallel_wrapper` for DistributedModelParallel, which decides whether dense gradients
cross nodes once."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.types import ShardingEnv

from recd_plugins.compat.pytorch import backend_of, first_step_in_parts
from recd_plugins.dense_gradients.once_a_node import OnceANode
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.explain.words import in_bytes

__all__ = ["DenseGradients"]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""The type in which gradients are sent, by the value of `allreduce_comm_precision`."""
COMPRESS = {torch.float16: fp16_compress_hook, torch.bfloat16: bf16_compress_hook}
PARTS = 8
"""The number of parts in which ranks all-reduce the dense gradients: all but the last are sent
during backward."""
LEAST_PART, MOST_PART = 1 << 18, 25 << 20
"""Limits of the bytes of a part: an all-reduce of fewer takes hardly less time; the largest is
torch's own default."""


class DenseGradients(DefaultDataParallelWrapper):
    """TorchRec's own wrapper, with a DDP that all-reduces gradients part by part, as soon as
    backward has computed a part, and across nodes once where that pays.

    TorchRec's default is 25 MB per call. With a smaller model, no gradient is then sent before the
    last one is there.

    Gradients cross nodes once on several nodes with several ranks each, where gloo's ring over all
    ranks would send more bytes over the links between nodes, and by the topology would take longer.
    NCCL has hierarchies of its own and is left alone. If gradients are sent in fewer bits, as
    `allreduce_comm_precision` says, and cross nodes once, only what goes between nodes has fewer
    bits.
    """

    def __init__(self, dense_bytes: int, topology: Topology, **options: Any) -> None:
        """`options` are those of TorchRec's wrapper."""
        size = min(max(dense_bytes / PARTS, LEAST_PART), MOST_PART)
        mib: Any = size / (1 << 20)  # torch takes a part of a MiB, whatever its types say
        if "bucket_cap_mb" not in options:
            given = options.get("ddp_kwargs") or {}
            options |= {"bucket_cap_mb": mib, "ddp_kwargs": first_step_in_parts(mib) | given}
        # `wrap` registers the hook that TorchRec's wrapper would register, or another one.
        self._kind = DTYPES.get(options.pop("allreduce_comm_precision", None) or "")
        self._mixed = (options.get("ddp_kwargs") or {}).get("mixed_precision") is not None
        super().__init__(**options)
        self._dense_bytes = dense_bytes
        self._topology = topology
        self.once = False
        """Whether gradients cross nodes once."""
        self.explained = ""
        """How the gradients are reduced, and why, once a model is wrapped on several ranks."""

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Every rank must call this, as DistributedModelParallel does."""
        for one in dmp.children():
            if isinstance(one, DistributedDataParallel | FullyShardedDataParallel):
                self.explained = f"the trainer's own {type(one).__name__} reduces them"
                self._kind = None
                return
        group = env.process_group
        if group is None or group.size() == 1:
            self._kind = None  # nothing travels
            super().wrap(dmp, env, device)
            return
        found = self._across_nodes(group, device)
        super().wrap(dmp, env, device)
        if (ddp := _ddp(dmp)) is None:
            return
        kind = "" if self._kind is None else f" in {str(self._kind).removeprefix('torch.')}"
        if isinstance(found, str):
            if self._kind is not None:
                # Without NCCL, DDP refuses torch's bfloat16 hook by its name.
                hook = COMPRESS[self._kind]
                ddp.register_comm_hook(None, lambda state, bucket: hook(group, bucket))
            self.explained = (
                f"DistributedDataParallel all-reduces them over all ranks{kind}: {found}"
            )
            return
        ddp.register_comm_hook(None, OnceANode(group, found.ranks_per_node, self._kind).hook)
        self.once = True
        size = self._carried * self._dense_bytes
        once = 2 * (found.n_nodes - 1) / found.n_nodes * size
        ring = found.reduced_between_nodes / found.n_nodes * size
        self.explained = (
            f"they cross nodes once{kind}: {in_bytes(once)} leave each node in a step, where "
            f"gloo's ring over all ranks has {in_bytes(ring)}"
        )

    @property
    def handed(self) -> float:
        """The bytes of dense gradients that a rank hands to collectives in a step. If they cross
        nodes once, they have fewer bits only between nodes."""
        return self._dense_bytes if self.once else self._carried * self._dense_bytes

    @property
    def _carried(self) -> float:
        """The bytes per number in which gradients are sent, divided by those of float32."""
        return 1.0 if self._kind is None else self._kind.itemsize / torch.float32.itemsize

    def _across_nodes(self, group: ProcessGroup, device: torch.device) -> Cluster | str:
        """The cluster, if gradients cross its nodes once; or why they do not, as a clause. The
        answer is the same on all ranks."""
        if self._mixed:
            return "in mixed precision, by a hook that it has already"
        backend = backend_of(group, device.type)
        if device.type != "cpu" or backend != "gloo":
            return f"on {device.type}, {backend} arranges how they cross nodes"
        if group.size() != dist.get_world_size():
            return "the model is not on all ranks"
        try:
            topology = dataclasses.replace(self._topology, device="cpu")
            cluster = Cluster.of(topology, group.size())
            w = cluster.ranks_per_node
        except CapabilityError:
            w = 0
        # Nodes may have different numbers of ranks, so that their launchers say different things;
        # and each machine may have another topology in the file that registry.yaml names.
        slower = w > 0 and cluster.crosses_once(self._dense_bytes, self._carried)
        least = torch.tensor([w, -w, int(slower)], device="cpu")
        dist.all_reduce(least, dist.ReduceOp.MIN, group)
        fewest, most, everywhere = least.tolist()
        if not fewest or fewest != -most:
            return "nodes have different numbers of ranks"
        if cluster.n_nodes == 1:
            return "they are all on one node"
        if w == 1:
            return "each node has one"
        if not everywhere:
            return "by the topology, the links between nodes are too fast for more calls to pay"
        return cluster


def _ddp(dmp: nn.Module) -> DistributedDataParallel | None:
    return next((one for one in dmp.children() if isinstance(one, DistributedDataParallel)), None)
