"""The loader's position after each trained batch, though the pipeline reads ahead."""

from __future__ import annotations

import copy
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from recd_plugins.data.dataset import Split
from recd_plugins.data.reader.period_loader import PeriodLoader
from recd_plugins.errors import DataError, PluginError, shown, so_many
from recd_plugins.planning.together import check_alike
from recd_plugins.slots import Loader
from recd_plugins.slots.batch_check import kind_of

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch

__all__ = ["Positions", "check_lengths", "closing"]


def check_lengths(loader: Loader, split: Split) -> None:
    """`PluginError` on every rank if the ranks' epochs differ in their number of batches: some
    ranks would wait for the others at the end of an epoch. All ranks must call it."""
    import torch.distributed as dist

    if dist.is_initialized() and (group := dist.group.WORLD) is not None:
        whose = f"reader: the batches of the {split} split that {kind_of(loader)} says an epoch has"
        cure = "Let its `__len__` say the same on every rank."
        check_alike({whose: f"{len(loader):,}"}, group, {whose: cure})


class Positions:
    """An iterator over the batches of a loader's epochs, which ends when the epochs have no more
    batches. It remembers the loader's state after each batch.

    TrainPipelineSparseDist holds up to three batches that are read but not yet trained; a
    checkpoint must have the position after the last trained one.
    """

    def __init__(self, loader: Loader, steps: int) -> None:
        """It yields at most `steps` batches, which is how many the pipeline may read in all."""
        if not isinstance(loader, PeriodLoader) and len(loader) == 0:
            raise DataError(
                "the train split has fewer rows than one step takes (batch_size times ranks): "
                "lower train.batch_size or give it more data."
            )
        if not isinstance(loader, PeriodLoader):
            check_lengths(loader, "train")
        self._loader = loader
        self._left = steps
        self._empty = 0
        """How many epochs in a row had no batch: data that grow may end."""
        self._batches = self._endless()
        self._ahead: deque[dict[str, Any]] = deque()
        self._first = True
        """Whether no batch has been read yet."""
        self.state: dict[str, Any] = self._state(checked=True)
        """The loader's state after the last trained batch."""
        self.waited = 0.0
        """Seconds spent waiting for the loader."""

    @property
    def read_seconds(self) -> Mapping[str, float]:
        """Seconds of each part of reading so far; empty if the loader does not measure them."""
        return getattr(self._loader, "read_seconds", {})

    @property
    def over(self) -> bool:
        """Whether the data have ended and all their batches are trained."""
        return self._empty > 1 and not self._ahead

    def _endless(self) -> Iterator[Batch]:
        while self._empty < 2:  # a loader that was resumed may stand at the end of an epoch
            self._empty += 1
            for batch in self._loader:
                self._empty = 0
                yield batch
        if not isinstance(self._loader, PeriodLoader):
            raise DataError(
                f"the loader of the train split ({kind_of(self._loader)}) says that an epoch has "
                f"{so_many(len(self._loader), 'batch')}, but yielded none in two epochs, so there "
                "is nothing to train on. Check what its `__iter__` leaves out."
            )

    def __iter__(self) -> Positions:
        return self

    def __next__(self) -> Batch:
        if self._left == 0:
            raise StopIteration
        began = time.perf_counter()
        batch = next(self._batches)
        self.waited += time.perf_counter() - began
        self._left -= 1
        self._ahead.append(self._state(checked=self._first))
        self._first = False
        return batch

    def _state(self, *, checked: bool) -> dict[str, Any]:
        state: Any = self._loader.state_dict()
        if checked:
            try:
                fits = isinstance(state, dict) and json.dumps(state) is not None
            except (TypeError, ValueError):
                fits = False
            if not fits:
                raise PluginError(
                    f"reader: `state_dict` of {kind_of(self._loader)} returned "
                    f"{shown(state)}, which a checkpoint cannot keep as JSON. Return a mapping "
                    "of numbers, texts, lists and mappings."
                )
        # The loader may keep counting in the mapping that it returned.
        return cast("dict[str, Any]", copy.deepcopy(state))

    def trained(self) -> None:
        """Note that the oldest batch in flight has been trained."""
        self.state = self._ahead.popleft()


@contextmanager
def closing(loader: Loader) -> Iterator[Loader]:
    """Close the loader at the end, also after an error; a loader may have no `close`."""
    try:
        yield loader
    finally:
        close = getattr(loader, "close", None)
        if close is not None:
            close()
