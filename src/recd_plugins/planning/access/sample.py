"""The sample of batches to count: from all over the epoch, until no more are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from recd_plugins.planning.access.access_profile import Counted, Tally
from recd_plugins.planning.access.batches_of_ranks import BatchesOfRanks, counted_alike, gathered
from recd_plugins.planning.access.distribution import Floats
from recd_plugins.planning.access.forecast import FOLDS
from recd_plugins.planning.access.second_epoch import see_next_epoch
from recd_plugins.planning.together import together

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["FIRST", "SpreadsBatches", "count_sample", "sample_of"]

FIRST = 100
"""How many batches are counted from a loader that can only read in its own order."""
BLOCKS, SIZE = 32, 2
"""How many blocks, of how many batches each, are counted before the first check whether more are
needed."""
SETTLED = 0.01
"""Counting stops once more batches change the share of any number of rows by no more than this, and
the share is known to within this: smaller changes alter no decision."""
SECONDS = 20.0
"""After this many seconds no more batches are counted."""
POINTS = 64


@runtime_checkable
class SpreadsBatches(Protocol):
    """A loader that can start anywhere in its epoch."""

    def spread(
        self, blocks: range, size: int, first: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """The batches of an epoch, or its `first` ones, are put at random into blocks of `size`.
        Yields the batches of the given blocks, each with its block's number, and nothing after the
        last block. The position of the loader stays."""

    @property
    def places(self) -> int:
        """The number of places in the epoch where blocks may begin, limited by what it costs to
        read them."""


def count_sample(
    batches: Iterable[Any],
    tables: Mapping[str, Counted],
    *,
    most: int | None,
    features: FeaturesOf | None = None,
    group: ProcessGroup | None = None,
    met: Callable[[int], None] | None = None,
) -> Tally:
    """Count `most` batches of each rank, or else as many as are needed; rank 0 gets the counts of
    all ranks.

    If a loader `SpreadsBatches`, batches are counted until the forecast is `SETTLED` or `SECONDS`
    have passed; otherwise the first batches are counted, in the loader's order, and if these are a
    whole epoch, the next one says whether ids come again (`see_next_epoch`). Every rank of the
    group calls this. `met` is called with the number of batches that this process has counted.
    """
    began, whole = time.monotonic(), Tally(counted=tables)
    whole.in_order = not all(isinstance(one, SpreadsBatches) for one in _of_ranks(batches))
    rounds = _Rounds(batches, most, features, met)
    shares: Mapping[str, Floats] = {}
    blocks = range(BLOCKS)
    while True:
        part = Tally(counted=tables)
        count = partial(rounds.count, part, blocks)
        if group is None:
            counted = count()
        else:
            counted = together(group, count)
            if not whole.batches:
                whole.alike = counted_alike(part, group)
            part = gathered(part, group)
        whole.merge(part)
        if most is not None or not counted or (group is None and rounds.are_over):
            break
        before, shares = shares, _shares(whole)
        enough = _settled(before, shares, whole) or time.monotonic() - began > SECONDS
        if group is not None:  # rank 0 decides, which has the counts of all ranks
            enough = not together(group, partial(int, group.rank() == 0 and not enough))
        if enough:
            break
        blocks = range(blocks.stop, 2 * blocks.stop)
    if whole.in_order:
        see_next_epoch(whole, batches, features, group)
    return whole


def sample_of(batches: Iterable[Any], count: int) -> Iterator[tuple[int, Any]]:
    """`count` batches of each rank whose batches this process reads, each with its fold."""
    for one in _of_ranks(batches):
        yield from _round(one, range(0), count)


class _Rounds:
    """The batches that this process reads, counted round by round."""

    def __init__(
        self,
        batches: Iterable[Any],
        most: int | None,
        features: FeaturesOf | None,
        met: Callable[[int], None] | None,
    ) -> None:
        self._batches, self._most = batches, most
        self._features, self._met = features, met
        self._seen = 0
        """The batches that were counted."""
        self._there = 0
        """The batches of an epoch that this process can read; 0 if it is not known."""

    @property
    def are_over(self) -> bool:
        """Whether all batches of an epoch were counted."""
        return self._seen >= self._there > 0

    def count(self, part: Tally, blocks: range) -> int:
        """Count the batches of these blocks in `part`, and return how many samples they have."""
        self._there = 0
        for one in _of_ranks(self._batches):
            length = _length_of(one) or 0
            self._there += length
            part.epoch += _share_of_ranks(self._batches) * length
            for fold, batch in _round(one, blocks, self._most):
                part.count(batch, fold, self._features)
                self._seen += 1
                if self._met is not None:
                    self._met(self._seen)
        return part.samples


def _length_of(batches: Iterable[Any]) -> int | None:
    """The number of batches; None if they have no length, as a loader without an end."""
    try:
        return len(batches) if isinstance(batches, Sized) else None
    except TypeError:
        return None


def _of_ranks(batches: Iterable[Any]) -> Iterator[Iterable[Any]]:
    yield from batches.loaders() if isinstance(batches, BatchesOfRanks) else [batches]


def _share_of_ranks(batches: Iterable[Any]) -> float:
    return batches.share if isinstance(batches, BatchesOfRanks) else 1.0


def _round(loader: Iterable[Any], blocks: range, most: int | None) -> Iterator[tuple[int, Any]]:
    """The batches of one rank in these blocks, or `most` batches, each with its fold. Batches of
    one block, or consecutive batches, have the same fold."""
    if isinstance(loader, SpreadsBatches):
        places, first = max(loader.places, 1), BLOCKS
        if most is not None:
            first = min(4 * FOLDS, most, places)
            size = -(-most // first)
            blocks = range(-(-most // size))  # not more: they may come in the epoch's order
        else:
            first = min(BLOCKS, max(places // 2, 1))
            blocks = range(blocks.start * first // BLOCKS, blocks.stop * first // BLOCKS)
            blocks, size = blocks[: max(0, places - blocks.start)], -(-SIZE * BLOCKS // first)
        for block, batch in islice(loader.spread(blocks, size), most):
            yield block % FOLDS, batch
    elif not blocks.start:
        count = min(most or FIRST, _length_of(loader) or most or FIRST)
        for number, batch in enumerate(islice(loader, count)):
            yield number * FOLDS // count, batch


def _shares(tally: Tally) -> dict[str, Floats]:
    """[2, POINTS] the coverage of more and more rows of each table, and how uncertain it is; only
    for tables with a considerable part of all lookups."""
    found = {name: rows for name, rows in tally.distributions() if rows.lookups}
    lookups = sum(rows.lookups for rows in found.values())
    shares = {}
    for name, rows in found.items():
        if rows.lookups >= lookups / (4 * len(found)):
            sizes = np.geomspace(1, rows.num_rows, POINTS)
            low, high = rows.interval(sizes)
            shares[name] = np.stack([rows.coverage(sizes), (high - low) / 2])
    return shares


def _settled(before: Mapping[str, Floats], now: Mapping[str, Floats], tally: Tally) -> bool:
    if tally.epoch and tally.batches >= tally.epoch:
        return True  # there are no others
    return before.keys() == now.keys() and all(
        np.abs(now[name][0] - before[name][0]).max() < SETTLED and now[name][1].max() < SETTLED
        for name in now
    )
