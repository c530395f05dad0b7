"""Results that are kept while registries are compared: a planner takes seconds for a plan, and
registries that differ in other things need the same plan again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

__all__ = ["remembered", "remembering"]

T = TypeVar("T")

_found: ContextVar[dict[Hashable, Any] | None] = ContextVar("what was found", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Inside, `remembered` makes each thing once."""
    token = _found.set({})
    try:
        yield
    finally:
        _found.reset(token)


def remembered(key: Hashable, make: Callable[[], T]) -> T:
    """Inside `remembering`, what `make` returned for this key; elsewhere what it returns now. The
    key holds all that the result depends on, and who asks for it. Nobody may change what is
    returned."""
    found = _found.get()
    if found is None:
        return make()
    # Hash the key once: one with all tables of a model takes its time.
    made = found.get(key, found)
    if made is found:
        made = found[key] = make()
    return cast("T", made)
