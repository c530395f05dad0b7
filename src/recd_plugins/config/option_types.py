"""The types that options may have: those which `parse` makes of YAML's values."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from recd_plugins.describe import bare, nested, type_hints

__all__ = ["wrong_with_options"]

SEVERAL = (list, set, frozenset, Collection, Iterable, Sequence, Set)
"""The types of several values in whose place a tuple stands."""


def wrong_with_options(config: type, beside: Collection[str] = ()) -> str:
    """What keeps the options of a config class from being set; nothing, if all is right.

    `beside` has the keys that registry.yaml takes beside the options, for the host.
    """
    configs = [config]
    for one in configs:  # which grows by those in their options
        try:
            hints = type_hints(one)
        except Exception as error:
            return (
                f"whose options have types that are not there when it runs ({one.__name__}: "
                f"{error}): import them outside of `if TYPE_CHECKING:`, at the top of its module."
            )
        for name, hint in hints.items():
            if one is config and name in beside:
                return (
                    f"whose option {name!r} nobody can set, since `{name}:` in registry.yaml is "
                    f"the host's: rename it in {one.__name__}."
                )
            if unfit := _unfit(hint):
                return f"whose option {name!r} of {one.__name__} is of a type that {unfit}"
        configs += [part for part in nested(one) if part not in configs]
    return ""


def _has_instances(kind: type) -> bool:
    """Whether Python tells the instances of a class: it tells none of a TypedDict, and of a
    Protocol only of one that is checked at runtime."""
    try:
        isinstance(None, kind)
    except TypeError:
        return False
    return True


def _unfit(hint: Any) -> str:
    """The end of a sentence about a type that `parse` cannot make; nothing for one that it can."""
    hint = bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal or hint is Any:
        return ""
    if origin is Annotated:
        return _unfit(args[0])
    if origin in (Union, types.UnionType, tuple, dict, Mapping):
        return next(filter(None, (_unfit(arg) for arg in args if arg is not ...)), "")
    if isinstance(hint, type) and issubclass(hint, Enum):
        values = ", ".join(repr(one.value) for one in hint)
        return f"registry.yaml cannot fill, {hint.__name__}: write Literal[{values}] in its place."
    if origin is None and isinstance(hint, type) and _has_instances(hint):
        return ""
    if origin in SEVERAL:
        inner = getattr(args[0], "__name__", str(args[0]))
        return f"registry.yaml cannot fill, {hint}: write tuple[{inner}, ...] in its place."
    return (
        f"registry.yaml cannot fill, {hint}: let it be made of int, float, str, bool, Path, "
        "Literal, tuple, Mapping, dataclasses and None."
    )
