"""Parses YAML mappings into frozen dataclasses, once, at the edge.

A config is a frozen, keyword-only dataclass that inherits from `Config`; the line of text under a
field documents it, and `Annotated[int, Range(ge=1)]` bounds it. Bounds are checked on construction,
and types and names by `parse`; no number may be infinite or NaN.
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import math
import os
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from recd_plugins.describe import bare, describe, field_docs, type_hints
from recd_plugins.errors import (
    DataError,
    RegistryError,
    nearest,
    shown,
    with_type,
    without_frames,
)
from recd_plugins.storage.uri import Location, Uri, is_uri, location_of

__all__ = [
    "Config",
    "Range",
    "idle_options",
    "option_path",
    "parse",
    "path_of",
    "wrong_with_defaults",
]

C = TypeVar("C")


@dataclass(frozen=True, kw_only=True)
class Range:
    """Bounds of a number: `ge <= x <= le`, `gt < x < lt`."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def __str__(self) -> str:
        signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
        bounds = ((signs[f.name], getattr(self, f.name)) for f in dataclasses.fields(self))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base of every config: checks the bounds of its `Annotated` fields."""

    def __post_init__(self) -> None:
        for name, hint in type_hints(type(self)).items():
            _check_bounds(hint, getattr(self, name), name)

    def idle_options(self) -> Mapping[str, str]:
        """The options that are set but do nothing beside the others, each with a clause that says
        why, for a notice."""
        return {}

    def set_among(self, *names: str) -> list[str]:
        """Those of these options that differ from their default."""
        fields = [one for one in dataclasses.fields(self) if one.name in names]
        return [one.name for one in fields if getattr(self, one.name) != one.default]


def _check_bounds(hint: Any, value: Any, where: str) -> None:
    """`RegistryError` if a value, or a part of it, is outside the bounds in its type."""
    hint = bare(hint)
    args = get_args(hint)
    match get_origin(hint), value:
        case _, None:
            return
        case typing.Annotated, _:
            bounds = [bound for bound in args[1:] if isinstance(bound, Range)]
            for number in value if isinstance(value, tuple) else (value,):
                for bound in bounds:
                    if isinstance(number, int | float) and not bound.holds(number):
                        raise RegistryError(f"must be {bound}, but is {shown(number)}.", where)
            _check_bounds(args[0], value, where)
        case typing.Union | types.UnionType, _:
            for arg in args:
                _check_bounds(arg, value, where)
        case builtins.tuple, tuple():
            for index, (arg, part) in enumerate(zip(_of_parts(args, value), value, strict=False)):
                _check_bounds(arg, part, f"{where}[{index}]")
        case builtins.dict | collections.abc.Mapping, Mapping():
            for key, part in value.items():
                _check_bounds(args[1], part, f"{where}.{key}")
        case _, float() if hint is float and not math.isfinite(value):
            raise RegistryError(f"must be a finite number, but is {value}.", where)


def _of_parts(args: tuple[Any, ...], values: Sequence[Any]) -> tuple[Any, ...]:
    """The type of each part of a tuple: `tuple[int, ...]` has as many parts as there are values."""
    return args[:1] * len(values) if args[1:] == (...,) else args


def parse(
    config: type[C], options: Mapping[str, Any], where: str, beside: Collection[str] = ()
) -> C:
    """A `config` from a mapping; `where` is the mapping's path, for error messages, and `beside`
    names what may be written beside the options.

    Unknown names, missing names, wrong types and values out of range raise `RegistryError`. Only
    int is converted to float, and list to tuple.
    """
    hints = type_hints(config)
    for name in options:
        if name not in hints:
            hint = nearest(str(name), {*hints, *beside})
            if deeper := option_path(config, str(name)):
                hint = f"did you mean '{where}.{deeper}'? {nearest('', {*hints, *beside})}"
            raise RegistryError(f"unknown option {shown(name)}; {hint}", f"{where}.{name}")
    fields = dataclasses.fields(config)  # type: ignore[arg-type]  # C is a dataclass
    values = {}
    for name, value in options.items():
        try:
            values[name] = _convert(hints[name], value, f"{where}.{name}")
        except RegistryError as error:
            if value is not None:
                raise
            cure = _instead_of_nothing(next(one for one in fields if one.name == name))
            raise RegistryError(f"{error.message} {cure}", error.where) from None
    for field in fields:
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and field.init and field.name not in values:
            doc = field_docs(config).get(field.name, "").replace("\n", " ")
            raise RegistryError(f"option {field.name!r} is required. {doc}".rstrip(), where)
    for name, value in values.items():  # a config's own `__post_init__` may not check bounds
        _check_bounds(hints[name], value, f"{where}.{name}")
    try:
        return config(**values)
    except RegistryError as error:
        path = f"{where}.{error.where}" if error.where else where
        if error.where in hints and error.where not in values:
            raise RegistryError(
                f"{error.message} That is the default which {config.__name__} gives it: write "
                "another value here, and have the plugin's author mend the default.",
                path,
            ) from None
        raise RegistryError(error.message, path) from None
    except Exception as error:
        raise RegistryError(
            f"these options are refused by {config.__name__}, which raised "
            f"{type(error).__name__}: {without_frames(error).rstrip('.')}. Run recd with --debug "
            "for its traceback.",
            where,
        ) from error


def wrong_with_defaults(config: type) -> str:
    """Which option of a config class has a default of another type than its own, in words; empty if
    none has. None may stand for an option that was not set."""
    hints = type_hints(config)
    for field in dataclasses.fields(config):
        if field.default in (dataclasses.MISSING, None) or isinstance(field.default, Path):
            continue
        if not field.init:  # no option: the config makes it itself
            continue
        try:
            _convert(hints[field.name], field.default, field.name)
        except RegistryError as error:
            return (
                f"whose option {field.name!r} of {config.__name__} has a default that nobody could "
                f"write: {error.message} Mend the default, or the type of the option."
            )
    return ""


def idle_options(config: Config) -> Iterator[tuple[str, str]]:
    """The paths of options that do nothing beside the other options of a config, or of a config
    that an option holds, and why."""
    yield from config.idle_options().items()
    for field in dataclasses.fields(config):
        for path, part in _parts(getattr(config, field.name), field.name):
            for option, why in idle_options(part):
                yield f"{path}.{option}", why


def _parts(value: Any, path: str) -> Iterator[tuple[str, Config]]:
    """The configs that an option holds, with their paths."""
    if isinstance(value, Config):
        yield path, value
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from _parts(part, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, f"{path}.{key}")


def option_path(config: type, name: str) -> str:
    """The path of an option of this name, in a config or in a config that one of its options holds;
    empty if there is none."""
    hints = type_hints(config)
    if name in hints:
        return name
    for option, hint in hints.items():
        for part in (hint, *get_args(hint)):
            is_config = isinstance(part, type) and dataclasses.is_dataclass(part)
            if is_config and name in type_hints(part):
                return f"{option}.{name}"
    return ""


def _instead_of_nothing(field: dataclasses.Field[Any]) -> str:
    """How to fix a key that has nothing behind it."""
    if field.default_factory is not dataclasses.MISSING:
        return f"Write it, or take {field.name!r} out, and its defaults hold."
    if field.default is not dataclasses.MISSING:
        default = str(field.default) if isinstance(field.default, Path) else field.default
        return f"Write it, or take {field.name!r} out: by default it is {shown(default)}."
    return "Write it."


UNFIT = object()
"""Stands for the result of converting a value of the wrong kind."""


def _convert(hint: Any, value: Any, where: str) -> Any:
    """The value, converted to the type of an option; `RegistryError` if it is of another kind."""
    hint = bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _convert(args[0], value, where)
    if origin in (Union, types.UnionType):
        return _convert_union(args, value, where)
    if origin is Literal:
        return _one_of(args, value, where)
    if origin is tuple or hint is tuple:
        found = _tuple((Any, ...) if hint is tuple else args, value, where)
    elif origin in (dict, Mapping):
        found = _mapping(args, value, where)
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        found = _config(hint, value, where)
    else:
        found = _plain(hint, value, where)
    if found is UNFIT:
        quoted = _in_quotes(value) if hint is str else None
        cure = f" Write it in quotes: {quoted!r}." if isinstance(quoted, str) else ""
        raise RegistryError(f"expected {describe(hint)}, got {_shown(value)}.{cure}", where)
    return found


def _one_of(args: tuple[Any, ...], value: Any, where: str) -> Any:
    # In Python, 1 == True.
    for arg in args:
        if value == arg and isinstance(value, bool) == isinstance(arg, bool):
            return arg
    name = value if isinstance(value, str) else shown(value)  # `str` refuses huge numbers
    raise RegistryError(f"unknown value {shown(value)}; {nearest(name, map(str, args))}", where)


def _tuple(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple) or len(hints := _of_parts(args, value)) != len(value):
        return UNFIT
    parts = enumerate(zip(hints, value, strict=True))
    return tuple(_convert(hint, part, f"{where}[{i}]") for i, (hint, part) in parts)


def _mapping(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        return UNFIT
    made = {
        _key(args[0], key, where): _convert(args[1], one, f"{where}.{key}")
        for key, one in value.items()
    }
    if len(made) < len(value):
        raise RegistryError("has a key twice, as a number and as the text of that number.", where)
    return made


def _config(hint: type, value: Any, where: str) -> Any:
    if isinstance(value, hint):
        return value
    return parse(hint, value, where) if isinstance(value, Mapping) else UNFIT


def _plain(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if hint is Path and isinstance(value, str | Path):
        return path_of(value, where)
    if hint is Uri and (isinstance(value, Uri) or (isinstance(value, str) and is_uri(value))):
        return _uri_of(value, where)
    if hint is float:
        number = _number(value)
        return UNFIT if number is None else number
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        return UNFIT
    return _whole(value, where) if hint is int else value


def _key(hint: Any, key: Any, where: str) -> Any:
    """A key of a mapping. If keys are integers, a text that spells an integer becomes one: JSON has
    only texts as keys, and registries go to reader's workers as JSON."""
    if hint is int and isinstance(key, str) and WHOLE_KEY.fullmatch(key):
        key = int(key)
    return _convert(hint, key, where)


def _convert_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in args:
        return None
    choices = [arg for arg in args if arg is not type(None)]
    if len(choices) == 1:
        return _convert(choices[0], value, where)
    for arg in choices:
        try:
            return _convert(arg, value, where)
        except RegistryError:
            continue
    if Path in choices:  # an error about the path says more than a list of other types
        for number, one in enumerate(value if isinstance(value, list | tuple) else ()):
            if isinstance(one, str) and not is_uri(one):
                path_of(one, f"{where}[{number}]")
        if isinstance(value, str) and not is_uri(value):
            return path_of(value, where)
    if type(value) is int and {int, str} <= {*choices}:
        raise RegistryError(
            f"must be an integer of 64 bits, but is {shown(value)}. Write it as a text: "
            f"'{shown(value)}'.",
            where,
        )
    expected = " or ".join(describe(arg) for arg in args)
    cure = ""
    if (quoted := _in_quotes(value)) != value and any(_fits(arg, quoted) for arg in choices):
        cure = f" Write names that are numbers in quotes: {quoted!r}."
    raise RegistryError(f"expected {expected}, got {_shown(value)}.{cure}", where)


def _in_quotes(value: Any) -> Any:
    """The value, with texts in place of whole numbers: YAML reads a name such as 1801 as one."""
    if isinstance(value, list | tuple):
        return [_in_quotes(one) for one in value]
    return str(value) if type(value) is int and value.bit_length() < 64 else value


def _fits(hint: Any, value: Any) -> bool:
    try:
        _convert(hint, value, "")
    except RegistryError:
        return False
    return True


WHOLE_KEY = re.compile(r"0|-?[1-9]\d{0,18}")
VARIABLE = re.compile(r"\$\{\w+\}|(?:^|(?<=/))\$[A-Za-z_]\w*")
"""A variable of a shell in a path: `${DATA}/train`, or `$DATA/train`."""
WHOLE = 1 << 63
"""Integers have 64 bits wherever they are used later: in files, tensors and seeds. This is also
their largest count of ids from 0 on."""


def _whole(value: int, where: str) -> int:
    if not -WHOLE <= value <= WHOLE:
        raise RegistryError(f"must be an integer of 64 bits, but is {shown(value)}.", where)
    return value


def _uri_of(value: str | Uri, where: str) -> Location:
    try:
        return location_of(value)
    except DataError as error:
        raise RegistryError(str(error), where) from None


def path_of(value: str | Path, where: str) -> Path:
    """The path that a user wrote, with `~` and `~user` replaced; `RegistryError` if it is not a
    path of this machine."""
    if not str(value).strip():
        raise RegistryError("is empty, but must be a path. Write one, or take it out.", where)
    if (variable := VARIABLE.search(str(value))) and not os.path.lexists(value):
        raise RegistryError(
            f"{shown(str(value))} contains {variable[0]}, but variables are not replaced by their "
            "values here. Write the path; or give it on the command line, where a shell "
            f'does, in double quotes: "{where}={value}".',
            where,
        )
    if "\0" in str(value):
        raise RegistryError(f"a path cannot contain a NUL, as in {shown(str(value))} has.", where)
    if isinstance(value, str) and is_uri(value):
        location = _uri_of(value, where)
        if isinstance(location, Path):  # file://
            return location
        raise RegistryError(
            f"{location} is on a store, but this option needs a path of this machine. Copy it to "
            "disk, or write to disk and copy it from there.",
            where,
        )
    try:
        return Path(value).expanduser()
    except RuntimeError:  # ~somebody, whom the system does not know
        raise RegistryError(
            f"{shown(str(value))} begins with the home of a user who is not known here. Write the "
            "whole path.",
            where,
        ) from None


def _number(value: Any) -> float | None:
    """The float of a value from YAML, which may read `1e-3` (no dot) as text; None if it is not a
    number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _shown(value: Any) -> str:
    return "nothing" if value is None else with_type(value)
