"""Counts of every rank's own batches, merged on rank 0 by collectives of numbers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.access.access_profile import Tally
from recd_plugins.planning.access.distribution import Integers

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["BatchesOfRanks", "gathered", "planning_by", "ranks_where", "together"]

FEW = 8
"""The ranks whose batches one process reads for all of them."""
PATIENCE = timedelta(seconds=60)
"""The time that a rank which fails waits for the others, until they hear of it."""
LOOK = 0.001
"""Seconds between two looks whether all are there."""
_OWN_GLOO: WeakKeyDictionary[ProcessGroup, Any] = WeakKeyDictionary()
"""By group, the gloo by which its ranks hear of each other."""
_MADE: WeakKeyDictionary[ProcessGroup, int] = WeakKeyDictionary()
"""By group, how many of these there were."""


class BatchesOfRanks:
    """The batches of every rank, for a process that plans for ranks which are not there."""

    def __init__(self, read: Callable[[int, int], Iterable[Any]], world_size: int) -> None:
        """`read`: the batches of a rank, of so many. Of many ranks, a few are read."""
        self._read = read
        self._world_size = world_size
        few = np.linspace(0, world_size, min(world_size, FEW), endpoint=False)
        self._ranks = few.astype(int).tolist()

    def __iter__(self) -> Iterator[Any]:
        for rank in self._ranks:
            yield from self._read(rank, self._world_size)

    @property
    def share(self) -> float:
        """The ranks over those that are read."""
        return self._world_size / len(self._ranks)

    def loaders(self) -> Iterator[Iterable[Any]]:
        """The batches of each rank that is read."""
        for rank in self._ranks:
            yield self._read(rank, self._world_size)


@dataclass(frozen=True, kw_only=True)
class Doing:
    """Something that all ranks do together, in words."""

    what: str
    """What a rank could not do: `count its batches`."""
    waits: str
    """Where the others may wait when one fails, and what to do."""
    without: str
    """What no rank does where one failed."""


COUNTING = Doing(
    what="count its batches",
    waits="they wait in what the loader asks of all ranks. Where one rank reads for all, as by "
    "Accelerate's dispatch_batches, its default for an IterableDataset, have each rank read "
    "batches of its own: DataLoaderConfiguration(dispatch_batches=False).",
    without="no rank plans without them",
)


def planning_by(planner: str) -> Doing:
    """To plan, by a planner as registry.yaml has it: `sharding: mine`."""
    return Doing(
        what=f"plan by `{planner}`",
        waits="they wait in what the planner asks of all ranks. Have every rank make the same "
        "collectives there, or none: recd_plugins.api.planning.from_rank_0 has rank 0 plan for "
        "all.",
        without="no rank trains without a plan",
    )


def together(group: ProcessGroup, do: Callable[[], int], doing: Doing = COUNTING) -> int:
    """The greatest of what all ranks give; if one raises, all do, rather than wait for it.

    What is done may make collectives of the group, as a loader does by which one rank reads for
    all. Where that fails on one rank, the others may wait there: so ranks hear of each other by a
    gloo of their own, and who fails waits for them for `PATIENCE` at most.
    """
    import torch
    import torch.distributed as dist

    if group.size() == 1:
        return do()
    gloo = _own_gloo(group)  # before, for it takes all of them
    failure: Exception | None = None
    number = 0
    try:
        number = do()
    except Exception as error:
        failure = error
    status = torch.tensor([group.rank() + 1 if failure else 0, number])
    options: Any = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    work = gloo.allreduce([status], options)
    if failure is not None:
        try:
            work.wait(PATIENCE)
        except RuntimeError:  # the time is over, or one of them has ended
            _OWN_GLOO.pop(group, None)
            raise DataError(
                f"rank {group.rank()} could not {doing.what} ({type(failure).__name__}: "
                f"{failure}), and for {PATIENCE.total_seconds():g} s no other rank came to "
                f"hear of it: {doing.waits}"
            ) from failure
        raise failure
    _wait_for(work, group, doing)
    failed, greatest = status.tolist()
    if failed:
        raise DataError(f"rank {failed - 1} could not {doing.what}, and says why; {doing.without}.")
    return int(greatest)


def _wait_for(work: Any, group: ProcessGroup, doing: Doing) -> None:
    """Wait for the other ranks, and say so once they are late."""
    late = time.monotonic() + PATIENCE.total_seconds()
    while not work.is_completed() and time.monotonic() < late:
        time.sleep(LOOK)
    if not work.is_completed():
        warnings.warn(
            f"rank {group.rank()} has done what all ranks do together (to {doing.what}), and for "
            f"{PATIENCE.total_seconds():g} s not all of the others have. If they come no more, "
            f"{doing.waits}",
            NoticeWarning,
            stacklevel=3,
        )
    work.wait()


def _own_gloo(group: ProcessGroup) -> Any:
    """It is none of torch's groups, which ranks name by the number that each has made: ranks that
    made unlike numbers would wait for each other here."""
    from recd_plugins.compat.pytorch import own_gloo

    if group not in _OWN_GLOO:
        number = _MADE.get(group, 0)
        _OWN_GLOO[group] = own_gloo(group, f"failures {number}")
        _MADE[group] = number + 1
    return _OWN_GLOO[group]


def ranks_where(group: ProcessGroup, here: bool) -> list[int]:
    """The ranks on which something is so; every rank of the group calls it."""
    import torch
    import torch.distributed as dist

    from recd_plugins.compat.pytorch import device_of

    marks = torch.zeros(group.size(), device=device_of(group), dtype=torch.int64)
    marks[group.rank()] = int(here)
    dist.all_reduce(marks, group=group)
    return [rank for rank, so in enumerate(marks.tolist()) if so]


def gathered(tally: Tally, group: ProcessGroup) -> Tally:
    """The counts of all ranks, on rank 0; every rank calls it, of the same tables.

    Ranks hand their counts on in pairs, so that rank 0 receives from log2(world size) of them.
    """
    rank, step = group.rank(), 1
    while step < group.size():
        if rank % (2 * step):
            _send(tally, rank - step, group)
            break
        if rank + step < group.size():
            _receive(tally, rank + step, group)
        step *= 2
    return tally


def _send(tally: Tally, to: int, group: ProcessGroup) -> None:
    marks = [
        int(name in marked)
        for marked in (tally.variable, tally.weighted)
        for name in _features(tally)
    ]
    head = [tally.samples, tally.batches, round(tally.epoch), *marks]
    _send_numbers(np.array(head), to, group)
    for counter in tally.counters.values():
        counts, numbers = counter.state()
        _send_numbers(np.array([*counts.shape, len(numbers)]), to, group)
        _send_numbers(np.array(numbers), to, group)
        if counts.size:
            _send_numbers(counts, to, group)
    for bags in tally.bags.values():
        parts = bags.state()
        _send_numbers(np.array([len(part) for part in parts]), to, group)
        for part in parts:
            if len(part):
                _send_numbers(part, to, group)


def _receive(tally: Tally, source: int, group: ProcessGroup) -> None:
    features = _features(tally)
    head = _receive_numbers((3 + 2 * len(features),), source, group).tolist()
    samples, batches, epoch, *marks = head
    variable, weighted = marks[: len(features)], marks[len(features) :]
    tally.variable |= {name for name, marked in zip(features, variable, strict=True) if marked}
    tally.weighted |= {name for name, marked in zip(features, weighted, strict=True) if marked}
    tally.came(samples, batches)
    tally.epoch += epoch
    for counter in tally.counters.values():
        kinds, length, count = _receive_numbers((3,), source, group).tolist()
        numbers = _receive_numbers((count,), source, group).tolist()
        shape = kinds, length
        received = _receive_numbers(shape, source, group) if length else np.empty(shape, np.int64)
        counter.merge(received, tuple(numbers))
    for bags in tally.bags.values():
        lengths = _receive_numbers((3,), source, group).tolist()
        ids, long, folds = (
            _receive_numbers((size,), source, group) if size else np.empty(0, np.int64)
            for size in lengths
        )
        bags.merge(ids, long, folds)


def _features(tally: Tally) -> list[str]:
    """The features that are counted, in an order that all ranks have."""
    return sorted({name for part in tally.counted.values() for name in part.features})


def _send_numbers(numbers: Integers, to: int, group: ProcessGroup) -> None:
    import torch
    import torch.distributed as dist

    from recd_plugins.compat.pytorch import device_of

    tensor = torch.from_numpy(np.ascontiguousarray(numbers, np.int64)).to(device_of(group))
    dist.send(tensor, group=group, group_dst=to)


def _receive_numbers(shape: tuple[int, ...], source: int, group: ProcessGroup) -> Integers:
    import torch
    import torch.distributed as dist

    from recd_plugins.compat.pytorch import device_of

    tensor = torch.empty(shape, dtype=torch.int64, device=device_of(group))
    dist.recv(tensor, group=group, group_src=source)
    numbers: Integers = tensor.cpu().numpy()
    return numbers
