"""The tensors of a job that a checkpoint holds: of the model, and of the states of its
optimizers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torchrec.distributed.types import ShardedTensor

from recd_plugins.errors import DataError
from recd_plugins.trainer.assemble import Job
from recd_plugins.trainer.checkpoints.storage import JsonReader

__all__ = [
    "begin_anew",
    "bytes_to_write",
    "fill",
    "materialise",
    "not_finite",
    "restore",
    "tensors_of",
]

PIECE = 1 << 22
"""How many numbers are checked at a time."""


def tensors_of(job: Job) -> dict[str, Tensor | ShardedTensor]:
    """All tensors that a checkpoint holds, by a flat name."""
    tensors: dict[str, Any] = {
        f"model.{name}": value
        for name, value in job.model.state_dict().items()
        if isinstance(value, Tensor | ShardedTensor)
    }
    for name, states in job.optimizer.state_dict()["state"].items():
        for key, value in states.items():
            if isinstance(value, Tensor | ShardedTensor):
                tensors[f"optimizer.{name}/{key}"] = value
    return tensors


def bytes_to_write(tensors: Mapping[str, Tensor | ShardedTensor]) -> int:
    """About how many bytes this rank writes of them; rank 0 writes the tensors that all ranks
    have."""
    first = dist.get_rank() == 0
    return sum(
        sum(shard.tensor.nbytes for shard in value.local_shards())
        if isinstance(value, ShardedTensor)
        else value.nbytes * first
        for value in tensors.values()
    )


def not_finite(job: Job, tensors: Mapping[str, Tensor | ShardedTensor]) -> list[str]:
    """The parameters of which this rank's part has numbers that are not finite."""
    found = []
    for name, parameter in job.model.named_parameters():
        value = tensors.get(f"model.{name}")
        if value is None or not parameter.requires_grad:
            continue
        parts = (
            [shard.tensor for shard in value.local_shards()]
            if isinstance(value, ShardedTensor)
            else [value]
        )
        if not all(_is_finite(part) for part in parts):
            found.append(name)
    return found


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite, checked piece by piece: a table may be larger than memory."""
    if not tensor.numel():
        return True
    rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    each = max(1, len(rows) * PIECE // rows.numel())
    return bool(torch.stack([piece.isfinite().all() for piece in rows.split(each)]).all())


def materialise(job: Job) -> None:
    """Have optimizers that make their state in their first step (Adam) make it now."""
    for _, optimizer in job.optimizer.optimizers:
        if not optimizer.state_dict()["state"] and hasattr(optimizer, "init_state"):
            optimizer.init_state()


def begin_anew(job: Job, kept: Collection[str], numbers: Mapping[str, Any]) -> list[str]:
    """The parameters of this rank that another optimizer stepped before: their states begin anew.
    Tables are such parameters if one plan has them data-parallel and the other does not.

    The states of such dense parameters are removed here, and their first step makes them again. So
    are the states that the checkpoint lacks because a parameter had no gradient before it.
    """
    had: dict[str, set[str]] = {}
    for one in kept:
        name, _, key = one.rpartition("/")
        had.setdefault(name, set()).add(key)
    tables = job.model.fused_optimizer.params
    found = []
    for name, states in job.optimizer.state_dict()["state"].items():
        before = had.get(f"optimizer.{name}", set())
        if not before.isdisjoint(states) or name in numbers["states"]:
            continue
        if name not in tables:
            job.dense.state.pop(job.optimizer.params[name])
        # SGD of tables has no states, and the checkpoint has its rates.
        was_table = name in numbers["tables"]
        if before or (states if name in tables else was_table):
            found.append(name)
    return found


def restore(
    job: Job, tensors: Mapping[str, Tensor | ShardedTensor], beside: Mapping[str, Any]
) -> None:
    """Load the tensors, which `dcp.load` filled in place, into modules and optimizers that hold
    copies, and load the values `beside` them into the model."""
    of_model = {
        name.removeprefix("model."): v for name, v in tensors.items() if name[:6] == "model."
    }
    job.model.load_state_dict({**of_model, **beside})
    state = job.optimizer.state_dict()
    for name, states in state["state"].items():
        for key in states:
            filled = tensors.get(f"optimizer.{name}/{key}")
            if filled is not None:
                states[key] = filled
    job.optimizer.load_state_dict(state)


def fill(tensors: dict[str, Tensor | ShardedTensor], reader: JsonReader, path: Path) -> None:
    """Fill the tensors from the checkpoint at `path`; `DataError` if it does not fit them."""
    try:
        dcp.load(tensors, storage_reader=reader)
    except dcp.api.CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, DataError):
            raise first from error
        raise DataError(
            f"{path}: does not fit this model, or is damaged ({type(first).__name__}: "
            f"{first}). Resume with the registry that made it (job.json holds it), or remove "
            "the folder, and --resume takes the one before."
        ) from error
