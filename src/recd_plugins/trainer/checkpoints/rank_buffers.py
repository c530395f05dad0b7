"""Buffers of a model that differ between ranks, such as the running statistics of a batch norm:
TorchRec's data-parallel wrapper does not broadcast them.

A checkpoint has those of rank 0 under their own names, and those of rank N as `rank-N/NAME`. A new
rank takes those of rank 0.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torchrec.distributed.types import ShardedTensor

from recd_plugins.trainer.checkpoints.extra_states import EXTRA

__all__ = ["as_named", "buffer_digests", "differing", "is_of_a_rank", "own_of"]

T = TypeVar("T")

OF_RANK = "rank-{}/"
"""The start of the name that a rank's own buffer has in a checkpoint."""


def buffer_digests(model: nn.Module, tensors: Mapping[str, Tensor | ShardedTensor]) -> list[str]:
    """The names of a model's buffers, and of its modules' extra states, that are among a
    checkpoint's `tensors`; each follows a digest of its numbers."""
    named = {f"model.{name}": one for name, one in model.named_buffers()}
    named |= {name: one for name, one in tensors.items() if name.endswith(EXTRA)}
    return [
        f"{_digest(one)} {name}"
        for name, one in named.items()
        if name in tensors and not isinstance(tensors[name], ShardedTensor)
    ]


def differing(digests: Collection[Collection[str]]) -> set[str]:
    """The names of buffers that are not the same on all ranks, from their digests on each rank."""
    on_all = Counter(one for each in digests for one in each)
    return {one.partition(" ")[2] for one, ranks in on_all.items() if ranks < len(digests)}


def as_named(tensors: Mapping[str, T], own: Collection[str], rank: int) -> dict[str, T]:
    """The tensors of a rank by their names in a checkpoint; those in `own` belong to only this
    rank."""
    prefix = OF_RANK.format(rank) if rank else ""
    return {f"{prefix}{name}" if name in own else name: one for name, one in tensors.items()}


def is_of_a_rank(name: str) -> bool:
    """Whether a checkpoint's tensor belongs to only one rank."""
    return name.startswith(OF_RANK.partition("{")[0])


def own_of(kept: Collection[str], rank: int) -> set[str]:
    """The names of a rank's own buffers, in a checkpoint whose tensors have the names `kept`."""
    prefix = OF_RANK.format(rank)
    return {name.removeprefix(prefix) for name in kept if name.startswith(prefix)}


def _digest(tensor: Tensor) -> str:
    numbers = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(numbers.view(torch.uint8).numpy().data).hexdigest()
