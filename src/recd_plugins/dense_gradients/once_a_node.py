"""An all-reduce whose bytes cross nodes once, as a communication hook of DDP, on gloo."""

# No `from __future__ import annotations`: DDP compares a hook's annotations with the types.

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, cast
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket, ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from recd_plugins.compat.pytorch import own_group

__all__ = ["OnceANode"]

_NUMBERS = count()
_BY_NUMBER: "WeakValueDictionary[int, OnceANode]" = WeakValueDictionary()
_OPERATORS = torch.library.Library("recd_plugins", "FRAGMENT")
_OPERATORS.define("all_reduce_once_a_node(Tensor(a!) mine, int number) -> ()")


@torch.library.impl(_OPERATORS, "all_reduce_once_a_node", "CompositeExplicitAutograd")
def _all_reduce_once_a_node(mine: Tensor, number: int) -> None:
    _BY_NUMBER[number]._begin(mine)


class OnceANode:
    """The all-reduces of a world of whole nodes, whose bytes cross nodes once:

        for the gradients [n] of a bucket, on W ranks in each of N nodes, U = N W in all
        1. in the node   rank w gets part w [n / W] of every rank's gradients, and sums them
        2. across nodes  the ranks of place w in all nodes all-reduce part w
        3. in the node   every rank gets all parts

    Of n elements, 2 (N - 1) / N n leave each node. With gloo's ring over all ranks, 2 (U - 1) / U n
    go over each link. Either way a rank sends 2 (U - 1) / U n in all.

    The three steps run by themselves during backward, on gloo's threads. Each step has process
    groups of its own, so that on all ranks buckets follow each other there in the same order: the
    order in which DDP hands them over.
    """

    def __init__(
        self, world: ProcessGroup, ranks_per_node: int, kind: torch.dtype | None = None
    ) -> None:
        """Every rank of `world`, which has all ranks, must make one, since it makes process groups.
        Gradients cross nodes as numbers of this `kind`, by default of their own type."""
        ranks = torch.tensor(dist.get_process_group_ranks(world), device="cpu").view(
            -1, ranks_per_node
        )
        self._world = world
        self._place = world.rank() % ranks_per_node
        self._ranks_per_node = ranks_per_node
        self._kind = kind
        self._to_parts, self._to_all = own_group(ranks, world), own_group(ranks, world)
        self._across = own_group(ranks.T, world)
        self._reducing, self._gathering = _InOrder(), _InOrder()
        self._begun: list[Future[Tensor]] = []
        self._number = next(_NUMBERS)
        _BY_NUMBER[self._number] = self

    def hook(self, state: object, bucket: GradBucket) -> Future[Tensor]:
        """The mean over all ranks of a bucket's gradients, in place. They are divided first, as in
        DDP. Sparse gradients are all-reduced over all ranks."""
        gradients = bucket.buffer()
        if gradients.layout is not torch.strided:
            return allreduce_hook(self._world, bucket)
        return self.all_reduce(gradients.mul_(1 / self._world.size()))

    def all_reduce(self, mine: Tensor) -> Future[Tensor]:
        """The sum over all ranks of `mine` [n], in place.

        It is an operator, so that whoever counts collectives sees one all-reduce and none of its
        parts, most of which begin on other threads.
        """
        torch.ops.recd_plugins.all_reduce_once_a_node(mine, self._number)
        return self._begun.pop()

    def _begin(self, mine: Tensor) -> None:
        w = self._ranks_per_node
        sizes = [len(part) for part in mine.tensor_split(w)]
        own = [sizes[self._place]] * w
        parts = mine.new_empty(sum(own))
        done: Future[Tensor] = Future()
        reduces, gathers = self._reducing.announced(), self._gathering.announced()

        def reduce() -> None:
            total = parts.view(w, -1).sum(0).to(self._kind or parts.dtype)
            work = dist.all_reduce(total, group=self._across, async_op=True)
            then(work, lambda: self._gathering.make(gathers, or_fails(lambda: gather(total))))

        def gather(total: Tensor) -> None:
            every = total.to(mine.dtype).repeat(w)
            work = _all_to_all(mine, every, sizes, own, self._to_all)
            then(work, lambda: done.set_result(mine))

        def then(work: Any, call: Callable[[], object]) -> None:
            work.get_future().then(lambda ended: or_fails(lambda: (ended.value(), call()))())

        def or_fails(call: Callable[[], object]) -> Callable[[], None]:
            def called() -> None:
                try:
                    call()
                except Exception as error:
                    if not done.done():
                        done.set_exception(cast("Any", error))

            return called

        work = _all_to_all(parts, mine, own, sizes, self._to_parts)
        then(work, lambda: self._reducing.make(reduces, or_fails(reduce)))
        # An exception that was set in Python reaches DDP as an exception only through `then`.
        self._begun.append(done.then(lambda ended: ended.value()))

    def __deepcopy__(self, memo: object) -> "OnceANode":
        """A copied DDP has the same process groups."""
        return self


def _all_to_all(
    received: Tensor,
    sent: Tensor,
    receives: Sequence[int],
    sends: Sequence[int],
    group: ProcessGroup | None,
) -> Any:
    return dist.all_to_all_single(received, sent, receives, sends, group, async_op=True)


class _InOrder:
    """Makes calls in the order in which they were announced, each as soon as it is ready and all
    calls before it are made."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._announced: deque[list[Callable[[], None]]] = deque()

    def announced(self) -> list[Callable[[], None]]:
        """A place in the order for a call that will come later."""
        place: list[Callable[[], None]] = []
        with self._lock:
            self._announced.append(place)
        return place

    def make(self, place: list[Callable[[], None]], call: Callable[[], None]) -> None:
        """Make the call now, or on the thread that makes the last call before it. The call must not
        raise."""
        with self._lock:
            place.append(call)
            while self._announced and self._announced[0]:
                (due,) = self._announced.popleft()
                due()
