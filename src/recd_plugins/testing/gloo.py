"""Ranks for tests: processes started once, joined by a new gloo group in every call.

All sockets are on loopback, and the system picks the store's port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from multiprocessing.util import Finalize
from typing import Any, NamedTuple, TypeVar

from recd_plugins.launch.environment import loopback_store, rank_environment
from recd_plugins.launch.ranks import PRELOADED, Group, Ranks, RanksFailed, RankStart

__all__ = ["PRELOADED_FOR_TESTS", "GlooPool", "RanksFailed"]

T = TypeVar("T")

PRELOADED_FOR_TESTS = [*PRELOADED, "pytest", "recd_plugins.testing.preload"]
"""The modules that ranks import first; those that are not installed are left out."""


class GlooPool:
    """Runs a function on gloo ranks and returns what each rank returned.

    Each world size has its own ranks, which all see the same calls: TorchRec keeps state per
    process, and ranks with different histories would wait for each other. Ranks are started when
    first needed and after a call that failed, and end with their parent.
    """

    def __init__(self, *, deadline: float = 60.0) -> None:
        self.deadline = deadline
        self._ranks: dict[int, _Met] = {}
        # Before multiprocessing waits for its children, in a main process or a child of one.
        Finalize(self, _close, args=(self._ranks,), exitpriority=100)

    def run(
        self,
        function: Callable[..., T],
        *args: Any,
        world_size: int = 2,
        deadline: float | None = None,
        **kwargs: Any,
    ) -> list[T]:
        """Run `function(*args, **kwargs)` on every rank, and return the results by rank.

        `function` must be at the top level of a module, which may be a test module. The default
        process group is initialised: `torch.distributed.get_rank()` returns the rank. Seeds are 0,
        torch runs one thread, and RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE are set; other
        variables are as they were when the very first rank was started. Arguments and results are
        pickled: they are plain data and tensors.

        If a rank raises, dies or is not done `deadline` seconds after all were ready,
        `RanksFailed` shows every traceback, the stacks of the ranks that hang, and what they
        printed. After a successful call, the output of the ranks is printed here.
        """
        __tracebackhide__ = True
        deadline = self.deadline if deadline is None else deadline
        met = self._ready(world_size)
        ranks, call = met.ranks, next(met.calls)
        timeout = timedelta(seconds=deadline + 60)  # our deadline comes first
        groups = [
            Group(
                rank=rank,
                world_size=world_size,
                port=met.store.port,
                call=call,
                timeout=timeout,
            )
            for rank in range(world_size)
        ]
        results = ranks.run(function, args, kwargs, deadline=deadline, groups=groups)
        for rank, text in enumerate(ranks.printed()):
            if text:
                print(f"[rank {rank}] {text.rstrip()}")
        return results

    def close(self) -> None:
        """End all ranks."""
        _close(self._ranks)

    def __enter__(self) -> GlooPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ready(self, world_size: int) -> _Met:
        """The ranks of this world size, alive and with their imports done."""
        met = self._ranks.get(world_size)
        if met is None or not met.ranks.alive():
            if met is not None:
                met.ranks.close()
            starts = [
                RankStart(environment=rank_environment(rank, world_size))
                for rank in range(world_size)
            ]
            ranks = Ranks(starts, preload=PRELOADED_FOR_TESTS)
            met = self._ranks[world_size] = _Met(ranks, loopback_store(world_size), count())
        return met


class _Met(NamedTuple):
    """Ranks, and the store where they meet in each call."""

    ranks: Ranks
    store: Any
    calls: Iterator[int]


def _close(ranks: dict[int, _Met]) -> None:
    while ranks:
        ranks.popitem()[1].ranks.close()
