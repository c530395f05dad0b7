"""An all-reduce whose bytes cross nodes once, as a communication hook of DDP, on gloo."""

# DDP compares the annotations of a hook with the types themselves: no `annotations` of __future__.

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

        of the gradients [n] of a bucket, on W ranks in each of N nodes, U = N W in all
        1. in the node   rank w gets part w [n / W] of every rank's, and sums them
        2. across nodes  the ranks of place w in all nodes all-reduce part w
        3. in the node   every rank gets all parts

    Of n elements 2 (N - 1) / N n leave each node, where by gloo's ring over all ranks 2 (U - 1) / U
    n go over each link; a rank sends 2 (U - 1) / U n in all either way.

    They go on by themselves beside backward, on gloo's threads. Each of the three has process
    groups of its own, so that buckets follow each other there in one order on all ranks: that in
    which DDP hands them over.
    """

    def __init__(
        self, world: ProcessGroup, ranks_per_node: int, kind: torch.dtype | None = None
    ) -> None:
        """Every rank of `world`, which has all there are, must make one: it makes process groups.
        Gradients cross nodes as numbers of this kind, by default of their own."""
        ranks = torch.tensor(dist.get_process_group_ranks(world)).view(-1, ranks_per_node)
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
        """The mean over all ranks of a bucket's gradients, in place; they are divided first, as
        DDP does it. Sparse gradients are all-reduced over all ranks."""
        gradients = bucket.buffer()
        if gradients.layout is not torch.strided:
            return allreduce_hook(self._world, bucket)
        return self.all_reduce(gradients.mul_(1 / self._world.size()))

    def all_reduce(self, mine: Tensor) -> Future[Tensor]:
        """The sum over all ranks of `mine` [n], in place.

        It is an operator, so that whoever counts collectives sees one all-reduce, and of its parts,
        most of which other threads begin, none.
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
        # A failure that was set in Python reaches DDP as one through `then` alone.
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
    """Makes calls in the order in which they were announced, each as soon as it may be made and
    those before it are."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._announced: deque[list[Callable[[], None]]] = deque()

    def announced(self) -> list[Callable[[], None]]:
        """The place of a call that is to come."""
        place: list[Callable[[], None]] = []
        with self._lock:
            self._announced.append(place)
        return place

    def make(self, place: list[Callable[[], None]], call: Callable[[], None]) -> None:
        """Make the call now, or by the thread that makes the last of those before it. It raises
        nothing."""
        with self._lock:
            place.append(call)
            while self._announced and self._announced[0]:
                (due,) = self._announced.popleft()
                due()
