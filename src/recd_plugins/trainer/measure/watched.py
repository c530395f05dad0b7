"""Watches the batches of a trainer's own loader, and sets what came beside what was forecast."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from recd_plugins.compat.pytorch import device_of, is_innermost
from recd_plugins.planning.access.lookups import deduplicated_parts, is_hot, sparse_parts
from recd_plugins.sparse.wrapped_loader import WrappedLoader
from recd_plugins.trainer.measure.beside import Beside, lines
from recd_plugins.trainer.measure.dedupe_ahead import FIRST, KeptIds
from recd_plugins.trainer.measure.forecasts import Facts, is_counted
from recd_plugins.trainer.measure.traffic import COLLECTIVES, TrafficCounter

if TYPE_CHECKING:
    from recd_plugins.sparse.own_batches import FeaturesOf
    from recd_plugins.stack import Stack

__all__ = ["WatchedBatches"]

FILLING, SPACING = 4, 20
"""How many batches a pipeline takes before its steps are alike; how many steps lie between two
whose bytes are counted."""
ROUTES = sorted(set(COLLECTIVES.values()))


class WatchedBatches(WrappedLoader):
    """Yields the batches of a loader unchanged; all other attributes are the loader's.

    `forecasts` and `lines` give what the stack's plan forecast, and what came. The lookups of one
    batch in eight are counted by tier (`is_counted`). The bytes of a step are those that this
    process hands to collectives between one batch and the next, in one step of `SPACING`. Whatever
    else the trainer sends meanwhile counts too.
    """

    def __init__(
        self, stack: Stack, loader: Iterable[Any], *, features: FeaturesOf | None = None
    ) -> None:
        """`features(batch)` gives a batch's sparse features, by default the only ones it holds."""
        self._stack = stack
        self._loader = loader
        self._features = features
        self._facts: Facts | None = None
        self._ids: list[tuple[int, int]] = []
        """The number of ids of each batch, and of those that are kept."""
        self._seen = self._hot = 0
        self._counter: TrafficCounter | None = None
        self._steps: list[list[float]] = []
        """The bytes of each of `ROUTES`, by step."""

    def __iter__(self) -> Iterator[Any]:
        try:
            for batch in self._loader:
                self._step_ends()
                self._look_at(batch)
                self._step_begins()
                yield batch
        finally:  # also if the trainer stops early: what it does next is not part of a step
            self._step_ends()

    def __len__(self) -> int:
        if not isinstance(self._loader, Sized):
            raise TypeError(f"a {type(self._loader).__name__} has no length")
        return len(self._loader)

    def forecasts(self, device: torch.device | str | None = None) -> list[Beside]:
        """The forecasts of all ranks that train; each of them must call it. The first rank, which
        planned, gets the forecasts, and the others an empty list. `device`: where collectives take
        tensors, by default the device of the ranks' process group."""
        self._step_ends()
        facts = self._facts or Facts(self._stack)
        facts.ahead = KeptIds.each(self._ids[:FIRST], of=math.inf)
        facts.came = KeptIds.each(self._ids[FIRST:])
        if device is None:
            group = self._stack.group or dist.GroupMember.WORLD
            assert group is not None
            device = device_of(group)
        at = torch.device(device)
        mine = [*np.sum(self._steps, axis=0).tolist()] if self._steps else [0.0] * len(ROUTES)
        every = torch.tensor([*mine, len(self._steps)], dtype=torch.float64, device=at)
        dist.all_reduce(every, group=self._stack.group)
        *sums, steps = every.tolist()
        traffic = {to: size / steps for to, size in zip(ROUTES, sums, strict=True) if size}
        found = facts.beside(at, traffic=traffic, dense=self._stack.dense_handed, parts={})
        return [] if dist.get_rank(self._stack.group) else found

    def lines(self, device: torch.device | str | None = None) -> list[str]:
        """`forecasts` in words: a table, and what to do if forecast and fact differ."""
        return list(lines(self.forecasts(device)))

    def _look_at(self, batch: Any) -> None:
        self._seen += 1
        parts = sparse_parts(batch, self._features)
        if deduplicated := deduplicated_parts(parts):
            counts = [part.id_counts() for part in deduplicated]
            self._ids.append((sum(n for n, _ in counts), sum(k for _, k in counts)))
        self._hot += (hot := is_hot(parts))
        drawn = is_counted(self._hot if hot else self._seen - self._hot, hot=hot)
        self._facts = self._facts or Facts(self._stack)
        self._facts.look_at(batch, self._features, drawn=drawn)

    def _step_begins(self) -> None:
        due = self._seen >= FILLING and self._seen % SPACING == FILLING
        if due and threading.current_thread() is threading.main_thread():
            self._counter = TrafficCounter()
            self._counter.__enter__()

    def _step_ends(self) -> None:
        counter, self._counter = self._counter, None
        if counter is None or not is_innermost(counter):
            return  # another mode was entered since, and must be left before this one
        counter.__exit__(None, None, None)
        found = {to: sum(phases.values()) for to, phases in counter.traffic.items()}
        self._steps.append([found.get(to, 0.0) for to in ROUTES])
