"""A bounded look at a trainer's batches, after which the trainer still gets the same batches."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy, deepcopy
from itertools import islice
from multiprocessing.context import BaseContext
from multiprocessing.sharedctypes import SynchronizedBase
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.planning.access.contents import Contents, warn_of_shared
from recd_plugins.planning.access.shared_numbers import (
    long_shared,
    restoring_properties,
    restoring_shared,
)
from recd_plugins.sparse.wrapped_loader import WrappedLoader

if TYPE_CHECKING:
    from recd_plugins.sparse.kept_batches import KeptBatches

__all__ = ["Look", "LooksAtBatches", "Peeked"]

T = TypeVar("T")


class LooksAtBatches:
    """A base class of objects that keep what they saw of batches: a look that restores a loader's
    state leaves them alone."""


DEPTH, PARTS = 12, 1_000
"""How deep in a loader, and among how many of its parts, a look searches for state."""
FEW = 32
"""The most items of a list of stages."""
NUMBERS = (str, bytes, int, float, complex, type(None), np.ndarray, np.generic)
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
LEFT_OUT = (*NUMBERS, *CODE, LooksAtBatches, random.SystemRandom)
"""Types of objects that have no position, and would lead away from the loader."""
NUMPY = np.random.Generator | np.random.RandomState
ALIVE = ("_thread", "asyncio", "concurrent", "multiprocessing", "queue", "subprocess", "threading")
"""Modules of objects that act even while nobody reads: their owner may change at any time."""
STILL: tuple[type[Any], ...] = (BaseContext, SynchronizedBase)
"""Types of these modules' objects that do not: how processes are started, and numbers."""
BEGINS_ANEW = {
    "persistent_workers": False,
    "_iterator": None,
    "_initial_iter_for_state_dict": False,  # torchdata's
}
"""The attributes of a DataLoader while it is looked at. Its iterator belongs to the trainer: a
second `iter` would rewind persistent workers, and torchdata's loader, once asked for its state, has
an iterator that its next `iter` returns."""
ABSENT = object()
"""Stands for an attribute, or a batch, that is not there."""


class Peeked(WrappedLoader, Generic[T]):
    """An iterator whose next batches can be looked at; it still yields all of them. Its length and
    other attributes, such as a sampler, are those of what it iterates over. It has no state, since
    that would be of batches that training has not had yet.
    """

    def __init__(self, batches: Iterable[T]) -> None:
        self._loader = batches
        self._running = iter(batches)
        self._held: deque[T] = deque()
        self._kept: KeptBatches | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._held:
            return next(self._running)
        if self._kept is not None:
            self._kept.take()
        return self._held.popleft()

    def __bool__(self) -> bool:  # by its length, an iterator without one would be an error
        return True

    def __getattr__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(
                f"what stack.peek returns has no {name!r}, for the loader is ahead of training by "
                "the batches that the plan has read. Plan by a saved profile "
                "(`stack.plan(model, profile=...)`), and leave stack.peek out."
            )
        return super().__getattr__(name)

    def ahead(self) -> Iterator[T]:
        """The batches that come next, from the first one, each read when it is asked for."""
        from recd_plugins.sparse.kept_batches import KeptBatches

        if self._kept is None:
            cure = ", or plan by a saved profile (`stack.plan(model, profile=...)`)"
            self._kept = KeptBatches("stack.peek", cure)
        index = 0
        while True:
            if index == len(self._held):
                for batch in islice(self._running, 1):
                    self._kept.keep(batch)
                    self._held.append(batch)
            if index == len(self._held):
                return
            yield self._held[index]
            index += 1


class Look:
    """The first batches of an iterable, read in one pass as they are asked for, and those of its
    next epoch.

    An iterable is iterated anew. `close` puts these back: its position (`state_dict`); the
    positions of datasets, samplers and stages in it, such as epoch numbers; their contents, such as
    a list of files that is shuffled in place; and all random states: those of torch, numpy and
    random, and those of generators in it. An iterator would lose what is read: it must be `Peeked`.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        from torch.utils.data import DataLoader

        is_copy = issubclass(type(batches), DataLoader)  # not a wrapper that claims to be one
        if is_copy:
            batches = copy(batches)
        self._batches: Any = batches
        self._before = _Before(batches, is_copy=is_copy)
        if isinstance(batches, Peeked):
            self._running = batches.ahead()
        elif (running := iter(batches)) is batches:
            raise DataError(
                "batches: is an iterator, so training would not get the batches that are counted. "
                "Pass what it iterates over (the DataLoader itself); or let the plan look ahead: "
                "`batches = stack.peek(batches)`, then plan and train with that."
            )
        else:
            self._running = running
        self._first = list(islice(self._running, 1))

    @property
    def first(self) -> Any:
        """The first batch; None if there are no batches."""
        return self._first[0] if self._first else None

    def __len__(self) -> int:
        """The loader's length; `TypeError` if it has none."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        """All batches from the first one, once."""
        yield from self._first
        for batch in self._running:  # noqa: UP028 - it goes on where this iterator is closed
            yield batch

    def next_epoch(self) -> Iterator[Any]:
        """The batches of a further epoch, once this one was read; none if it was not read to its
        end, or if it can only be read ahead. `close` takes them back, too."""
        if isinstance(self._batches, Peeked) or next(self._running, ABSENT) is not ABSENT:
            return
        self._running = iter(self._batches)
        yield from self._running

    def close(self) -> None:
        """Read no more batches, and put loader and random states back as they were."""
        self._running = iter(())
        self._before.restore()

    def __enter__(self) -> Look:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Before:
    """The attributes of a loader and its parts, the positions of those that have one, and all
    random states."""

    def __init__(self, batches: Any, *, is_copy: bool) -> None:
        import torch
        from torch.utils.data import DataLoader, Dataset, Sampler

        random_states = _random_states()
        self._rebind = random_states
        self._positions: list[tuple[Any, Any]] = []
        self._contents = Contents(())
        self._long: list[tuple[str, Callable[[], Any], Any]] = []
        """Arrays of shared numbers that are not put back, with some of what they had."""
        if isinstance(batches, Peeked):
            return
        moved: list[Any] = []
        tell = [] if is_copy else [batches]
        loaders = []
        for part in [batches, *_parts(batches)]:
            if isinstance(part, torch.Generator | NUMPY | random.Random):
                random_states.append(_restoring(part))
            elif isinstance(part, Dataset | Sampler):
                # Without workers these are iterated in this process, and may continue where they
                # were left.
                moved.append(part)
                tell.append(part)
            elif issubclass(type(part), DataLoader):
                moved.append(part)
                loaders.append(part)
            elif _is_moved_by_reading_alone(part):
                moved.append(part)
        # Outer stages come first: their threads end with the iterators that they hold, and draw no
        # more random numbers.
        self._rebind = [*map(_rebinding, moved), *random_states]
        self._contents = Contents(part for part in moved if not _lives(part))
        for part in moved:
            self._rebind += restoring_shared(part)
            self._long += ((name, read, read()) for name, read in long_shared(part))
            if isinstance(part, Dataset | Sampler):
                self._rebind += restoring_properties(part)
        for part in tell:
            with suppress(Exception):  # without a position before it is read, it begins anew
                self._positions.append((part, _position(part)))
        for part in loaders:
            vars(part).update(BEGINS_ANEW)

    def restore(self) -> None:
        """Put everything back as it was.

        A state may not include a position that was loaded but not yet reached. So a state is loaded
        only if resetting attributes is not enough, as when a part writes into their contents.
        """
        self._contents.see_moved()
        self._bind()
        self._contents.warn()
        if changed := [name for name, read, before in self._long if read() != before]:
            warn_of_shared(changed)
        moved = [(part, before) for part, before in self._positions if not _is_at(part, before)]
        self._bind()  # since a loader may begin to read in order to tell its position
        for part, before in moved:
            part.load_state_dict(before)

    def _bind(self) -> None:
        for rebind in self._rebind:
            rebind()
        self._contents.restore()


def _position(part: Any) -> Any:
    """The position of a part; raises an error if the part cannot be put back there."""
    position = deepcopy(part.state_dict())
    _ = part.load_state_dict
    return position


def _is_at(part: Any, position: Any) -> bool:
    try:
        return _alike(part.state_dict(), position)
    except Exception:  # it no longer knows
        return False


def _alike(one: Any, other: Any) -> bool:
    """Whether two states are equal, including the tensors in them."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    # For tensors and arrays, which are compared element by element.
    return bool(np.array_equal(one, other))


def _random_states() -> list[Callable[[], Any]]:
    """Functions that put the random states of the process back to what they are now."""
    import torch

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
    return restore


def _rebinding(part: Any) -> Callable[[], None]:
    """A function that puts an object's attributes back to what they are now.

    If reading began threads that the object keeps, these use what it added, until its next pass
    ends them.
    """
    before, lived = dict(vars(part)), _lives(part)

    def restore() -> None:
        now = vars(part)
        began = not lived and _lives(part)
        for name in now.keys() | before.keys():
            if name not in before:
                if not began or isinstance(now[name], Iterator):
                    del now[name]
            elif now.get(name, ABSENT) is not before[name]:
                now[name] = before[name]

    return restore


def _is_moved_by_reading_alone(part: Any) -> bool:
    """Whether a part is an object of a library or of the trainer that only iteration changes, such
    as a wrapper of a loader or a stage of a pipeline."""
    from torch import nn

    if isinstance(part, type | nn.Module) or not hasattr(part, "__dict__"):
        return False
    return _package(part) not in sys.stdlib_module_names and not _lives(part)


def _lives(part: Any) -> bool:
    """Whether a part holds something that may change it while nobody reads."""
    held = [one for one in vars(part).values() if not isinstance(one, STILL)]
    return any(_package(one) in ALIVE for one in held)


def _package(one: Any) -> str:
    return type(one).__module__.partition(".")[0]


def _parts(loader: Any) -> Iterator[Any]:
    """The objects in a loader, such as its sampler and dataset, and the objects in these. Long
    lists, which may be data, are searched last."""
    seen: set[int] = set()
    found, data = deque([(loader, 0)]), deque[tuple[Any, int]]()
    while found or data:
        one, depth = (found or data).popleft()
        for part in islice(_held(one), PARTS):
            if len(seen) == PARTS:
                return
            if isinstance(part, LEFT_OUT) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            if depth < DEPTH:
                is_long = isinstance(part, dict | list | tuple) and len(part) > FEW
                (data if is_long else found).append((part, depth + 1))


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
    if isinstance(generator, np.random.RandomState):
        legacy = generator.get_state()
        return lambda: generator.set_state(legacy)
    numbers = generator.bit_generator.state
    return lambda: setattr(generator.bit_generator, "state", numbers)
