"""YAML as plain values and the line of each, of text that may be meant to do harm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from recd_plugins.errors import RegistryError

__all__ = ["read_yaml"]

DEEPEST = 100
"""Levels of nesting: Python's own stack ends a little below a thousand."""
MOST = 100_000
"""Values, each alias written out: nine lines of aliases of aliases stand for a billion."""


def read_yaml(text: str, name: str) -> tuple[Any, dict[str, int]]:
    """The values of a document, and the lines of those in mappings and lists, by their paths
    (`train.batch_size`, `preprocess[0].modulo`); `name` opens error messages."""
    try:
        _check_depth(text, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = {} if node is None else dict(_bounded(_walk(node, "", name), name))
        return yaml.safe_load(text), lines
    except RegistryError:  # a ValueError too
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise RegistryError(
            f"{name}:{line}: not valid YAML: {error.problem or error.context}. "
            "Check indentation, colons and brackets there."
        ) from None
    except (yaml.YAMLError, ValueError) as error:  # a date of month 13 is a ValueError
        raise RegistryError(f"{name}: not valid YAML: {error}.") from None


def _check_depth(text: str, name: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            place = f":{event.start_mark.line + 1}" if event.start_mark else ""
            raise RegistryError(
                f"{name}{place}: values are nested more than {DEEPEST} deep; nothing here asks for "
                "as much."
            )


def _bounded(lines: Iterator[tuple[str, int]], name: str) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(lines):
        if number >= MOST:
            raise RegistryError(
                f"{name}: holds more than {MOST:,} values, its aliases written out. Write out what "
                "is meant."
            )
        yield line


def _walk(
    node: yaml.Node, where: str, name: str, above: tuple[yaml.Node, ...] = ()
) -> Iterator[tuple[str, int]]:
    if node in above:
        raise RegistryError(
            f"{name}:{node.start_mark.line + 1}: this value holds an alias of itself; write it out."
        )
    above = (*above, node)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line, text = key.start_mark.line + 1, str(key.value)
            if text in seen:
                raise RegistryError(
                    f"{name}:{line}: {text!r} stands twice in one mapping; keep one."
                )
            seen.add(text)
            child = f"{where}.{text}" if where else text
            yield child, line
            yield from _walk(value, child, name, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            child = f"{where}[{index}]"
            yield child, item.start_mark.line + 1
            yield from _walk(item, child, name, above)
