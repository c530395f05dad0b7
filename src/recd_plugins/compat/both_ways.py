"""All-to-alls on gloo whose two ways go at once, TorchRec's own among them; as of TorchRec 1.5 to
1.9.

By gloo's all-to-all a rank tells a peer on the same connection that it is ready to receive, and
what it sends. Who comes later than the peer finds the peer ready, sends all that it has, and says
only behind that it is ready too: the two ways of the connection take turns. Between nodes
an exchange then takes up to twice the time of its bytes. Here a rank says to all peers that it is
ready, and then sends, by messages between two ranks.

A profile has a message until it is waited for. torch then writes the end into memory of the
profile, and one that has stopped has none any more: whoever waits for a message past it, as of a
batch to come, would write over other memory. So profiles have no messages, unless one shows them
(`show_messages`) and waits for all before it stops.
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
"""Of our messages: a trainer's own between two ranks have others."""
MOST_UNDER_WAY = 64
"""Exchanges that nobody has waited for yet, as those of a batch that is never looked up, or that
has no backward: past that the oldest, which every peer began before, is waited for."""

_OPERATORS = torch.library.Library("recd_plugins", "FRAGMENT")
_OPERATORS.define(
    "all_to_all_both_ways(Tensor(a!) output, Tensor input, int[] output_split_sizes, "
    "int[] input_split_sizes, str group_name) -> ()"
)


def can_exchange_both_ways(group: ProcessGroup) -> bool:
    """Whether the ways of a group's connections would take turns: those of gloo, on the CPU."""
    return group.size() > 1 and backend_of(group, "cpu") == "gloo"


def exchange_both_ways(group: ProcessGroup, on: bool = True) -> None:
    """Have TorchRec's modules exchange both ways at once in this group, on the CPU; or as before.

    Every rank of the group must call it between the same exchanges.
    """
    if not on:
        _ON.discard(group)
        return
    _ON.add(group)
    answer("all_to_all_single", _all_to_all_single)


@contextmanager
def show_messages() -> Iterator[None]:
    """Inside, a profile has the messages of exchanges that begin, until they are waited for; on
    leaving, all that are under way are. So the profile must stop after that."""
    global _SHOWN
    _SHOWN = True
    try:
        yield
        # Not after an error: a peer that is gone would be waited for, and the error not told.
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
    """torch.distributed's `all_to_all_single`, of tensors on the CPU. All ranks must take the same
    of the two.

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
        """gloo drops messages whose work nobody holds, and the next would come in their place; so
        it stays in `under_way` until it is waited for."""
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
    """torch.distributed's, but as the group exchanges."""
    at_once = (group or dist.group.WORLD) in _ON and output.device.type == "cpu"
    call: Any = all_to_all_both_ways if at_once else dist.all_to_all_single
    work: dist.Work | None = call(
        output, input, output_split_sizes, input_split_sizes, group, async_op
    )
    return work


_ON: WeakSet[ProcessGroup] = WeakSet()
_UNDER_WAY: WeakKeyDictionary[ProcessGroup, dict[_Exchange, None]] = WeakKeyDictionary()
_SHOWN = False
"""Whether profiles have messages."""
_BEGUN: list[_Exchange] = []
"""What the operator began, until it is handed out."""
