"""A loader's batches in windows: of each, as many hot batches as all ranks can form.

Every rank forms as many, at the same places of the window, so that a step is hot on all ranks
or on none. A window is agreed upon by itself: nothing is carried over, the order drifts by a
window at most, and each sample comes once an epoch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

import torch
import torch.distributed as dist

from recd_plugins.api import CapabilityError, DataError, Loader
from recd_plugins.api.batch import Batch
from recd_plugins.api.planning import TierPlan
from recd_scars.hot_batches.batch_window import BatchWindow, Formed
from recd_scars.hot_batches.hot_rows import HotRows

__all__ = ["HotBatches", "PlansHotRows"]


class PlansHotRows(Protocol):
    """What the stage asks its planner, on every rank alike."""

    @property
    def tier_plan(self) -> TierPlan | None:
        """Which rows are replicated; none before the first plan: all batches are then normal."""

    @property
    def features_of(self) -> Mapping[str, Sequence[str]]:
        """The features of each table of every collection that has tiers; of tables that the plan
        leaves out too, for their rows travel, whatever else a sample looks up."""


class HotBatches:
    """Hot and normal batches of a loader; a `slots.Loader` of as many and as large batches.

    While a window is used, the next is read and classified in a thread: two are in memory. The
    collective is made by whoever iterates. A new tier plan counts from the next window on.
    """

    def __init__(
        self,
        loader: Loader,
        planner: PlansHotRows,
        *,
        rank: int,
        world_size: int,
        window: int = 16,
    ) -> None:
        """A window has `window` batches a rank; every rank must iterate, as it trains."""
        self._loader = loader
        self._planner = planner
        self._rank = rank
        self._world_size = world_size
        self._window = window
        self._rows: HotRows | None = None
        self._group: dist.ProcessGroup | None = None
        self._start: dict[str, Any] = loader.state_dict()
        """The loader's state where the window begins."""
        self._index = 0
        """The batches of it that were yielded."""
        self._formed: Formed | None = None
        """How it was formed; nothing at its start."""
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        self._loader.load_state_dict(self._start)
        batches = iter(self._loader)
        pool = self._pool = ThreadPoolExecutor(1, thread_name_prefix="recd-hot-batches")
        try:
            ahead = pool.submit(self._read, batches, self._hot_rows(), self._formed)
            while (window := ahead.result()) is not None:
                self._agree(window)
                ahead = pool.submit(self._read, batches, self._hot_rows(), None)
                yield from self._batches(window)
        finally:
            pool.shutdown(cancel_futures=True)
            if isinstance(batches, Generator):
                batches.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)  # before what it reads is closed
        if hasattr(self._loader, "close"):  # a loader may have none
            self._loader.close()

    def state_dict(self) -> dict[str, Any]:
        """The position, in numbers and texts alone."""
        formed = None if self._formed is None else self._formed.to_state()
        return {"loader": self._start, "batches": self._index, "window": formed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on within a window as it was formed, whatever the plan is now."""
        if set(state) != {"loader", "batches", "window"}:
            raise DataError(
                "the reader's state is not one of hot batches: the run that it is of had none. Set "
                "cache.hot_batches to false to resume, or start afresh."
            )
        self._start, self._index = state["loader"], state["batches"]
        self._formed = None if state["window"] is None else Formed.of_state(state["window"])

    def _batches(self, window: BatchWindow) -> Iterator[Batch]:
        for index in range(self._index, len(window)):
            batch = window.batch(index)
            if index + 1 == len(window):
                self._start, self._index, self._formed = window.end, 0, None
            else:
                self._start, self._index, self._formed = window.start, index + 1, window.formed
            yield batch

    def _read(
        self, batches: Iterator[Batch], rows: HotRows | None, formed: Formed | None
    ) -> BatchWindow | None:
        """The next window; none at the end of the epoch."""
        start = self._loader.state_dict()
        count = self._window if formed is None else formed.num_batches
        taken = list(islice(batches, count))
        if not taken:
            return None
        window = BatchWindow(taken, start=start, end=self._loader.state_dict())
        if formed is not None:
            window.form_again(formed)
        elif rows is not None:
            window.classify(rows)
        return window

    def _agree(self, window: BatchWindow) -> None:
        """Settle how many of its batches are hot: on all ranks as many as any can form."""
        if window.formed is not None:  # resumed within
            return
        rows = self._hot_rows()
        if rows is None:
            window.form(0)
            return
        if window.version != rows.version:
            window.classify(rows)
        window.form(self._least(window, rows.version))

    def _least(self, window: BatchWindow, version: str) -> int:
        if self._world_size == 1:
            return window.most_hot
        if not dist.is_initialized():
            raise CapabilityError(
                f"cache.hot_batches: {self._world_size} ranks agree on hot batches, but there is "
                "no process group. Call torch.distributed.init_process_group before iterating, or "
                "set hot_batches to false."
            )
        if self._group is None:
            # Its own, for the trainer's may be busy; of gloo, for what is counted is on the CPU.
            self._group = dist.new_group(backend="gloo")
        number = int(version[:15], 16)
        counts = torch.tensor([window.most_hot, len(window), -len(window), number, -number])
        dist.all_reduce(counts, dist.ReduceOp.MIN, self._group)
        least, fewest, most, lowest, highest = counts.tolist()
        if (fewest, lowest) != (-most, -highest):
            raise DataError(
                f"cache.hot_batches: ranks have windows of {fewest} to {-most} batches, rank "
                f"{self._rank} of {len(window)}, or tier plans that differ: all must yield as many "
                "batches an epoch, and plan alike."
            )
        return int(least)

    def _hot_rows(self) -> HotRows | None:
        """The hot rows of the plan as it is now: whoever iterates asks for them, so all ranks
        alike do."""
        plan = self._planner.tier_plan
        if plan is None:
            return None
        if self._rows is None or self._rows.version != plan.version:
            self._rows = HotRows(plan, self._planner.features_of)
        return self._rows
