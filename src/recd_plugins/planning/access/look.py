"""A bounded look at a trainer's batches, after which the trainer gets the same ones as without."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy, deepcopy
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from recd_plugins.errors import DataError

__all__ = ["Look", "Peeked"]

T = TypeVar("T")

DEPTH, PARTS = 4, 1_000
"""How deep in a loader, and among how many of its parts, it is looked for what keeps a state."""
ABSENT = object()
"""Stands for an attribute that is not there."""


class Peeked(Generic[T]):
    """An iterator whose next batches can be looked at: they stay for whoever iterates it."""

    def __init__(self, batches: Iterable[T]) -> None:
        self._running = iter(batches)
        self._held: deque[T] = deque()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._held.popleft() if self._held else next(self._running)

    def ahead(self) -> Iterator[T]:
        """The batches that come next, from the first on, each read when it is asked for."""
        index = 0
        while True:
            if index == len(self._held):
                for batch in islice(self._running, 1):
                    self._held.append(batch)
            if index == len(self._held):
                return
            yield self._held[index]
            index += 1


class Look:
    """The first batches of an iterable, read in one pass as they are asked for.

    An iterable is iterated anew; `close` puts its position (`state_dict`), those of datasets and
    samplers that it holds, and all random states back: those of torch, numpy and random, and those
    of generators that it holds. An iterator would lose what is read: it must be `Peeked`.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        from torch.utils.data import DataLoader

        if isinstance(batches, DataLoader):
            batches = copy(batches)
            # Workers that persist are the trainer's: a second `iter` would wind back its first.
            vars(batches)["persistent_workers"] = False
        self._batches: Any = batches
        self._restore = _states(batches)
        if isinstance(batches, Peeked):
            self._running = batches.ahead()
        elif (running := iter(batches)) is batches:
            raise DataError(
                "batches: is an iterator, from which the batches that are counted would be "
                "missing in training. Pass what it iterates over (the DataLoader itself); or let "
                "the plan look ahead: `batches = stack.peek(batches)`, then plan and train with "
                "that."
            )
        else:
            self._running = running
        self._first = list(islice(self._running, 1))

    @property
    def first(self) -> Any:
        """The first batch; None where there is none."""
        return self._first[0] if self._first else None

    def __len__(self) -> int:
        """The length that the loader says; a `TypeError` if it says nothing."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        """All batches from the first on, once."""
        yield from self._first
        yield from self._running

    def close(self) -> None:
        """No batch is asked for any more: loader and random states are as they were before."""
        self._running = iter(())
        for restore in self._restore:
            restore()

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _states(batches: Any) -> list[Callable[[], Any]]:
    """The calls that put everything back as it is now."""
    import torch
    from torch.utils.data import Dataset, Sampler

    state = torch.get_rng_state()
    python, legacy = random.getstate(), np.random.get_state()
    restore: list[Callable[[], Any]] = [
        lambda: torch.set_rng_state(state),
        lambda: random.setstate(python),
        lambda: np.random.set_state(legacy),
    ]
    if torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
        restore.append(lambda: torch.cuda.set_rng_state_all(devices))
    if isinstance(batches, Peeked):
        return restore
    generators = torch.Generator | np.random.Generator | random.Random
    for part in [batches, *_parts(batches)]:
        if isinstance(part, generators):
            restore.append(_restoring(part))
        elif isinstance(part, Dataset | Sampler):
            # Without workers they are iterated themselves, and may go on where they were left.
            restore.append(_repositioning(part))
    if _has_state(batches) and not isinstance(batches, Dataset):
        position = batches.state_dict()
        restore.append(lambda: batches.load_state_dict(position))
    return restore


def _has_state(one: Any) -> bool:
    return hasattr(one, "state_dict") and hasattr(one, "load_state_dict")


def _repositioning(part: Any) -> Callable[[], None]:
    """Have a dataset or a sampler load its state, and bind what it was seen to bind anew as it was:
    its state need not know of one that it has loaded and not come to yet."""
    before = dict(vars(part))
    positions = []
    if _has_state(part):
        with suppress(Exception):  # it knows none before it is read, and so begins anew
            positions.append(deepcopy(part.state_dict()))

    def restore() -> None:
        now = vars(part)
        names = now.keys() | before.keys()
        anew = [name for name in names if now.get(name, ABSENT) is not before.get(name, ABSENT)]
        for position in positions:
            part.load_state_dict(position)
        for name in anew:
            if name in before:
                now[name] = before[name]
            else:
                now.pop(name, None)

    return restore


def _parts(loader: Any) -> Iterator[Any]:
    """What a loader holds, such as its sampler and dataset, and what they hold."""
    seen: set[int] = set()
    level = [loader]
    for _ in range(DEPTH):
        parts = [part for one in level for part in islice(_held(one), PARTS)]
        level = []
        for part in parts:
            if id(part) in seen or len(seen) > PARTS:
                continue
            seen.add(id(part))
            yield part
            level.append(part)


def _held(one: Any) -> Iterator[Any]:
    if isinstance(one, dict):
        yield from one.values()
    elif isinstance(one, list | tuple):
        yield from one
    else:
        yield from getattr(one, "__dict__", {}).values()


def _restoring(generator: Any) -> Callable[[], Any]:
    import torch

    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        return lambda: generator.set_state(state)
    if isinstance(generator, random.Random):
        python = generator.getstate()
        return lambda: generator.setstate(python)
    numbers = generator.bit_generator.state
    return lambda: setattr(generator.bit_generator, "state", numbers)
