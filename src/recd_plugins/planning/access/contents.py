"""The contents of containers in a loader's parts, which reading may shuffle, fill or count up in
place.

A loader that shuffles its list of files, `random.shuffle(self.files)`, still has the same list, in
another order. One that keeps an iterator over all epochs still has that iterator, further on.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from operator import is_, length_hint
from types import GeneratorType
from typing import Any

import numpy as np

from recd_plugins.errors import listed
from recd_plugins.notices import NoticeWarning

__all__ = ["MOST_BYTES", "Contents", "warn_of_shared"]

MOST_BYTES = 1 << 26
"""The most bytes of contents that are copied in all. Samples held in memory take more, and are not
copied."""
DEEPEST = 3
"""How many levels of nested containers are searched."""
FEW = 32
"""The most entries of a container that is searched for others: longer ones are data."""
SEEN = 4096
"""About how many entries of a container that is not copied are compared."""
ITERATORS = (*map(type, map(iter, ([], (), {}, {}.values(), {}.items(), range(0), ""))),)
"""The types of iterators that tell how many entries are still to come."""


class Contents:
    """The entries of the lists, mappings, sets, arrays and tensors in some objects, as they were
    when this was made; and the positions of their iterators, which cannot be put back."""

    def __init__(self, owners: Iterable[object]) -> None:
        """The smallest containers are copied first, up to `MOST_BYTES` in all. For each of the
        others some entries are remembered, so that a change is noticed."""
        found: dict[int, tuple[str, Any]] = {}
        self._iterators: list[tuple[str, Any, list[Any]]] = []
        self._moved: set[str] = set()
        for owner in owners:
            for name, one in vars(owner).items():
                for held in _containers(one, DEEPEST):
                    called = f"{type(owner).__name__}.{name}"
                    if (place := _place_of(held)) is None:
                        found.setdefault(id(held), (called, held))
                    elif not isinstance(owner, Iterator):  # else the owner itself moves it
                        self._iterators.append((called, held, place))
        self._refill: list[Callable[[], Any]] = []
        self._large: list[tuple[str, Any, list[Any]]] = []
        room = MOST_BYTES
        for name, one in sorted(found.values(), key=lambda pair: _size(pair[1])):
            room -= _size(one)
            if room >= 0:
                self._refill.append(_refilling(one))
            else:
                self._large.append((name, one, _some_of(one)))

    def see_moved(self) -> None:
        """Find the iterators that have moved, before their contents are restored."""
        self._moved = {
            name
            for name, one, before in self._iterators
            if not _same_entries(_place_of(one) or [], before)
        }

    def restore(self) -> None:
        """Give everything that was copied the same entries in the same order again."""
        for refill in self._refill:
            refill()

    def warn(self) -> None:
        """Warn about containers that were not copied and have other entries now, and about
        iterators that have moved."""
        changed = [
            name for name, one, before in self._large if not _same_entries(_some_of(one), before)
        ]
        if changed:
            _warn(
                f"changed {listed(sorted(set(changed)))} in place, of more than the "
                f"{MOST_BYTES >> 20} MiB that are put back, so that training reads other batches "
                "than without a plan, or the same in another order"
            )
        if self._moved:
            _warn(
                f"moved {listed(sorted(self._moved))} on, an iterator that the loader keeps, so "
                "that training does not get what was read"
            )


def warn_of_shared(names: Collection[str]) -> None:
    """Warn about arrays of numbers that processes share, which have changed and are not put
    back."""
    _warn(
        f"changed {listed(sorted(set(names)))}, which other processes share and which has more "
        "numbers than are put back, so that training may read other batches than without a plan"
    )


def _warn(what: str) -> None:
    warnings.warn(
        f"batches: reading some of them for a plan {what}. Write `loader = stack.peek(loader)`, "
        "plan with that loader, and train the first pass with it.",
        NoticeWarning,
        stacklevel=2,
    )


def _place_of(one: Any) -> list[Any] | None:
    """The position of an iterator; None for any other object, or an iterator that does not tell."""
    from recd_plugins.compat.pytorch import yielded_by

    if isinstance(one, GeneratorType):
        frame = one.gi_frame
        return [] if frame is None else [frame.f_lasti, *frame.f_locals.values()]
    if (yielded := yielded_by(one)) is not None:
        return [yielded]
    return [length_hint(one)] if isinstance(one, ITERATORS) else None


def _containers(one: Any, depth: int) -> Iterator[Any]:
    """The object, if it is an iterator or has entries that reading could change, and such objects
    inside it."""
    import torch

    kind = type(one)
    if _place_of(one) is not None or _is_read_alone(one):
        yield one
    elif isinstance(one, np.ndarray):
        if one.flags.writeable and _has_its_memory_alone(one):
            yield one
    elif kind is torch.Tensor:
        plain = one.layout is torch.strided and not one.is_inference()
        if plain and one.device.type == "cpu" and not one.is_shared():
            yield one
    elif kind in (list, dict, set, deque, OrderedDict, defaultdict, tuple):
        if kind is not tuple:
            yield one
        if depth and len(one) <= FEW:
            for held in _entries(one.values() if isinstance(one, dict) else one):
                yield from _containers(held, depth - 1)


def _is_read_alone(one: Any) -> bool:
    """Whether it is a file open only for reading that can tell its position."""
    if not isinstance(one, io.IOBase) or one.closed or not one.seekable():
        return False
    try:
        return one.readable() and not one.writable() and one.tell() >= 0
    except OSError:  # a text file that is being iterated
        return False


def _has_its_memory_alone(array: Any) -> bool:
    """Whether the array's memory is its own, and not that of a file, another process or a
    tensor."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return array is None


def _entries(one: Any) -> list[Any]:
    return list(one.items() if isinstance(one, dict) else one)


def _size(one: Any) -> int:
    """The object's size in bytes; for a list, that of its references."""
    return int(getattr(one, "nbytes", 0)) or sys.getsizeof(one)


def _refilling(one: Any) -> Callable[[], Any]:
    """A function that puts the object's present entries back if it has others by then, or a file's
    present position."""
    if isinstance(one, io.IOBase):
        return partial(one.seek, one.tell())
    if isinstance(one, np.ndarray):
        array = one.copy()
        return lambda: None if np.array_equal(one, array) else np.copyto(one, array)
    if hasattr(one, "nbytes"):
        return _refilling_tensor(one)
    entries = _entries(one)

    def refill() -> None:
        if not _same_entries(_entries(one), entries):
            one.clear()
            (one.extend if isinstance(one, list | deque) else one.update)(entries)

    return refill


def _refilling_tensor(one: Any) -> Callable[[], None]:
    import torch

    tensor = one.detach().clone()

    def refill() -> None:
        if not torch.equal(one, tensor):
            with torch.no_grad():
                one.copy_(tensor)

    return refill


def _some_of(one: Any) -> list[Any]:
    """Some entries from all over the object, followed by the number of its entries."""
    if hasattr(one, "nbytes"):
        flat = np.asarray(one).reshape(-1) if isinstance(one, np.ndarray) else one.flatten()
        return [*flat[:: max(1, len(flat) // SEEN)].tolist(), len(flat)]
    every = _entries(one)
    return [*every[:: max(1, len(every) // SEEN)], len(every)]


def _same_entries(some: list[Any], others: list[Any]) -> bool:
    """Whether these entries are the same objects or equal numbers."""
    return len(some) == len(others) and all(map(_same, some, others))


def _same(one: Any, other: Any) -> bool:
    if type(one) is tuple and type(other) is tuple:  # a mapping's entry
        return len(one) == len(other) and all(map(is_, one, other))
    return one is other or (isinstance(one, int | float) and one == other) or _both_nan(one, other)


def _both_nan(one: Any, other: Any) -> bool:
    return isinstance(one, float) and one != one and other != other
