"""JSON that keeps the keys of mappings which are no texts, as of counts by step: JSON has texts
alone, and 3 would come back as "3"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["as_items", "from_items"]

ITEMS = "__items__"
"""The one key of what stands for a mapping: its keys and values, in a list of pairs."""


def as_items(value: Any) -> Any:
    """A tree of mappings and lists, in which each mapping with such keys is a list of its items.

    >>> as_items({"seen": {3: 1}}), from_items(as_items({3: 1}))
    ({'seen': {'__items__': [[3, 1]]}}, {3: 1})
    """
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and ITEMS not in value:
            return {key: as_items(one) for key, one in value.items()}
        return {ITEMS: [[key, as_items(one)] for key, one in value.items()]}
    return [as_items(one) for one in value] if isinstance(value, list | tuple) else value


def from_items(made: dict[str, Any]) -> dict[Any, Any]:
    """A mapping as it was before `as_items`; `json.loads` takes this as its `object_hook`."""
    return dict(made[ITEMS]) if made.keys() == {ITEMS} else made
