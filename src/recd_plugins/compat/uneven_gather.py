"""Gathers of different sizes on gloo. TorchRec's row-wise bags need them if ranks have batches of
different sizes: gloo has no such gather, and plain TorchRec fails there in backward."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from recd_plugins.compat.asked_collectives import answer
from recd_plugins.compat.pytorch import backend_of

__all__ = ["gather_unevenly"]


def gather_unevenly() -> None:
    """Have TorchRec's modules gather tensors that differ in size between ranks, on gloo too."""
    answer("all_gather", _all_gather)


def _all_gather(
    tensor_list: Sequence[Tensor],
    tensor: Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    of = group or dist.group.WORLD
    assert of is not None
    sizes = [len(one) for one in tensor_list]
    alike = len(set(sizes)) == 1
    if alike or tensor.device.type != "cpu" or backend_of(of, "cpu") != "gloo":
        work: dist.Work | None = dist.all_gather(tensor_list, tensor, group, async_op)
        return work
    every = tensor.new_empty(sum(sizes), *tensor.shape[1:])
    sent = tensor.repeat(len(sizes), *(1 for _ in tensor.shape[1:]))
    begun = dist.all_to_all_single(every, sent, sizes, [len(tensor)] * len(sizes), of, True)
    assert begun is not None
    gathered = _Gathered(begun, every.split(sizes), tensor_list)
    if async_op:
        return gathered
    gathered.wait()
    return None


class _Gathered(dist.Work):
    """An exchange under way, whose parts are copied to their places when it is waited for."""

    def __init__(self, work: dist.Work, parts: Sequence[Tensor], places: Sequence[Tensor]) -> None:
        super().__init__()
        self._work, self._parts, self._places = work, parts, places

    def wait(self, timeout: timedelta | None = None) -> bool:
        done: bool = self._work.wait() if timeout is None else self._work.wait(timeout)
        with torch.no_grad():
            for place, part in zip(self._places, self._parts, strict=True):
                place.copy_(part)
        self._parts = self._places = ()
        return done

    def is_completed(self) -> bool:
        return self._work.is_completed()
