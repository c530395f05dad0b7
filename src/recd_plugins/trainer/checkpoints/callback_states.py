"""The names of callbacks' states in a checkpoint, and which callback of a resumed job takes which
state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["names_of_states", "states_by_options"]


def names_of_states(records: Iterable[str]) -> Iterator[str]:
    """A name for each callback's state, from its record's name; the second of a record is
    `name#2`."""
    seen: dict[str, int] = {}
    for name in records:
        seen[name] = count = seen.get(name, 0) + 1
        yield name if count == 1 else f"{name}#{count}"


def states_by_options(
    states: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """A checkpoint's states of callbacks, by the names that they have in the registry of `now`: of
    several callbacks of one record, each gets the state of the one with the same options.

    One whose options have changed gets the first state of its record that is left. States that are
    left in the end are named by the place that the callback had in `before`.
    """
    left, wanted = _callbacks_in(before), _callbacks_in(now)
    named: dict[str, str] = {}
    for alike in (True, False):
        for name, (record, options) in wanted.items():
            fits = [
                old
                for old, (its_record, its_options) in left.items()
                if its_record == record and (its_options == options or not alike)
            ]
            if fits and name not in named.values():
                named[fits[0]] = name
                del left[fits[0]]
    places = {old: place for place, old in enumerate(_callbacks_in(before))}
    for old, (record, _) in left.items():
        named[old] = f"{record} (callbacks[{places[old]}] then)"
    return {named.get(name, name): state for name, state in states.items()}


def _callbacks_in(registry: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Record and options of each callback that a registry names, by the name of its state."""
    entries = registry.get("callbacks") or ()
    each = [dict(one) if isinstance(one, Mapping) else {"use": one} for one in entries]
    records = [str(one.pop("use", None)).rpartition(":")[2] for one in each]
    return dict(zip(names_of_states(records), zip(records, each, strict=True), strict=True))
