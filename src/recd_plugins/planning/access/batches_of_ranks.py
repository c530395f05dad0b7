"""The batches of all ranks: read by one process that plans for them, or counted by each rank, with
the counts merged on rank 0."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from recd_plugins.planning.access.access_profile import Tally
from recd_plugins.planning.access.distribution import Integers
from recd_plugins.planning.together import alike

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["BatchesOfRanks", "counted_alike", "gathered"]

FEW = 8
"""The most ranks whose batches one process reads to stand for all of them."""


class BatchesOfRanks:
    """The batches of every rank, for a process that plans for ranks that do not run."""

    def __init__(self, read: Callable[[int, int], Iterable[Any]], world_size: int) -> None:
        """`read(rank, world_size)` returns the batches of a rank. If there are many ranks, only a
        few are read."""
        self._read = read
        self._world_size = world_size
        few = np.linspace(0, world_size, min(world_size, FEW), endpoint=False)
        self._ranks = few.astype(int).tolist()

    def __iter__(self) -> Iterator[Any]:
        for rank in self._ranks:
            yield from self._read(rank, self._world_size)

    @property
    def share(self) -> float:
        """The number of ranks for which each rank that is read stands."""
        return self._world_size / len(self._ranks)

    def loaders(self) -> Iterator[Iterable[Any]]:
        """The batches of each rank that is read."""
        for rank in self._ranks:
            yield self._read(rank, self._world_size)


def counted_alike(tally: Tally, group: ProcessGroup) -> bool:
    """Whether all of several ranks have the same counts, as where they read the same batches."""
    if group.size() == 1:
        return False
    digest = hashlib.sha256()
    for counter in tally.counters.values():
        counts, numbers = counter.state()
        digest.update(np.array([*counts.shape, *numbers]).tobytes() + counts.tobytes())
    return alike(group, digest.digest()) and tally.samples > 0


def gathered(tally: Tally, group: ProcessGroup) -> Tally:
    """The counts of all ranks, on rank 0; every rank calls this with the same tables.

    Ranks send their counts on in pairs, so that rank 0 receives from log2(world size) ranks.
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
    head = [tally.samples, tally.batches, tally.left_out, round(tally.epoch), *marks]
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
    head = _receive_numbers((4 + 2 * len(features),), source, group).tolist()
    samples, batches, left_out, epoch, *marks = head
    variable, weighted = marks[: len(features)], marks[len(features) :]
    tally.variable |= {name for name, marked in zip(features, variable, strict=True) if marked}
    tally.weighted |= {name for name, marked in zip(features, weighted, strict=True) if marked}
    tally.came(samples, batches)
    tally.left_out += left_out
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
    """The features that are counted, in the same order on all ranks."""
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
