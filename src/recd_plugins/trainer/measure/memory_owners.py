"""Whose a rank's memory is: tables, their optimizer, replicas, dense parameters, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from recd_plugins.compat.torchrec import kernel_tensors
from recd_plugins.tiers.tier_collections import TieredModule

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["OTHER", "OWNERS", "memory_owners"]

OTHER = "other"
OWNERS = (
    *("tables", "table optimizer", "replicas", "dense", "gradients", "dense optimizer"),
    OTHER,
)
"""Whose memory it can be: rows of tables at home on the rank, the fused optimizer's state of these,
copies of hot rows and their state, dense parameters and buffers, gradients of these as they lie
after a step, the dense optimizer's state; and what is left of the peak."""


def memory_owners(model: nn.Module, dense: Optimizer) -> dict[str, int]:
    """Bytes that lie on this rank, by owner but `OTHER`; what is shared counts for the first."""
    seen: set[int] = set()
    parameters = list(model.parameters())
    kernels = list(kernel_tensors(model))
    held: dict[str, Iterable[Tensor]] = {
        "tables": [one for rows, one in kernels if rows],
        "table optimizer": [one for rows, one in kernels if not rows],
        "replicas": _replicas(model),
        "dense": [*_plain(parameters), *_plain(model.buffers())],
        "gradients": [one.grad for one in parameters if one.grad is not None],
        "dense optimizer": _plain(
            value for state in dense.state.values() for value in state.values()
        ),
    }
    return {owner: _bytes(tensors, seen) for owner, tensors in held.items()}


def _replicas(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, TieredModule):
            yield from module.tiers.copies()


def _plain(values: Iterable[object]) -> Iterator[Tensor]:
    """Tensors that lie here: sharded ones are views of what kernels have."""
    return (one for one in values if type(one) in (Tensor, nn.Parameter))  # type: ignore[misc]


def _bytes(tensors: Iterable[Tensor], seen: set[int]) -> int:
    """Of the storages that were not seen before."""
    found = 0
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_meta:
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            found += storage.nbytes()
    return found
