"""A loader's batches in windows: each gets as many hot batches as all ranks can form.

Every rank forms as many, at the same places of the window, so a step is hot on all ranks or on
none. The ranks agree on each window by itself: nothing is carried over, the order changes by a
window at most, and each sample comes once an epoch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, Protocol

import torch.distributed as dist

from recd_plugins.api import CapabilityError, DataError
from recd_plugins.api.batch import KeptBatches, OwnBatches, WrappedLoader
from recd_plugins.api.planning import LeastOfRanks, TierPlan
from recd_scars.hot_batches.batch_window import BatchWindow, DealtWindow
from recd_scars.hot_batches.hot_rows import HotRows

__all__ = ["HotBatches", "HotBatchesWithoutState", "PlansHotRows", "YieldedCounts"]

TAKEN = 2
"""Batches of the next window that are taken for each one that is yielded: so it is complete when
half of this one is used, and there is time to classify it."""
PATIENCE = timedelta(seconds=60)
"""The time for which a rank that fails waits for the others to hear of it."""


class PlansHotRows(Protocol):
    """The questions that the stage asks its planner, on every rank alike."""

    @property
    def tier_plan(self) -> TierPlan | None:
        """The plan of the rows that are replicated; None before the first plan: all batches are
        then normal."""

    @property
    def features_of(self) -> Mapping[str, Sequence[str]]:
        """The features of each table of every collection that has tiers; of tables that the plan
        leaves out too, for their rows travel, whatever else a sample looks up."""

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks that the plan is for; None before the first plan."""


@dataclass
class YieldedCounts:
    """Counts the batches that a `HotBatches` yielded; it outlives that one and its loader."""

    every: int = 0
    first_hot: int | None = None
    """The number of them up to the first hot one; None before that."""

    @property
    def since_hot(self) -> int:
        """The number of them after the first hot one."""
        return 0 if self.first_hot is None else self.every - self.first_hot

    def count(self, *, hot: bool) -> None:
        """One more is yielded."""
        self.every += 1
        if hot and self.first_hot is None:
            self.first_hot = self.every

    def begin(self) -> None:
        """Count from here."""
        self.every, self.first_hot = 0, None


class HotBatchesWithoutState(WrappedLoader):
    """Hot and normal batches of a loader, as many and as large ones.

    While a window is used, the next is read and classified: two are in memory. A thread reads what
    the registry's reader yields. A trainer's own loader is read by whoever iterates, as without us:
    it may make collectives, as those of Accelerate do, or hold what belongs to its thread. The
    stage's own collective is made by whoever iterates, too. A new tier plan counts from the next
    window on.
    """

    def __init__(
        self,
        loader: Any,
        planner: PlansHotRows,
        *,
        rank: int,
        world_size: int,
        window: int = 16,
        own: OwnBatches | None = None,
    ) -> None:
        """A window has `window` batches a rank; every rank must iterate, as it trains.

        The loader is a trainer's own where `own` is given, of batches of any type. It then begins
        as it does by itself, unless a state was loaded; and it need have no states.
        """
        self._loader = loader
        self._own = own
        self._planner = planner
        self._rank = rank
        self._world_size = world_size
        self._window = window
        self._rows: HotRows | None = None
        self._ranks: LeastOfRanks | None = None
        self._start: dict[str, Any] | None = None
        """The loader's state where the window begins; None before the first window of a trainer's
        own loader."""
        if own is None:
            self._start = copy.deepcopy(loader.state_dict())
        self._loaded = False
        self._index = 0
        """The batches of it that were yielded."""
        self._dealt: DealtWindow | None = None
        """How the window was dealt; None at its start."""
        self._pool: ThreadPoolExecutor | None = None
        self._kept: KeptBatches | None = None
        """The batches of a trainer's own loader that were read and not yielded yet."""
        self._yielded = YieldedCounts()

    @property
    def yielded(self) -> YieldedCounts:
        """What it has yielded so far."""
        return self._yielded

    def __iter__(self) -> Iterator[Any]:
        if self._own is None or self._loaded:
            self._loader.load_state_dict(self._start)
        elif self._index:  # left within a window: the trainer's loader begins anew
            self._index, self._dealt = 0, None
        self._loaded = False
        if self._own is not None:
            self._kept = KeptBatches("cache: hot_batches", ", or set `cache.hot_batches: false`")
        batches = iter(self._loader)
        pool = self._pool = ThreadPoolExecutor(1, thread_name_prefix="recd-hot-batches")
        try:
            ahead = self._ahead(pool, batches, self._dealt)
            while self._agree(window := self._result(ahead)) and window is not None:
                ahead = self._ahead(pool, batches, None)
                yield from self._batches(window, ahead)
        finally:
            pool.shutdown(cancel_futures=True)
            if isinstance(batches, Generator):
                batches.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)  # before what it reads is closed
        if hasattr(self._loader, "close"):  # a loader may have none
            self._loader.close()

    def __getattr__(self, name: str) -> Any:
        """The attributes of the loader, its sampler, its dataset; but not how one of the
        registry's is read from anywhere, for windows are dealt in its order."""
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(
                f"cache.hot_batches: the loader, a {type(self._loader).__name__}, has no {name}, "
                "so that no position of hot batches can be saved. Take a loader that has it, such "
                "as torchdata's StatefulDataLoader."
            )
        if name in ("spread", "places") and self.__dict__.get("_own") is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return super().__getattr__(name)

    def _batches(self, window: BatchWindow, ahead: _Ahead) -> Iterator[Any]:
        for index in range(self._index, len(window)):
            ahead.take(TAKEN)
            batch = window.batch(index)
            if index + 1 == len(window):
                self._start, self._index, self._dealt = window.end, 0, None
            else:
                self._start, self._index, self._dealt = window.start, index + 1, window.dealt
            self.yielded.count(hot=window.is_hot(index))
            if self._kept is not None:
                self._kept.take()
            yield batch

    def _ahead(
        self, pool: ThreadPoolExecutor, batches: Iterator[Any], dealt: DealtWindow | None
    ) -> _Ahead:
        """The next window, to be read."""
        ahead = _Ahead(
            pool,
            batches,
            self._window if dealt is None else dealt.num_batches,
            self._state,
            partial(self._made, self._hot_rows(), dealt),
            self._kept,
        )
        if self._own is None:
            ahead.read_in_thread()
        return ahead

    def _made(
        self,
        rows: HotRows | None,
        dealt: DealtWindow | None,
        taken: Sequence[Any],
        start: dict[str, Any] | None,
        end: dict[str, Any] | None,
    ) -> BatchWindow | None:
        """The window of these batches; None without any, at the end of the epoch."""
        if not taken:
            return None
        own = OwnBatches() if self._own is None else self._own
        window = BatchWindow(taken, start=start, end=end, own=own)
        if dealt is not None:
            window.deal_again(dealt)
        elif rows is not None:
            window.classify(rows)
        return window

    def _state(self) -> dict[str, Any] | None:
        state: dict[str, Any] | None = None
        with suppress(AttributeError):  # a wrapper may have the method, and its loader not
            state = self._loader.state_dict()
        return copy.deepcopy(state)  # a loader may go on counting in the mapping that it returned

    def _result(self, ahead: _Ahead) -> BatchWindow | None:
        """The window that was read. If reading failed, the other ranks learn it where they agree,
        and fail too."""
        try:
            return ahead.result()
        except Exception:
            rows = self._hot_rows()
            if self._dealt is None and rows is not None and dist.is_initialized():
                # If the others do not come, the error here is raised anyway.
                with suppress(RuntimeError):
                    self._least(None, rows.version, failed=True)
            raise

    def _agree(self, window: BatchWindow | None) -> bool:
        """Settle how many of its batches are hot: on all ranks as many as every rank can form.

        Return whether there is a window: all ranks must have one, or none.
        """
        if window is None or window.dealt is None:  # else it is resumed within
            rows = self._hot_rows()
            if window is not None and rows is not None and window.version != rows.version:
                window.classify(rows)
            least = 0 if rows is None else self._least(window, rows.version)
            if window is not None:
                window.deal(least)
        return window is not None

    def _least(self, window: BatchWindow | None, version: str, failed: bool = False) -> int:
        """The hot batches that every rank can form of its window, by the tier plan of this version;
        an error on all ranks where windows or plans differ, or where one of them `failed`."""
        hot, length = (0, 0) if window is None else (window.most_hot, len(window))
        if self._world_size == 1:
            return hot
        if not dist.is_initialized():
            raise CapabilityError(
                f"cache.hot_batches: {self._world_size} ranks agree on hot batches, but there is "
                "no process group. Call torch.distributed.init_process_group before iterating, or "
                "set hot_batches to false."
            )
        patience = PATIENCE if failed else None
        if self._ranks is None:
            self._ranks = LeastOfRanks(self._planner.group, "hot batches", patience)
        number = int(version[:15], 16)
        failing = -(self._rank + 1) if failed else 0
        # Numbers that must be alike go negated too: their least is the greatest of all, negated.
        counts = [hot, length, -length, number, -number, failing]
        least, shortest, longest, lowest, highest, failing = self._ranks.least(counts, patience)
        longest, highest = -longest, -highest
        if failing and not failed:
            raise DataError(
                f"cache.hot_batches: rank {-failing - 1} could not read its batches, and prints "
                "why; no rank goes on without them."
            )
        if not failed and (shortest, lowest) != (longest, highest):
            raise DataError(
                f"cache.hot_batches: ranks have windows of {shortest} to {longest} batches, rank "
                f"{self._rank} of {length}, or tier plans that differ: all ranks must yield the "
                "same number of batches an epoch, and have the same plan."
            )
        return least

    def _hot_rows(self) -> HotRows | None:
        """The hot rows of the plan as it is now. Only iterating asks for them, so all ranks do so
        alike."""
        plan = self._planner.tier_plan
        if plan is None:
            return None
        if self._rows is None or self._rows.version != plan.version:
            self._rows = HotRows(plan, self._planner.features_of)
        return self._rows


class _Ahead:
    """A window on its way: its batches are taken, then it is made of them in a thread."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        batches: Iterator[Any],
        count: int,
        state: Callable[[], dict[str, Any] | None],
        make: Callable[..., BatchWindow | None],
        kept: KeptBatches | None,
    ) -> None:
        """`make` is given up to `count` batches, and the loader's states before and after them;
        those that the caller takes are `kept`."""
        self._pool, self._batches, self._left = pool, batches, count
        self._state, self._make, self._kept = state, make, kept
        self._start = state()
        self._taken: list[Any] = []
        self._made: Future[BatchWindow | None] | None = None
        self._failure: Exception | None = None

    def read_in_thread(self) -> None:
        """Take all of them in the thread."""
        self._made = self._pool.submit(self._read)

    def take(self, most: int) -> None:
        """Take up to `most` more in the caller's thread; `result` raises what fails."""
        if self._made is not None or self._failure is not None:
            return
        try:
            taken = list(self._looked_at(islice(self._batches, min(most, self._left))))
        except Exception as error:
            self._failure = error
            return
        self._taken += taken
        self._left -= len(taken)
        if not self._left or len(taken) < most:
            self._left = 0
            end = self._state()
            self._made = self._pool.submit(self._make, self._taken, self._start, end)

    def result(self) -> BatchWindow | None:
        """The window; None at the end of the epoch."""
        self.take(self._left)
        if self._failure is not None:
            raise self._failure
        assert self._made is not None  # all of them are taken
        return self._made.result()

    def _looked_at(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            if self._kept is not None:
                self._kept.keep(batch)
            yield batch

    def _read(self) -> BatchWindow | None:
        taken = list(islice(self._batches, self._left))
        return self._make(taken, self._start, self._state())


class HotBatches(HotBatchesWithoutState):
    """The same for a loader with a state; a `slots.Loader`.

    These are two classes, since some trainers save the position of each loader that has a
    `state_dict`.
    """

    def state_dict(self) -> dict[str, Any]:
        """The position, in numbers and texts alone but for what is the loader's own."""
        start = self._loader.state_dict() if self._start is None else self._start
        dealt = None if self._dealt is None else self._dealt.to_state()
        return {"loader": start, "batches": self._index, "window": dealt}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on within a window as it was dealt, even if the plan has changed."""
        if set(state) != {"loader", "batches", "window"}:
            raise DataError(
                "the reader's state is not one of hot batches, since the run that wrote it had "
                "none. Set cache.hot_batches to false to resume, or start afresh."
            )
        self._start, self._index, self._loaded = state["loader"], state["batches"], True
        self._dealt = None if state["window"] is None else DealtWindow.of_state(state["window"])
