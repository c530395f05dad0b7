"""Model, plan, optimizers and pipeline: made of standard TorchRec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from recd_plugins.compat.torchrec import leave_weights
from recd_plugins.errors import CapabilityError, RegistryError, nearest, shown
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.stack import Stack
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

__all__ = ["Job", "assemble", "dense_optimizer", "try_dense_optimizer", "with_sync_batch_norm"]


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
    sharded = DistributedModelParallel(model, device=device, plan=plan, sharders=stack.sharders())
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


def dense_optimizer(stack: Stack, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The registry's optimizer of what no fused optimizer updates: any of torch.optim, or that of
    its slot."""
    if (factory := stack.optimizer()) is not None:
        return factory(params)
    settings = stack.registry.train.optimizer
    if params:
        try_dense_optimizer(settings, params[0].device)
    return _made(_kind(settings), params, settings)


def _kind(settings: OptimizerSettings) -> Callable[..., torch.optim.Optimizer]:
    known = {name.lower(): kind for name, kind in _optimizers()}
    kind = known.get(settings.dense.lower())
    if kind is None:
        raise RegistryError(
            f"train.optimizer.dense: torch.optim has no {shown(settings.dense)} that takes dense "
            f"gradients step by step; {nearest(settings.dense.lower(), known)}"
        )
    return kind


def try_dense_optimizer(settings: OptimizerSettings, device: torch.device) -> None:
    """`RegistryError` where torch takes the options and fails by them in the first step."""
    kind = _kind(settings)
    small = nn.Parameter(torch.ones(2, 2, device=device))
    small.grad = torch.ones_like(small)
    optimizer = _made(kind, [small], settings)
    try:
        optimizer.step()
    except Exception as error:  # torch has many ways of saying it
        raise _refused(settings, error) from error


def _made(
    kind: Callable[..., torch.optim.Optimizer],
    params: list[nn.Parameter],
    settings: OptimizerSettings,
) -> torch.optim.Optimizer:
    try:
        return kind(params, lr=settings.dense_lr, **settings.dense_options)
    except Exception as error:
        raise _refused(settings, error) from error


def _refused(settings: OptimizerSettings, error: Exception) -> RegistryError:
    why = str(error).partition("\n")[0] or type(error).__name__
    return RegistryError(
        f"train.optimizer: torch.optim's {settings.dense} refuses the dense parameters with "
        f"lr={settings.dense_lr:g} and dense_options={shown(dict(settings.dense_options))}: {why}. "
        "Change dense_options, or choose another optimizer as `dense`."
    )


def _optimizers() -> Iterator[tuple[str, Callable[..., torch.optim.Optimizer]]]:
    # LBFGS evaluates the loss several times a step, SparseAdam takes sparse gradients alone.
    unfit = (torch.optim.LBFGS, torch.optim.SparseAdam, torch.optim.Optimizer)
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind not in unfit:
            yield name, kind
