"""What is wrong with the fields of a record or of an addition that a plugin returns, in words that
follow its name in an error; nothing else checks them before they are used."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from recd_plugins.additions import Addition
from recd_plugins.config import Config, wrong_with_defaults, wrong_with_options
from recd_plugins.errors import nearest, shown
from recd_plugins.slots import SLOTS, CacheRecord, PreprocessRecord, Record, ShardingRecord

__all__ = ["wrong_with_addition", "wrong_with_record"]


def wrong_with_record(record: Record[Any, Any]) -> str:
    """What is wrong with the fields of a record, which nothing else checks before they are used;
    empty if all is right."""
    name: object = record.name
    config: Any = record.config
    if not isinstance(name, str) or not name or ":" in name or name != name.strip():
        return (
            "whose name registry.yaml cannot say: let `name` be a text without a colon, and "
            "without blanks around it."
        )
    if not isinstance(config, type) or not issubclass(config, Config):
        return (
            f"whose `config` is {shown(config)}: let it be a class that inherits "
            "recd_plugins.api.Config, or Config itself."
        )
    if "__annotations__" in vars(config) and "__dataclass_fields__" not in vars(config):
        return (
            f"whose options nobody can set: put `@dataclass(frozen=True, kw_only=True)` above "
            f"{config.__name__}."
        )
    if wrong := wrong_with_options(config, _beside_options(record)) or wrong_with_defaults(config):
        return wrong
    summary: object = record.summary
    if not isinstance(summary, str):
        return f"whose `summary` is {shown(summary)}: let it be a text, as a sentence."
    build: object = record.build
    if not callable(build):
        return f"whose `build` is {shown(build)}: let it be a function of config and context."
    if not _takes_two(build):
        return (
            f"whose `build` takes {inspect.signature(build)}, where it is called with two "
            "arguments: let it be a function of config and context."
        )
    for field, one in (("needs", "import:ray"), ("uses", "pooling"), ("free", "seed")):
        named = getattr(record, field, ())
        if not isinstance(named, tuple) or not all(isinstance(one, str) for one in named):
            return f'whose `{field}` are {shown(named)}: let them be a tuple, as `("{one}",)`.'
    for slot in record.uses:
        if slot not in SLOTS:
            return f"that uses {shown(slot)}, which is no slot; {nearest(slot, SLOTS)}"
    options = [field.name for field in dataclasses.fields(config)]
    free: tuple[str, ...] = getattr(record, "free", ())
    for name in free:
        if name not in options:
            return f"whose `free` names {shown(name)}, which is no option; {nearest(name, options)}"
    takes: object = getattr(record, "takes", None)
    if takes is not None and not callable(takes):
        return f"whose `takes` is {shown(takes)}: let it be a function of config and schema."
    return ""


def wrong_with_addition(addition: Addition) -> str:
    """What is wrong with the fields of an addition; empty if all is right."""
    for field in ("name", "summary"):
        text: object = getattr(addition, field)
        if not isinstance(text, str) or not text:
            return f"whose `{field}` is {shown(text)}: let it be a text."
    for field in ("add", "without"):
        if not callable(getattr(addition, field)):
            return f"whose `{field}` is {shown(getattr(addition, field))}: let it be a function."
    for field in ("after", "needs"):
        named: object = getattr(addition, field)
        if not isinstance(named, tuple) or not all(isinstance(one, str) for one in named):
            return f'whose `{field}` are {shown(named)}: let them be a tuple, as `("tiers",)`.'
    for field in ("variants", "what_ifs"):
        ways: object = getattr(addition, field)
        if not isinstance(ways, Mapping) or not all(map(callable, ways.values())):
            return f"whose `{field}` are {shown(ways)}: let them be functions by what each does."
    return ""


def _beside_options(record: Record[Any, Any]) -> tuple[str, ...]:
    """The keys that registry.yaml has beside the options of a record."""
    if isinstance(record, PreprocessRecord):
        return ("use", "features")
    return ("use", "others") if isinstance(record, ShardingRecord | CacheRecord) else ("use",)


def _takes_two(function: Callable[..., object]) -> bool:
    """Whether a function can be called with two arguments, as far as its signature is known."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # some functions of C say nothing
        return True
    return True
