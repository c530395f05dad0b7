"""Model, plan, optimizers and pipeline: made of standard TorchRec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from recd_plugins.compat.pytorch import first_step_in_parts
from recd_plugins.compat.torchrec import leave_weights
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.stack import Stack
from recd_plugins.trainer.dense_optimizer import dense_optimizer
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

__all__ = ["Job", "assemble", "with_sync_batch_norm"]

DENSE_PARTS = 8
"""Parts that ranks all-reduce the dense gradients in: all but the last travel beside backward."""
LEAST_PART, MOST_PART = 1 << 18, 25 << 20
"""Bytes of a part: an all-reduce of fewer takes hardly less time, one of more is torch's own."""


@dataclass
class Job:
    """One rank's part of a training job."""

    model: DistributedModelParallel
    optimizer: CombinedOptimizer
    dense: torch.optim.Optimizer
    """The part of `optimizer` that is torch's own."""
    pipeline: TrainPipelineSparseDist[Any, Any]
    plan: ShardingPlan
    device: torch.device


def assemble(stack: Stack, device: torch.device) -> Job:
    """Build the registry's model over the current process group, seeded alike on every rank."""
    settings = stack.registry.train
    torch.manual_seed(settings.seed)
    model = stack.model()
    if settings.sync_batch_norm:
        model = with_sync_batch_norm(model, device)
    model = stack.adapt(model)
    initialisers = table_initialisers(model)
    plan = stack.plan(model, sharders=stack.default_sharders())
    sharded = DistributedModelParallel(
        model,
        device=device,
        plan=plan,
        sharders=stack.sharders(),
        data_parallel_wrapper=_in_parts(stack.dense_bytes),
    )
    leave_weights(sharded)
    initialise_tables(sharded, initialisers, settings.seed)
    dense: list[torch.optim.Optimizer] = []
    parameters = dict(in_backward_optimizer_filter(sharded.named_parameters()))

    def make(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        dense.append(dense_optimizer(stack, params))
        return dense[0]

    optimizer = CombinedOptimizer(
        [sharded.fused_optimizer, KeyedOptimizerWrapper(parameters, make)]
    )
    pipeline = TrainPipelineSparseDist(sharded, optimizer, device)
    # Dropout and the like draw differently on each rank from here on.
    torch.manual_seed(settings.seed + 1 + dist.get_rank())
    return Job(
        model=sharded,
        optimizer=optimizer,
        dense=dense[0],
        pipeline=pipeline,
        plan=plan,
        device=device,
    )


def _in_parts(dense_bytes: int) -> DefaultDataParallelWrapper:
    """Has ranks all-reduce so many bytes of gradients part by part, as soon as backward has one.

    TorchRec's default is 25 MB by one call, so that of a smaller model no gradient travels before
    the last one is there.
    """
    size = min(max(dense_bytes / DENSE_PARTS, LEAST_PART), MOST_PART)
    mib: Any = size / (1 << 20)  # torch takes a part of a MiB, whatever its types say
    return DefaultDataParallelWrapper(bucket_cap_mb=mib, ddp_kwargs=first_step_in_parts(mib))


def with_sync_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with its BatchNorms over the batches of all ranks."""
    # The base class of BatchNorm1d to 3d has no public name but this one's bases.
    if not any(isinstance(part, nn.BatchNorm1d.__bases__) for part in model.modules()):
        raise RegistryError(
            "the model has no BatchNorm module, so there is nothing to synchronise. Leave it out.",
            "train.sync_batch_norm",
        )
    if device.type != "cuda":
        raise CapabilityError(
            "train.sync_batch_norm: torch's SyncBatchNorm runs on CUDA alone, and this job runs on "
            f"{device.type}. Set it to false: each rank then normalises over its own batch of "
            "train.batch_size samples; or train on one rank, whose batch is the whole."
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted
