"""JSON for mappings whose keys are not texts, such as counts by step: JSON has only texts as keys,
so 3 would come back as "3"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["as_items", "from_items"]

ITEMS = "__items__"
"""The only key of a mapping that stands for another one: it has that one's items, as a list of
pairs."""


def as_items(value: Any) -> Any:
    """The tree of mappings and lists, in which a mapping with such keys is a list of its items.

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
