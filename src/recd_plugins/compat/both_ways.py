"""All-to-alls on gloo, including TorchRec's own, that send in both directions at once; as of
TorchRec 1.5 to 1.9.

In gloo's all-to-all, a rank uses the same connection to tell a peer that it is ready to receive
and to send its data. The later of the two ranks finds its peer ready, sends all its data, and only
after that says that it is ready too: the two directions of the connection take turns. Between nodes
an exchange then takes up to twice the time that its bytes need. Here a rank first tells all peers
that it is ready, and then sends, by messages between two ranks.

A profile records a message until somebody waits for it. torch then writes the end into the
profile's memory, which is gone once the profile has stopped: a later wait, as for a batch to come,
would overwrite other memory. So profiles record no messages, unless a caller shows them
(`show_messages`) and waits for all of them before the profile stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from recd_plugins.compat.asked_collectives import answer
from recd_plugins.compat.pytorch import backend_of, group_of_name, unseen_by_profilers

__all__ = [
    "MOST_UNDER_WAY",
    "all_to_all_both_ways",
    "can_exchange_both_ways",
    "exchange_both_ways",
    "show_messages",
]

TAG = 0xB07
"""The tag of our messages: a trainer's own messages between two ranks have other tags."""
MOST_UNDER_WAY = 64
"""The most exchanges that nobody has waited for yet, such as those of a batch that is never looked
up or has no backward. Beyond that, the oldest is waited for, which every peer began earlier."""

_OPERATORS = torch.library.Library("recd_plugins", "FRAGMENT")
_OPERATORS.define(
    "all_to_all_both_ways(Tensor(a!) output, Tensor input, int[] output_split_sizes, "
    "int[] input_split_sizes, str group_name) -> ()"
)


def can_exchange_both_ways(group: ProcessGroup) -> bool:
    """Whether the two directions of a group's connections would take turns: those of gloo, on the
    CPU."""
    return group.size() > 1 and backend_of(group, "cpu") == "gloo"


def exchange_both_ways(group: ProcessGroup, on: bool = True) -> None:
    """Have TorchRec's modules exchange both ways at once in this group, on the CPU; or, if not
    `on`, as before.

    Every rank of the group must call it between the same exchanges.
    """
    if not on:
        _ON.discard(group)
        return
    _ON.add(group)
    answer("all_to_all_single", _all_to_all_single)


@contextmanager
def show_messages() -> Iterator[None]:
    """Inside, a profile records the messages of exchanges that begin, until they are waited for.
    On leaving, all exchanges under way are waited for, so the profile must stop after that."""
    global _SHOWN
    _SHOWN = True
    try:
        yield
        # Not after an error: this would wait for a peer that is gone, and hide the error.
        for under_way in [*_UNDER_WAY.values()]:
            for one in [*under_way]:
                one.wait()
    finally:
        _SHOWN = False


def all_to_all_both_ways(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """torch.distributed's `all_to_all_single`, for tensors on the CPU. All ranks must call the same
    one of the two.

    It is an operator, so that whoever counts collectives sees an all-to-all.
    """
    of = group or dist.group.WORLD
    assert of is not None
    splits = [list(sizes or ()) for sizes in (output_split_sizes, input_split_sizes)]
    operator = torch.ops.recd_plugins.all_to_all_both_ways
    operator(output, input.detach(), *splits, of.group_name)
    work = _BEGUN.pop()
    if async_op:
        return work
    work.wait()
    return None


@torch.library.impl(_OPERATORS, "all_to_all_both_ways", "CompositeExplicitAutograd")
def _begin(
    output: Tensor, input: Tensor, receives: Sequence[int], sends: Sequence[int], group_name: str
) -> None:
    group = group_of_name(group_name)
    size, rank = group.size(), group.rank()
    received, sent = (
        tensor.split(list(splits) or len(tensor) // size)
        for tensor, splits in ((output, receives), (input.contiguous(), sends))
    )
    with nullcontext() if _SHOWN else unseen_by_profilers():
        works = [
            group.recv([received[peer]], peer, TAG)
            for peer in (*range(rank - 1, -1, -1), *range(size - 1, rank, -1))
            if received[peer].numel()
        ]
        works += [
            group.send([sent[peer]], peer, TAG)
            for peer in (*range(rank + 1, size), *range(rank))
            if sent[peer].numel()
        ]
    if received[rank].numel():
        received[rank].copy_(sent[rank])
    _BEGUN.append(_Exchange(works, _UNDER_WAY.setdefault(group, {})))


class _Exchange(dist.Work):
    """The messages of an exchange that is under way."""

    def __init__(self, works: Sequence[dist.Work], under_way: dict[_Exchange, None]) -> None:
        """gloo drops messages whose work nobody holds, and the next one would come in their place.
        So an exchange stays in `under_way` until it is waited for."""
        super().__init__()
        self._works = works
        self._under_way = under_way
        under_way[self] = None
        if len(under_way) > MOST_UNDER_WAY:
            next(iter(under_way)).wait()

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            if timeout is None:
                work.wait()
            else:
                work.wait(timeout)
        self._works = ()
        self._under_way.pop(self, None)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


def _all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """torch.distributed's function, or ours where the group exchanges both ways at once."""
    at_once = (group or dist.group.WORLD) in _ON and output.device.type == "cpu"
    call: Any = all_to_all_both_ways if at_once else dist.all_to_all_single
    work: dist.Work | None = call(
        output, input, output_split_sizes, input_split_sizes, group, async_op
    )
    return work


_ON: WeakSet[ProcessGroup] = WeakSet()
_UNDER_WAY: WeakKeyDictionary[ProcessGroup, dict[_Exchange, None]] = WeakKeyDictionary()
_SHOWN = False
"""Whether profiles record messages."""
_BEGUN: list[_Exchange] = []
"""The exchange that the operator began, until it is handed out."""
