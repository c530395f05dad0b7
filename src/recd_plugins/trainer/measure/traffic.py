"""Counts the bytes that a rank hands to each collective, as torch dispatches it.

Every collective of torch.distributed is an operator (`c10d::alltoall_base_`) on any backend,
whether TorchRec, DDP's reducer in C++ or a plugin calls it. So is the all-reduce that the host
makes of several. So nothing is patched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.module_tracker import ModuleTracker

from recd_plugins.compat.pytorch import TorchDispatchMode, argument_names, ranks_of, schema_of

__all__ = ["COLLECTIVES", "PHASES", "Traffic", "TrafficCounter"]

Traffic = Mapping[str, Mapping[str, float]]
"""Collective to phase to bytes; unused collectives and phases are left out."""

COLLECTIVES = {
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "isend": "send",
}
"""The start of an operator's name, to its collective; the first match counts."""

PHASES = ("ids", "forward", "backward")
"""ids: integers outside backward, that is splits, lengths and ids of sparse features."""

_NAMESPACES = ("c10d", "_c10d_functional", "recd_plugins")


class TrafficCounter(TorchDispatchMode):
    """While it is entered, adds up what this process hands to collectives.

    The whole operand counts, also the part that stays on the rank: an all-to-all of [N, D] float32
    counts 4 N D bytes, an all-reduce of n elements 4 n bytes, however they travel. Every operator
    takes some microseconds longer meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bytes: dict[tuple[str, str], int] = {}
        self.sent: dict[int, int] = {}
        """The bytes of all-to-alls and sends for each rank, itself included."""
        self._tracker = ModuleTracker()  # never entered: it only says whether a backward is running

    @property
    def traffic(self) -> Traffic:
        """The bytes that were counted."""
        found: dict[str, dict[str, float]] = {}
        for (collective, phase), size in sorted(self._bytes.items()):
            found.setdefault(collective, {})[phase] = size
        return found

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace in _NAMESPACES:
            self._count(func, args)
        return func(*args, **(kwargs or {}))

    def _count(self, func: Any, args: Sequence[Any]) -> None:
        name = schema_of(func).name.partition("::")[2].lstrip("_")
        collective = next((to for start, to in COLLECTIVES.items() if name.startswith(start)), None)
        if collective is None:  # a barrier, a wait, or a receive
            return
        names = argument_names(func)
        at = next((i for i, name in enumerate(names) if name.startswith("input")), 0)
        for tensor in _tensors(args[at]):
            key = collective, self._phase(tensor)
            self._bytes[key] = self._bytes.get(key, 0) + tensor.numel() * tensor.element_size()
        if collective in ("all_to_all", "send"):
            self._count_sent(args[at], dict(zip(names, args, strict=False)))

    def _count_sent(self, operand: Any, named: Mapping[str, Any]) -> None:
        """Count bytes by the rank that each part of an all-to-all's operand, or a send, goes to."""
        ranks = ranks_of(named.get("process_group", named.get("group_name")))
        if "dst" in named:
            ranks, operand = [ranks[named["dst"]]], list(_tensors(operand))
        if isinstance(operand, Tensor):
            splits = named["input_split_sizes"] or [len(operand) // len(ranks)] * len(ranks)
            row = operand.numel() // max(1, len(operand)) * operand.element_size()
            sizes = [rows * row for rows in splits]
        else:
            sizes = [part.numel() * part.element_size() for part in operand]
        for rank, size in zip(ranks, sizes, strict=True):
            self.sent[rank] = self.sent.get(rank, 0) + size

    def _phase(self, tensor: Tensor) -> str:
        if self._tracker.is_bw:
            return "backward"
        return "ids" if tensor.dtype in (torch.int32, torch.int64) else "forward"


def _tensors(operand: Any) -> Iterator[Tensor]:
    if isinstance(operand, Tensor):
        yield operand
    else:
        for part in operand:
            yield from _tensors(part)
