"""Reads registry.yaml as plain values with the line of each, and applies overrides from the command
line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any

from recd_plugins.config.yaml_text import Document, read_yaml, text_of, to_yaml
from recd_plugins.errors import RegistryError, shown

__all__ = ["Rewritten", "Source", "as_of_yaml", "overrides_between"]


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A mapping that an override replaces by another one with fewer settings."""

    key: str
    override: str
    dropped: tuple[str, ...]
    """The paths of the settings that are lost with it."""
    instead: tuple[str, ...]
    """The overrides that would make the same changes and keep the other settings."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The values that the user wrote, and the place of each."""

    values: dict[str, Any]
    path: Path | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    """The path of a value (`train.batch_size`, `preprocess[0].modulo`) to its line."""
    empty: tuple[str, ...] = ()
    """The paths of keys that have nothing behind them in a file or an override, not even `null`,
    and that no later override fills."""
    overrides: Sequence[str] = ()
    rewritten: tuple[Rewritten, ...] = ()
    """The mappings that lost settings to an override, if no later override brings these back."""
    folder: Path | None = None
    """The folder for values that do not come from a file."""

    @classmethod
    def read(cls, registry: str | Path | Mapping[str, Any], overrides: Sequence[str]) -> Source:
        """The source from a file or a mapping, with `key.key=value` overrides applied."""
        if isinstance(registry, Mapping):
            values, path, lines = as_of_yaml(registry), None, dict[str, int]()
            empty: tuple[str, ...] = ()
        else:
            path = Path(registry)
            values, lines, empty = _read_file(path)
        rewritten = []
        for index, override in enumerate(overrides):
            key, before = _key_of(override), as_of_yaml(values)
            behind = _apply(values, override, overrides[:index])
            left = (key for key in empty if not _touched(_dotted(key), _key_of(override)))
            empty = (*left, *behind)
            was, now = _value_at(before, key), _value_at(values, key)
            if lost := tuple(_dropped(key, was, now)):
                instead = tuple(_between(key, was, _merged(was, now)))
                rewritten.append(
                    Rewritten(key=key, override=override, dropped=lost, instead=instead)
                )
        return cls(
            values=values,
            path=path,
            lines=lines,
            empty=empty,
            overrides=tuple(overrides),
            rewritten=tuple(_still_lacking(rewritten, values)),
        )

    @property
    def base(self) -> Path:
        """The folder from which relative paths of plugins start."""
        return self.path.parent if self.path else self.folder or Path()

    def place_of_empty(self, key: str) -> tuple[str, str]:
        """The override, or the line, that has a key with nothing behind it, and how to fix it."""
        for override in reversed(self.overrides):
            if _touched(_dotted(key), _key_of(override)):
                cure = f"Write a value, take it out, or write `{key}=null`."
                return f"override {shown(override)}", cure
        cure = f"Write a value, take the line out, or write `{key}: null`."
        return f"{self.path}:{self.lines[key]}", cure

    def locate(self, where: str) -> str:
        """`where` with the file and line, or the override, that set it."""
        place = _dotted(where)
        for override in reversed(self.overrides):
            key = _key_of(override)
            # A value that has no line came with an override of something inside it.
            within = bool(where) and where not in self.lines and key.startswith(place + ".")
            if within or place == key or place.startswith(key + "."):
                return f"override {shown(override)}: {where}"
        if self.path is None:
            return where
        known = where
        while known and known not in self.lines:
            known = re.sub(r"(\.|\[)[^.\[]*$", "", known) if re.search(r"[.\[]", known) else ""
        line = f":{self.lines[known]}" if known else ""
        return f"{self.path}{line}: {where}" if where else f"{self.path}{line}"


def overrides_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The overrides that turn the values of one registry into those of another."""
    every = {**dict.fromkeys(before), **after}  # a slot that is null is the same as a missing one
    return [*_between_parts("", dict.fromkeys(every) | dict(before), every)]


def _between_parts(path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name, value in after.items():
        if name not in before or before[name] != value:
            yield from _between(f"{path}{name}", before.get(name), value)


def _between(key: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping) and _has_paths(before, after):
        yield from _between_parts(f"{key}.", before, after)
        return
    value = to_yaml(after, flow=True, width=LONGEST).removesuffix("...\n").strip()
    yield f"{key}={value}"


def _has_paths(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> bool:
    """Whether overrides of single values can turn one mapping into the other. They cannot remove a
    value, and they cannot replace a record, whose options are others."""
    same_record = before.get("use") == after.get("use")
    named = all(isinstance(name, str) and not {*".="} & {*name} for name in after)
    return same_record and named and before.keys() <= after.keys()


LONGEST = 1 << 30
"""A line length that no text reaches, so that lines are not wrapped."""


def as_of_yaml(value: Any) -> Any:
    """A copy with YAML's types in place of those that programs use: tuples, numpy's numbers, paths,
    and OmegaConf's mappings and lists."""
    if isinstance(value, Mapping):
        return {key: as_of_yaml(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [as_of_yaml(one) for one in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _read_file(path: Path) -> Document:
    try:
        text = text_of(path)
    except FileNotFoundError:
        raise RegistryError(
            f"{path}: there is no such registry. Name one that is there (--registry FILE), or let "
            "`recd init TABLE` write one; examples/ of the repository holds several."
        ) from None
    document = read_yaml(text, str(path))
    if document.values is None:
        return document._replace(values={})
    if not isinstance(document.values, dict):
        raise RegistryError(f"{path}: must hold a mapping of slots, as `model: {{use: dlrm}}`.")
    return document


def _key_of(override: str) -> str:
    """The key of an override, with only dots; messages name places in files as `etl[0].use`."""
    return _dotted(override.partition("=")[0])


def _touched(key: str, overridden: str) -> bool:
    """Whether an override sets the key, something inside it or something that it is part of."""
    above = overridden.removesuffix(".use")  # another record has other options
    return f"{overridden}.".startswith(f"{key}.") or key.startswith(f"{above}.")


def _apply(values: dict[str, Any], override: str, before: Sequence[str]) -> tuple[str, ...]:
    """Write the value of an override into the values; returns the paths of its keys that have
    nothing behind them."""
    _, equals, text = override.partition("=")
    key = _key_of(override)
    if not equals or not all(key.split(".")):
        raise RegistryError(
            f"override {shown(override)}: write key=value, as train.batch_size=512."
        )
    try:
        document = read_yaml(text, "its value")
    except RegistryError as error:
        raise RegistryError(
            f"override {shown(override)}: {error}".replace("its value:1: ", "its value: ")
        ) from error
    _put(values, key, document.values, override, before)
    if document.values is None and not text.partition("#")[0].strip():
        return (key,)
    return tuple(f"{key}{'' if one.startswith('[') else '.'}{one}" for one in document.empty)


ABSENT = object()
"""Stands for a missing value."""


def _value_at(values: Any, key: str) -> Any:
    """The value under a key with dots, or `ABSENT`."""
    for name in key.split("."):
        if isinstance(values, list) and name.isdecimal() and int(name) < len(values):
            values = values[int(name)]
        else:
            values = values.get(name, ABSENT) if isinstance(values, Mapping) else ABSENT
    return values


def _dropped(key: str, before: Any, after: Any) -> Iterator[str]:
    """The paths of settings that a mapping has before but not after; none if the record is another
    one, which takes other options."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return
    if "use" in after and after["use"] != before.get("use"):
        return
    for name, value in before.items():
        if name in after:
            yield from _dropped(f"{key}.{name}", value, after[name])
        elif value is not None:
            yield f"{key}.{name}"


def _merged(before: Any, after: Any) -> Any:
    """The mapping after, with the settings of the one before that it lacks."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    if "use" in after and after["use"] != before.get("use"):
        return after
    return {**before, **{name: _merged(before.get(name), one) for name, one in after.items()}}


def _still_lacking(
    rewritten: Sequence[Rewritten], values: Mapping[str, Any]
) -> Iterator[Rewritten]:
    """The mappings of which the values still lack settings, with only those settings."""
    for one in rewritten:
        if lost := tuple(each for each in one.dropped if _value_at(values, each) is ABSENT):
            yield replace(one, dropped=lost)


def _put(
    values: dict[str, Any], key: str, value: Any, override: str, before: Sequence[str]
) -> None:
    *parents, last = key.split(".")
    place: Any = values
    for depth, name in enumerate(parents):
        place = _step(place, name, ".".join(parents[: depth + 1]), override)
    if isinstance(place, list):
        place[_index(place, last, ".".join(parents), override)] = value
        return
    if last == "use" and place.get("use") != value:
        # Another record takes other options, so those of the replaced record are removed.
        for name in place.keys() - _kept(parents, before):
            del place[name]
    place[last] = value


def _kept(parents: Sequence[str], before: Sequence[str]) -> set[str]:
    """The parts of a choice that stay if its record is replaced: the features that it is for, and
    earlier overrides."""
    kept = {"features"} if parents[:1] == ["preprocess"] else set()
    for override in before:
        key = _key_of(override).split(".")
        if key[: len(parents)] == parents:
            kept.update(key[len(parents) :][:1])
    return kept


def _step(place: Any, name: str, where: str, override: str) -> Any:
    if isinstance(place, list):
        index = _index(place, name, where.rpartition(".")[0], override)
        place[index] = _opened(place[index], where, override)
        return place[index]
    place[name] = _opened(place.get(name), where, override)
    return place[name]


def _opened(value: Any, where: str, override: str) -> dict[str, Any] | list[Any]:
    """A mapping to write an override into; `sharding: torchrec` is short for {use: torchrec}."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"use": value}
    if isinstance(value, dict | list):
        return value
    raise RegistryError(
        f"override {shown(override)}: {where} is {shown(value)}, which holds no options. Write "
        f"`{where}=VALUE` to set it."
    )


def _index(place: list[Any], name: str, where: str, override: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < 10) or int(name) >= len(place):
        raise RegistryError(
            f"override {shown(override)}: {where} is a list of {len(place)}, in which "
            f"{shown(name)} is not a position; count from 0."
        )
    return int(name)


def _dotted(where: str) -> str:
    return re.sub(r"\[(\d+)\]", r".\1", where)
