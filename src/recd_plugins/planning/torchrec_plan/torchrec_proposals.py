"""The proposals that TorchRec's planner compares, without those that cannot be the best wherever
they are placed.

A proposal is an option for every table; TorchRec places its shards on ranks, which takes tens of
milliseconds for a hundred tables, and rates it by the time of its busiest rank. That is no less
than the mean over ranks. So a proposal whose mean is not below the best rating so far is left out
without being placed, and TorchRec still finds the same plan, or one that is rated the same up to
rounding.

A narrow table has the same shard, table-wise and column-wise. So of proposals that differ in such
options alone, which TorchRec places and rates alike, only the first is placed.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torchrec.distributed.planner.proposers import GridSearchProposer, UniformProposer
from torchrec.distributed.planner.types import PartitionByType, Proposer, ShardingOption
from torchrec.distributed.types import ShardingType

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Enumerator, Topology

__all__ = ["Proposals"]

Proposal = list[ShardingOption]
Ordered = Iterator["_Tally"]
"""Proposals in their order; a tally may be the last one, changed."""
ROUNDING = 1e-9
"""The relative error of sums of floats in another order: ratings that differ less are the same."""
BITS = 128
"""Bits of the random number that stands for an option: no two sums of such are equal by chance."""


class Proposals:
    """The proposals of TorchRec's own search. Its proposers share the best rating so far."""

    def __init__(self, on: Topology, search: Literal["torchrec", "greedy"]) -> None:
        self.world_size = on.world_size
        self.best = float("inf")
        """The least rating of those that were placed."""
        self.compared: set[int] = set()
        """The proposals that were met, each by the sum of its options' names."""
        self.placed = 0
        """The number of these proposals that TorchRec placed on ranks."""
        self.alike: set[int] = set()
        """The same, each by the sum of its options' kinds."""
        self._marks: dict[int, _Marks] = {}
        """By an option's id: a search space's options are all there while it is searched."""
        self._kinds: dict[Hashable, int] = {}
        self._values: dict[Hashable, int] = {}
        """A number for each storage or time of a shard."""
        self._random = random.Random(0)
        self._search = search
        self._one_host = getattr(on, "intra_group_size", on.local_world_size) == on.world_size

    def marks(self, option: ShardingOption) -> _Marks:
        """What a proposal is compared by; found once for all proposers, since a row-wise option
        has a shard for each rank."""
        found = self._marks.get(id(option))
        if found is None:
            found = self._marks[id(option)] = _Marks(
                mean=_exactly(_total(option) / self.world_size),
                name=self._random.getrandbits(BITS),
                kind=self._kind(option),
            )
        return found

    def _kind(self, option: ShardingOption) -> int:
        """A random number for all that TorchRec places and rates an option by."""
        where = option.partition_by
        if self._one_host and option.sharding_type == ShardingType.TABLE_COLUMN_WISE.value:
            where = PartitionByType.DEVICE.value  # where there is no other host to choose
        number: dict[int, int] = {}  # shards of one size share a time, whose hash takes a while
        shards = []
        for shard in option.shards:
            for value in (shard.storage, shard.perf):
                if id(value) not in number:
                    number[id(value)] = self._values.setdefault(value, len(self._values))
                shards.append(number[id(value)])
        kind = option.fqn, option.dependency, option.compute_kernel, where, tuple(shards)
        if kind not in self._kinds:
            self._kinds[kind] = self._random.getrandbits(BITS)
        return self._kinds[kind]

    def proposers(self) -> list[Proposer]:
        """The proposers in TorchRec's order: of proposals that are rated alike, the first is
        taken."""
        greedy = [_Promising(self, _greedy(_longest)), _Promising(self, _greedy(_total))]
        if self._search == "greedy":
            return list(greedy)
        return [
            _Promising(self, _as_proposed(GridSearchProposer())),
            *greedy,
            _Promising(self, _as_proposed(UniformProposer())),
        ]


class _Marks(NamedTuple):
    """What a proposal takes from one of its options: each of a proposal's is the sum of theirs, so
    that a proposal which differs from the last in one table takes one step, not one a table."""

    mean: Fraction
    """The time of its shards, on average over ranks. Sums are exact, whatever their order."""
    name: int
    kind: int


class _Tally:
    """A proposal that is changed table by table, and the sums of its options' marks."""

    def __init__(
        self, options: Sequence[ShardingOption], marks: Callable[[ShardingOption], _Marks]
    ) -> None:
        self.options = list(options)
        self._marks = marks
        means, names, kinds = zip(*map(marks, self.options), strict=True)
        self.mean, self.name, self.kind = sum(means, Fraction()), sum(names), sum(kinds)

    def change(self, table: int, option: ShardingOption) -> None:
        before, now = self._marks(self.options[table]), self._marks(option)
        self.mean += now.mean - before.mean
        self.name += now.name - before.name
        self.kind += now.kind - before.kind
        self.options[table] = option


class _Promising(Proposer):
    """A TorchRec proposer of the proposals that may beat the best so far.

    TorchRec asks for the next one after it has rated the last.
    """

    def __init__(
        self, all_of: Proposals, ordered: Callable[[list[ShardingOption], Proposals], Ordered]
    ) -> None:
        self._all, self._ordered = all_of, ordered
        self._left: Iterator[Proposal] = iter(())
        self._now: Proposal | None = None

    def load(
        self, search_space: list[ShardingOption], enumerator: Enumerator | None = None
    ) -> None:
        self._left = self._promising(self._ordered(search_space, self._all))
        self._now = None

    def propose(self) -> Proposal | None:
        if self._now is None:
            self._now = next(self._left, None)
        return self._now

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        if partitionable and perf_rating is not None:
            self._all.best = min(self._all.best, perf_rating)
        self._now = None

    def _promising(self, proposals: Ordered) -> Iterator[Proposal]:
        for proposal in proposals:
            self._all.compared.add(proposal.name)
            if proposal.mean >= self._all.best * (1 - ROUNDING):
                continue
            if proposal.kind not in self._all.alike:
                self._all.alike.add(proposal.kind)
                self._all.placed += 1
                yield list(proposal.options)


def _greedy(
    score: Callable[[ShardingOption], float],
) -> Callable[[list[ShardingOption], Proposals], Ordered]:
    """The proposals of GreedyProposer: first the fastest option of each table, then again and again
    the next option of the table that takes the most memory. TorchRec searches all tables each time;
    this keeps a heap."""

    def proposals(space: list[ShardingOption], every: Proposals) -> Ordered:
        options: dict[str, list[ShardingOption]] = {}
        for option in space:
            options.setdefault(option.fqn, []).append(option)
        of_tables = [sorted(own, key=score) for own in options.values()]
        sizes = [[_size(option) for option in own] for own in of_tables]
        at = [0] * len(of_tables)
        # Among the largest tables the first goes on; a table that takes no memory never does.
        heap = [
            (sizes[table][0], table)
            for table, own in enumerate(of_tables)
            if len(own) > 1 and any(sizes[table][0])
        ]
        heapify(heap)
        now = _Tally([own[0] for own in of_tables], every.marks)
        while True:
            yield now
            if not heap:
                return
            table = heap[0][1]
            at[table] += 1
            now.change(table, of_tables[table][at[table]])
            size = sizes[table][at[table]]
            if at[table] + 1 < len(of_tables[table]) and any(size):
                heapreplace(heap, (size, table))
            else:
                heappop(heap)

    return proposals


def _size(option: ShardingOption) -> tuple[float, ...]:
    """The measure by which the largest table is found, negated: by kind of memory, the most of a
    rank and the sum of all."""
    storages: Sequence[Any] = [shard.storage for shard in option.shards]
    found: list[float] = []
    for name in ("hbm", "ddr"):
        each = [getattr(storage, name) for storage in storages]
        found += [-max(each), -sum(each)]
    return tuple(found)


def _as_proposed(proposer: Proposer) -> Callable[[list[ShardingOption], Proposals], Ordered]:
    """The proposals of a proposer that goes on regardless of how the last one was rated."""

    def proposals(space: list[ShardingOption], every: Proposals) -> Ordered:
        proposer.load(search_space=space)
        while found := proposer.propose():
            yield _Tally(found, every.marks)
            proposer.feedback(partitionable=True)

    return proposals


def _longest(option: ShardingOption) -> float:
    """GreedyProposer's default score: the time of the longest shard."""
    return max(_times(option))


def _total(option: ShardingOption) -> float:
    """Its score with `use_depth=False`: the total of all shards."""
    return sum(_times(option))


def _exactly(milliseconds: float) -> Fraction:
    """The time; longer than any other if it is infinite or no number."""
    return Fraction(milliseconds if math.isfinite(milliseconds) else sys.float_info.max)


def _times(option: ShardingOption) -> list[float]:
    return [float(shard.perf.total) for shard in option.shards if shard.perf is not None]
