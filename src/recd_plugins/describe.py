"""Configs and their types in words, for error messages, `recd plugins` and the docs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from recd_plugins.storage.uri import Uri

__all__ = [
    "Option",
    "attribute_docs",
    "bare",
    "describe",
    "field_docs",
    "nested",
    "options_of",
    "type_hints",
]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One field of a config, as a user reads it."""

    name: str
    takes: str
    default: str
    doc: str


def options_of(config: type) -> list[Option]:
    """The options of a config class, in order."""
    docs, hints = field_docs(config), type_hints(config)
    return [
        Option(
            name=field.name,
            takes=describe(hints[field.name]),
            default=_default(field),
            doc=docs.get(field.name, "").replace("\n", " "),
        )
        for field in dataclasses.fields(config)
        if field.init
    ]


def nested(config: type) -> Iterator[type]:
    """The config classes that a config's options hold, each once."""
    seen: list[type] = []
    for hint in type_hints(config).values():
        for part in _parts(hint):
            if dataclasses.is_dataclass(part) and isinstance(part, type) and part not in seen:
                seen.append(part)
                yield part


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for arg in get_args(hint):
        yield from _parts(arg)


def _default(field: dataclasses.Field[Any]) -> str:
    """A default as YAML would say it; one too long to read is left to the doc."""
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else ""
    value = field.default
    if value is None or (isinstance(value, tuple | Mapping) and not value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
    return text if len(text) <= 48 else "..."


def type_hints(config: type) -> Mapping[str, Any]:
    """The type of each option of a config class, bounds included."""
    return _type_hints(config)


@cache
def _type_hints(config: type) -> Mapping[str, Any]:
    hints = get_type_hints(config, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(config) if field.init}


def field_docs(config: type) -> dict[str, str]:
    """The text under each field of a config class, base classes included."""
    docs: dict[str, str] = {}
    for owner in reversed(config.__mro__):
        if dataclasses.is_dataclass(owner):
            docs |= attribute_docs(owner)
    return docs


def attribute_docs(owner: type) -> dict[str, str]:
    """The text under each attribute that stands in the body of a class; none of a class whose
    source is not there, as of one that `make_dataclass` made."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    docs: dict[str, str] = {}
    for attribute, text in pairwise(tree.body if isinstance(tree, ast.ClassDef) else []):
        match attribute, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                docs[name] = inspect.cleandoc(doc)
    return docs


def bare(hint: Any) -> Any:
    """The class of a name of `typing` that says nothing of its parts, as `Dict` is `dict`; any
    other type as it is."""
    origin = get_origin(hint)
    return origin if isinstance(origin, type) and not hasattr(hint, "__args__") else hint


def describe(hint: Any) -> str:
    """A type as a user reads it: `Annotated[int, Range(ge=1)]` is "an integer >= 1"."""
    hint = bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([describe(args[0]), *map(str, args[1:])])
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is Literal:
        return " | ".join(map(str, args))
    if hint in (tuple, list):
        return "a list"
    if origin is tuple:
        parts = ", ".join(describe(arg) for arg in args if arg is not ...)
        return f"a list of ({parts})"
    if origin in (dict, Mapping):
        return f"a mapping to ({describe(args[1])})"
    if dataclasses.is_dataclass(hint) or hint in (dict, Mapping):
        return "a mapping"
    names = {
        int: "an integer",
        float: "a number",
        str: "a text",
        bool: "true or false",
        Path: "a path",
        Uri: "a URI",
        type(None): "nothing",
        Any: "anything",
    }
    return names.get(hint, getattr(hint, "__name__", str(hint)))
