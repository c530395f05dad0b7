"""Samples batches from a whole training epoch, as the reader hands them to `dedup`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from recd_plugins.data.batch import Batch
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.planning.access.sample import SpreadsBatches

if TYPE_CHECKING:
    from recd_plugins.slots import DedupConverter, Loader

__all__ = ["DeliveredBatches"]

RANKS = 4
"""The largest number of ranks whose batches are sampled."""


class DeliveredBatches:
    """The batches for a record that measures in order to choose: they are in the reader's order,
    including its shuffling."""

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
        """A text that changes with the table and with anything that decides about its batches."""

    def batches(
        self, converter: DedupConverter, samples: int, places: int
    ) -> Iterator[tuple[int, Batch]]:
        """About `samples` samples in whole batches, converted but not preprocessed, each with the
        number of its place. A loader that cannot begin anywhere in its epoch gives its first
        batches."""
        transform = BatchTransform([], converter)
        ranks = min(self._world_size, RANKS)
        count, each = -(-samples // (ranks * self._batch_size)), -(-places // ranks)
        for index in range(ranks):
            rank = index * self._world_size // ranks
            with closing(self._open(rank, transform)) as loader:
                if isinstance(loader, SpreadsBatches):
                    for block, batch in loader.spread(range(each), -(-count // each)):
                        yield index * each + block, batch
                else:
                    for batch in islice(loader, count):
                        yield index * each, batch
