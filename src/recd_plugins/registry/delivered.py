"""Some batches of a training epoch, from all over it, as the reader hands them to `dedup`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from recd_plugins.data.batch import Batch
from recd_plugins.data.transform import BatchTransform
from recd_plugins.planning.access.sample import Spread

if TYPE_CHECKING:
    from recd_plugins.slots import DedupConverter, Loader

__all__ = ["Delivered"]

RANKS = 4
"""The ranks whose batches are looked at, at most."""


class Delivered:
    """The batches for a record that chooses by measuring: in the reader's order, shuffled as it
    shuffles."""

    def __init__(
        self,
        open_loader: Callable[[int, BatchTransform], Loader],
        *,
        world_size: int,
        batch_size: int,
        digest: str,
    ) -> None:
        """`open_loader(rank, transform)` opens the reader on the train split."""
        self._open = open_loader
        self._world_size = world_size
        self._batch_size = batch_size
        self.digest = digest
        """Changes with the table and with whatever decides about its batches."""

    def batches(
        self, converter: DedupConverter, samples: int, places: int
    ) -> Iterator[tuple[int, Batch]]:
        """About so many samples in whole batches, converted and not preprocessed, each with the
        number of its place. A loader that cannot begin anywhere has its first batches looked at."""
        transform = BatchTransform([], converter)
        ranks = min(self._world_size, RANKS)
        count, each = -(-samples // (ranks * self._batch_size)), -(-places // ranks)
        for index in range(ranks):
            rank = index * self._world_size // ranks
            with closing(self._open(rank, transform)) as loader:
                if isinstance(loader, Spread):
                    for block, batch in loader.spread(range(each), -(-count // each)):
                        yield index * each + block, batch
                else:
                    for batch in islice(loader, count):
                        yield index * each, batch
