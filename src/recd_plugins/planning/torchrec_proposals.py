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

from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any, Literal

from torchrec.distributed.planner.proposers import GridSearchProposer, UniformProposer
from torchrec.distributed.planner.types import PartitionByType, Proposer, ShardingOption
from torchrec.distributed.types import ShardingType

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import Enumerator, Topology

__all__ = ["Proposals"]

Proposal = list[ShardingOption]
ROUNDING = 1e-9
"""The relative error of sums of floats in another order: ratings that differ less are the same."""


class Proposals:
    """The proposals of TorchRec's own search. Its proposers share the best rating so far."""

    def __init__(self, on: Topology, search: Literal["torchrec", "greedy"]) -> None:
        self.world_size = on.world_size
        self.best = float("inf")
        """The least rating of those that were placed."""
        self.compared: set[tuple[int, ...]] = set()
        """The proposals that were met, each named by its options."""
        self.placed: set[tuple[int, ...]] = set()
        """Those of these proposals that TorchRec placed on ranks."""
        self.alike: set[tuple[int, ...]] = set()
        """The same, each named by the kinds of its options."""
        self._kinds: dict[Hashable, int] = {}
        self._search = search
        self._one_host = getattr(on, "intra_group_size", on.local_world_size) == on.world_size

    def kind(self, option: ShardingOption) -> int:
        """A number for all that TorchRec places and rates an option by."""
        where = option.partition_by
        if self._one_host and option.sharding_type == ShardingType.TABLE_COLUMN_WISE.value:
            where = PartitionByType.DEVICE.value  # where there is no other host to choose
        shards = tuple((shard.storage, shard.perf) for shard in option.shards)
        kind = option.fqn, option.dependency, option.compute_kernel, where, shards
        return self._kinds.setdefault(kind, len(self._kinds))

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


class _Promising(Proposer):
    """A TorchRec proposer of the proposals that may beat the best so far.

    TorchRec asks for the next one after it has rated the last.
    """

    def __init__(
        self, all_of: Proposals, ordered: Callable[[list[ShardingOption]], Iterator[Proposal]]
    ) -> None:
        self._all, self._ordered = all_of, ordered
        self._left: Iterator[Proposal] = iter(())
        self._now: Proposal | None = None

    def load(
        self, search_space: list[ShardingOption], enumerator: Enumerator | None = None
    ) -> None:
        means = {id(option): _total(option) / self._all.world_size for option in search_space}
        kinds = {id(option): self._all.kind(option) for option in search_space}
        self._left = self._promising(self._ordered(search_space), means, kinds)
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

    def _promising(
        self,
        proposals: Iterator[Proposal],
        means: dict[int, float],
        kinds: dict[int, int],
    ) -> Iterator[Proposal]:
        for proposal in proposals:
            options = tuple(map(id, proposal))
            self._all.compared.add(options)
            if sum(map(means.__getitem__, options)) >= self._all.best * (1 - ROUNDING):
                continue
            alike = tuple(map(kinds.__getitem__, options))
            if alike not in self._all.alike:
                self._all.alike.add(alike)
                self._all.placed.add(options)
                yield proposal


def _greedy(
    score: Callable[[ShardingOption], float],
) -> Callable[[list[ShardingOption]], Iterator[Proposal]]:
    """The proposals of GreedyProposer: first the fastest option of each table, then again and again
    the next option of the table that takes the most memory. TorchRec searches all tables each time;
    this keeps a heap."""

    def proposals(space: list[ShardingOption]) -> Iterator[Proposal]:
        options: dict[str, list[ShardingOption]] = {}
        for option in space:
            options.setdefault(option.fqn, []).append(option)
        of_tables = [sorted(own, key=score) for own in options.values()]
        sizes = [[_size(option) for option in own] for own in of_tables]
        at = [0] * len(of_tables)
        # Of tables as large, the first goes on; one that takes no memory never does.
        heap = [
            (sizes[table][0], table)
            for table, own in enumerate(of_tables)
            if len(own) > 1 and any(sizes[table][0])
        ]
        heapify(heap)
        while True:
            yield [own[index] for own, index in zip(of_tables, at, strict=True)]
            if not heap:
                return
            table = heap[0][1]
            at[table] += 1
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


def _as_proposed(proposer: Proposer) -> Callable[[list[ShardingOption]], Iterator[Proposal]]:
    """The proposals of a proposer that goes on regardless of how the last one was rated."""

    def proposals(space: list[ShardingOption]) -> Iterator[Proposal]:
        proposer.load(search_space=space)
        while found := proposer.propose():
            yield found
            proposer.feedback(partitionable=True)

    return proposals


def _longest(option: ShardingOption) -> float:
    """GreedyProposer's default score: the time of the longest shard."""
    return max(_times(option))


def _total(option: ShardingOption) -> float:
    """Its score with `use_depth=False`: the total of all shards."""
    return sum(_times(option))


def _times(option: ShardingOption) -> list[float]:
    return [float(shard.perf.total) for shard in option.shards if shard.perf is not None]
