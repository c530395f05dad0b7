"""Model, plan, optimizers and pipeline: made of standard TorchRec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from recd_plugins.compat.fused_kernels import leave_weights
from recd_plugins.compat.tracing import keep_traces_apart
from recd_plugins.errors import CapabilityError, PluginError, RegistryError, listed
from recd_plugins.planning.sharders import left_whole
from recd_plugins.stack import Stack
from recd_plugins.trainer.dense_optimizer import dense_optimizer
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers
from recd_plugins.trainer.outputs_check import watch_outputs

__all__ = ["Job", "assemble", "with_sync_batch_norm"]


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
    watch_outputs(model, stack.registry.one("model").who)
    if settings.sync_batch_norm:
        model = with_sync_batch_norm(model, device)
    model = stack.adapt(model)
    initialisers = table_initialisers(model)
    plan = stack.plan(model, sharders=stack.default_sharders())
    if not plan.plan and (whole := left_whole(model, stack.default_sharders(), plan)):
        raise PluginError(
            f"{stack.planned_by}: its `plan` places no table at all, but the model has some in "
            f"{listed(whole, kind='module')}. Return a place for every table."
        )
    sharded = DistributedModelParallel(
        model,
        device=device,
        plan=plan,
        sharders=stack.sharders(),
        data_parallel_wrapper=stack.data_parallel(),
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
    keep_traces_apart()
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
            "train.batch_size samples; or train on one rank, whose batch is the whole one."
        )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted
