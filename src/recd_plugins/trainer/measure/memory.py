"""A rank's memory: its peak, and who owns how much of it.

The owners are tables, their optimizer, replicas, dense parameters and the rest. The peak is the
device's on CUDA, and that of the resident set on the CPU.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from recd_plugins.compat.fused_kernels import kernel_tensors
from recd_plugins.compat.made_of_parts import every_module
from recd_plugins.launch.processes import own_memory
from recd_plugins.tiers.collections.tiered_module import TieredModule

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = [
    "OTHER",
    "OWNERS",
    "PeakMemory",
    "memory_owners",
]

OTHER = "other"
OWNERS = (
    *("tables", "table optimizer", "replicas", "dense", "gradients", "dense optimizer"),
    OTHER,
)
"""The owners of memory: rows of tables at home on the rank, the fused optimizer's state of these,
copies of hot rows and their state, dense parameters and buffers, their gradients as they are after
a step, the dense optimizer's state; and the rest of the peak."""


def memory_owners(model: nn.Module, dense: Optimizer) -> dict[str, int]:
    """The bytes on this rank by owner, without `OTHER`; a storage that owners share counts for the
    first of them."""
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
    for module in every_module(model):
        if isinstance(module, TieredModule):
            yield from module.tiers.copies()


def _plain(values: Iterable[object]) -> Iterator[Tensor]:
    """The tensors that are not sharded; sharded ones are views of the kernels' tensors."""
    return (one for one in values if type(one) in (Tensor, nn.Parameter))  # type: ignore[misc]


def _bytes(tensors: Iterable[Tensor], seen: set[int]) -> int:
    """The bytes of the tensors' storages that are not in `seen` yet."""
    found = 0
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_meta:
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            found += storage.nbytes()
    return found


class PeakMemory:
    """The peak of memory since it was made, in bytes.

    On CUDA this is what torch's allocator has handed out. On the CPU it is the resident set; on
    Linux since `clear_refs` was written, or since the process started if that cannot be written.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self.level = torch.cuda.memory_allocated(device)
            """The bytes in use when it was made."""
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # VmHWM falls to VmRSS
            self.level = own_memory("VmRSS") or _max_rss()

    def peak(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return own_memory("VmHWM") or _max_rss()

    def above(self) -> int:
        """The bytes by which the peak exceeds the level."""
        return max(0, self.peak() - self.level)


def _max_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
