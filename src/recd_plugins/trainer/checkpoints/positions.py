"""The positions where the loader stood when a batch was trained, though the pipeline reads
ahead."""

from __future__ import annotations

import copy
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from recd_plugins.data.dataset import Split
from recd_plugins.data.period_loader import PeriodLoader
from recd_plugins.errors import DataError, PluginError, shown, so_many
from recd_plugins.planning.plan_check import check_alike
from recd_plugins.slots import Loader
from recd_plugins.slots.batch_check import kind_of

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch

__all__ = ["Positions", "check_lengths", "closing"]


def check_lengths(loader: Loader, split: Split) -> None:
    """`PluginError` on every rank of a job where their epochs have not as many batches: some would
    wait for the others at an epoch's end. All ranks call it."""
    import torch.distributed as dist

    if dist.is_initialized() and (group := dist.group.WORLD) is not None:
        whose = f"reader: the batches of the {split} split that {kind_of(loader)} says an epoch has"
        cure = "Let its `__len__` say the same on every rank."
        check_alike({whose: f"{len(loader):,}"}, group, {whose: cure})


class Positions:
    """An iterator over a loader's epochs, as long as they have batches, that remembers its state
    per batch.

    TrainPipelineSparseDist holds up to three batches that are read and not yet trained; a
    checkpoint must name the position after the last one trained.
    """

    def __init__(self, loader: Loader, steps: int) -> None:
        """Yield at most `steps` batches: what the pipeline may read in all."""
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
        """Epochs without a batch, one after the other: data that grow may end."""
        self._batches = self._endless()
        self._ahead: deque[dict[str, Any]] = deque()
        self._first = True
        """Whether no batch was read yet."""
        self.state: dict[str, Any] = self._state(checked=True)
        """The loader's state after the last trained batch."""
        self.waited = 0.0
        """Seconds in which the loader was waited for."""

    @property
    def read_seconds(self) -> Mapping[str, float]:
        """Seconds of each part of reading so far; none where the loader does not say it."""
        return getattr(self._loader, "read_seconds", {})

    @property
    def over(self) -> bool:
        """Whether the data have ended, and all batches of them are trained."""
        return self._empty > 1 and not self._ahead

    def _endless(self) -> Iterator[Batch]:
        while self._empty < 2:  # a loader that was resumed may stand at the end of an epoch
            self._empty += 1
            for batch in self._loader:
                self._empty = 0
                yield batch
        if not isinstance(self._loader, PeriodLoader):
            raise DataError(
                f"the loader of the train split ({kind_of(self._loader)}) says that an epoch "
                f"has {so_many(len(self._loader), 'batch')}, and yielded none in two: there is "
                "nothing to train on. See what its `__iter__` leaves out."
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
        # A loader may go on counting in the mapping that it gives.
        return cast("dict[str, Any]", copy.deepcopy(state))

    def trained(self) -> None:
        """The oldest batch in flight has been trained."""
        self.state = self._ahead.popleft()


@contextmanager
def closing(loader: Loader) -> Iterator[Loader]:
    """Close a loader in the end, however that comes; one that was written without a `close` needs
    none."""
    try:
        yield loader
    finally:
        close = getattr(loader, "close", None)
        if close is not None:
            close()
