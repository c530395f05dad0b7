"""What was found once, for a while: what takes a planner seconds, or a registry's parts their share
of it, is asked for again and again where registries are weighed that differ in other things."""

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
    """What `make` returned for this key, inside `remembering`; else what it returns now. The key
    has all that it depends on, and who asks; nobody may change what is returned."""
    found = _found.get()
    if found is None:
        return make()
    # Once: keys with all tables of a model take their time to be hashed.
    made = found.get(key, found)
    if made is found:
        made = found[key] = make()
    return cast("T", made)
