"""The values of a registry without additions, and what each addition adds to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from recd_plugins.additions import NotHere, Values
from recd_plugins.errors import PluginError, RecdError, called, nearest
from recd_plugins.hooks.catalog import ClaimedAddition
from recd_plugins.registry.source import as_of_yaml

__all__ = [
    "MOVING",
    "answer_of",
    "in_order",
    "plain",
    "with_batch_size",
    "with_plugin",
    "without_moving",
]

MOVING = ("retier_every", "retier_batches")
"""The options of `train` by which replicas move, which TorchRec's own plans do not have."""


def plain(values: Values, claims: Sequence[ClaimedAddition]) -> Values:
    """A registry as plain TorchRec has it: its own planner, nothing deduplicated or cached."""
    left = dict(values)
    for slot in ("dedup", "cache", "sharding"):
        left.pop(slot, None)
    behind = values.get("sharding") or values.get("cache")  # it may name the planner behind it
    while isinstance(behind, Mapping) and isinstance(behind.get("others"), Mapping | str):
        behind = behind["others"]
    use = behind.get("use", "torchrec") if isinstance(behind, Mapping) else behind
    if behind is not None and use == "torchrec":
        left["sharding"] = behind
    left = without_moving(left)
    for claim in claims:
        left = dict(answer_of(claim, "without", claim.addition.without, left))
    return left


def without_moving(values: Values) -> dict[str, Any]:
    """A registry whose training moves no replicas."""
    left = dict(values)
    if isinstance(train := left.get("train"), Mapping) and train.keys() & {*MOVING}:
        left["train"] = {name: value for name, value in train.items() if name not in MOVING}
        if not left["train"]:
            del left["train"]
    return left


def in_order(claims: Sequence[ClaimedAddition]) -> list[ClaimedAddition]:
    """The additions, each after those that it follows or needs; otherwise in the plugins' order."""
    named = {claim.addition.name: claim for claim in claims}
    graph: TopologicalSorter[str] = TopologicalSorter()
    for claim in claims:
        addition = claim.addition
        for other in addition.needs:
            if other not in named:
                raise PluginError(
                    f"addition {addition.name!r} of {claim.provider} needs {other!r}, which no "
                    f"plugin has; {nearest(other, named)}"
                )
        graph.add(
            addition.name, *(one for one in (*addition.after, *addition.needs) if one in named)
        )
    try:
        return [named[name] for name in graph.static_order()]
    except CycleError as error:
        raise PluginError(
            f"additions follow one another in a circle: {' after '.join(error.args[1])}. Take one "
            "of these names out of an addition's `after` or `needs`."
        ) from None


def with_plugin(values: Values, claim: ClaimedAddition) -> Values:
    """The values with the addition's plugin among `plugins`."""
    named = values.get("plugins") or []
    own = claim.provider.plugin
    is_there = not isinstance(named, list) or own in named
    return values if is_there else {**values, "plugins": [*named, own]}


def with_batch_size(values: Values, batch_size: int) -> Values:
    """The values with `batch_size` samples of a rank and step."""
    return {**values, "train": {**(values.get("train") or {}), "batch_size": batch_size}}


def answer_of(
    claim: ClaimedAddition, asked: str, function: Callable[[Any], Any], given: Any
) -> Any:
    """The values that a function of an addition returns for what it is given, or, from its `add`,
    why the addition cannot be used here. `PluginError` names the addition if the function raises an
    error or returns anything else. Changes that it makes to given values affect only a copy."""
    whose = f"addition {claim.addition.name!r} of {claim.provider}"
    try:
        answer: object = function(given if asked == "add" else as_of_yaml(given))
    except RecdError:
        raise
    except Exception as error:
        raise PluginError(
            f"{whose} raised {type(error).__name__}: {error}. Run recd with --debug for its "
            "traceback."
        ) from error
    if isinstance(answer, Mapping):
        return as_of_yaml(answer)
    if isinstance(answer, NotHere) and asked == "add":
        return answer
    also = ", or NotHere(why)" if asked == "add" else ""
    raise PluginError(
        f"{whose}: its `{asked}` returned {called(answer)}. Return keys of registry.yaml and what "
        f"stands under each{also}."
    )
