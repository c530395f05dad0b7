"""The types that options may have: those that `parse` can make from YAML's values."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from recd_plugins.describe import bare, nested, type_hints
from recd_plugins.storage.uri import Uri

__all__ = ["wrong_with_options"]

SEVERAL = (list, set, frozenset, Collection, Iterable, Sequence, Set)
"""The types of several values for which an option must use a tuple."""
FILLED = (str, int, float, bool, list, tuple, dict, type(None), Path, Uri)
"""The classes of what `parse` makes of YAML's values, beside dataclasses."""


def wrong_with_options(config: type, beside: Collection[str] = ()) -> str:
    """Why some option of a config class cannot be set, in words; empty if all can be set.

    `beside` has the host's keys, which registry.yaml takes beside the options.
    """
    configs = [config]
    for one in configs:  # the list grows by the configs that options hold
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
    """Whether `isinstance` works with a class: it does not with a TypedDict, and with a Protocol
    only if that is checked at runtime."""
    try:
        isinstance(None, kind)
    except TypeError:
        return False
    return True


def _unfit(hint: Any, *, alone: bool = True) -> str:
    """The end of a sentence about a type that `parse` cannot make; empty if it can. Beside others
    (not `alone`), a class that no value of YAML has does no harm: options may have the others."""
    hint = bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal or hint is Any:
        return ""
    if origin is Annotated:
        return _unfit(args[0])
    if origin in (Union, types.UnionType):
        choices = [arg for arg in args if arg is not type(None)]
        return next(filter(None, (_unfit(one, alone=len(choices) == 1) for one in choices)), "")
    if origin in (tuple, dict, Mapping):
        return next(filter(None, (_unfit(arg) for arg in args if arg is not ...)), "")
    if isinstance(hint, type) and issubclass(hint, Enum):
        values = ", ".join(repr(one.value) for one in hint)
        return f"registry.yaml cannot fill, {hint.__name__}: write Literal[{values}] in its place."
    if origin is None and isinstance(hint, type) and _has_instances(hint):
        filled = is_dataclass(hint) or any(issubclass(kind, hint) for kind in FILLED)
        if filled or not alone:
            return ""
    if origin in SEVERAL:
        inner = getattr(args[0], "__name__", str(args[0]))
        return f"registry.yaml cannot fill, {hint}: write tuple[{inner}, ...] in its place."
    return (
        f"registry.yaml cannot fill, {hint}: let it be made of int, float, str, bool, Path, "
        "Literal, tuple, Mapping, dataclasses and None."
    )
