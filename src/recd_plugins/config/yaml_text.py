"""Reads YAML as plain values with the line of each, also if the text is meant to do harm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.reader import ReaderError

from recd_plugins.errors import RegistryError, shown
from recd_plugins.notices import Empty
from recd_plugins.storage.no_file import no_file
from recd_plugins.storage.uri import Location

__all__ = ["Document", "read_yaml", "text_of", "to_yaml"]

DEEPEST = 100
"""The most levels of nesting; Python's own stack ends a little below a thousand."""
MOST = 100_000
"""The most values, with each alias written out; nine lines of aliases of aliases can stand for a
billion."""
MOST_DIGITS = 40
"""The most digits of an integer; nothing here takes a longer one, and Python itself refuses to
print one with thousands of digits."""

LARGEST = 16 << 20
"""The most bytes of a file; a larger file is something else, and may have no end."""
LINE_ENDS = {"\n", "\r", "\x85", "\u2028", "\u2029"}
"""The characters at which YAML ends lines; in double quotes they are written as escapes."""

TAG = "tag:yaml.org,2002:"
FORMS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (
        r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
        list("yYnNtTfFoO"),
    ),
    "int": (r"[-+]?(0|[1-9][0-9_]*|0b[01_]*[01]|0x[0-9a-fA-F_]*[0-9a-fA-F])", list("-+0123456789")),
    "float": (
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}
"""How values that are not texts are written, and the letters that they begin with."""
TEXTS_AS_KEYS = (f"{TAG}bool", f"{TAG}null")
"""What no option has as a key: `on` or `no` there is a name."""
NUMBERS = (f"{TAG}int", f"{TAG}float")


class Document(NamedTuple):
    """A document that a person wrote."""

    values: Any
    lines: dict[str, int]
    """The lines of values in mappings and lists, by their paths (`train.batch_size`,
    `preprocess[0].modulo`)."""
    empty: tuple[str, ...]
    """The paths of keys with nothing behind them, not even `null`."""

    def notices(self, path: Location, what: str = "") -> list[Empty]:
        """A notice of each of the empty keys: what was behind it may have been commented out."""
        cure = "Write a value, take the line out, or write `null` behind it."
        return [
            Empty(
                what=f"{what}{key}",
                why=f"it is read as `null` ({path}:{self.lines[key]})",
                cure=cure,
            )
            for key in self.empty
        ]


class PlainLoader(yaml.SafeLoader):
    """Reads values as what they look like: a date is a text; so are `1:30`, which is ninety in YAML
    1.1, and `010`, which is eight there; `1e-3` is a number."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self._name = name
        self._depth = 0
        self._values = 0

    yaml_implicit_resolvers = {  # noqa: RUF012  # declared by the base class, as it is there
        "<": yaml.SafeLoader.yaml_implicit_resolvers["<"]  # `<<` merges mappings
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """A value and all that is in it; `RegistryError` if it is nested too deep, or is one of too
        many: a few MiB of them would take minutes and GiBs before they could be counted."""
        if self._depth == DEEPEST and self.check_event(yaml.CollectionStartEvent):
            line = self.peek_event().start_mark.line + 1
            raise RegistryError(
                f"{self._name}:{line}: values are nested more than {DEEPEST} deep, which no option "
                "needs."
            )
        self._values += index is not None  # a key of a mapping has none
        if self._values > MOST:
            raise RegistryError(
                f"{self._name}: holds more than {MOST:,} values, which is too much for a file that "
                "a person writes. Name another."
            )
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class PlainDumper(yaml.SafeDumper):
    """Writes values so that `PlainLoader` and other readers read them back unchanged: a text that
    looks like a number to either is in quotes, and a text of several lines is on one line."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if LINE_ENDS & set(text) else None
        return self.represent_scalar(f"{TAG}str", text, style)


PlainDumper.add_representer(str, PlainDumper.represent_text)
for _name, (_form, _first) in FORMS.items():
    for _each in (PlainLoader, PlainDumper):
        _each.add_implicit_resolver(f"{TAG}{_name}", re.compile(f"(?:{_form})$"), _first)


def to_yaml(values: Any, *, flow: bool | None = False, width: int = 80) -> str:
    """Plain values as text, in their order; `flow` is PyYAML's `default_flow_style`."""
    text: str = yaml.dump(
        values,
        Dumper=PlainDumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=flow,
        width=width,
    )
    return text


def text_of(path: Location) -> str:
    """The text of a file that a person wrote; `RegistryError` if it is not such a file, or cannot
    be read."""
    if isinstance(path, Path) and (what := no_file(path)):
        raise RegistryError(f"{path}: is {what}, not a file. Name one.")
    try:
        with path.open("rb") as file:
            held = file.read(LARGEST + 1)
        if len(held) > LARGEST:
            raise RegistryError(
                f"{path}: holds more than {LARGEST >> 20} MiB, which is too much for a file that a "
                "person writes. Name another."
            )
        return held.decode()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RegistryError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        line = held.count(b"\n", 0, error.start) + 1
        raise RegistryError(f"{path}:{line}: is not UTF-8: {error}. Save it as UTF-8.") from error


def read_yaml(text: str, name: str) -> Document:
    """The plain values of a document; error messages begin with `name`."""
    try:
        loader = PlainLoader(text, name)
        node = loader.get_single_node()
        if node is None:
            return Document(None, {}, ())
        known = {
            where: (line, value) for where, line, value in _bounded(_walk(node, "", name), name)
        }
        return Document(
            loader.construct_document(node),  # only plain values are left
            {where: line for where, (line, _) in known.items()},
            tuple(where for where, (_, value) in known.items() if _is_empty(where, value)),
        )
    except RegistryError:  # it is a ValueError, too
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        tab = mark is not None and mark.buffer is not None and mark.buffer[mark.pointer] == "\t"
        cure = "Check indentation, colons and brackets there."
        if tab:
            cure = "YAML takes no tab there: indent by blanks."
        elif error.problem == "but found another document":
            cure = "Keep one document: take out that line of `---`, or what is on its other side."
        raise RegistryError(
            f"{name}:{line}: not valid YAML: {error.problem or error.context}. {cure}"
        ) from None
    except ReaderError as error:
        line, letter = text.count("\n", 0, error.position) + 1, f"U+{error.character:04X}"
        raise RegistryError(
            f"{name}:{line}: not valid YAML: it takes no {letter}. Take it out, or save "
            "the text as UTF-8 if it is in another encoding."
        ) from None
    except ValueError as error:
        raise RegistryError(f"{name}:{loader.line + 1}: not valid YAML: {error}.") from None


Place = tuple[str, int, yaml.Node]
"""The path of a value, its line, and the value."""


def _is_empty(where: str, value: yaml.Node) -> bool:
    """Whether nothing is behind a key, which YAML reads as null."""
    return value.tag == f"{TAG}null" and value.value == "" and not where.endswith("]")


def _bounded(places: Iterator[Place], name: str) -> Iterator[Place]:
    for number, place in enumerate(places):
        if number >= MOST:
            raise RegistryError(
                f"{name}: holds more than {MOST:,} values once its aliases are replaced. Write the "
                "values without aliases."
            )
        yield place


def _walk(
    node: yaml.Node, where: str, name: str, above: tuple[yaml.Node, ...] = ()
) -> Iterator[Place]:
    if node in above:
        raise RegistryError(
            f"{name}:{node.start_mark.line + 1}: this value holds an alias of itself; write it "
            "without the alias."
        )
    if refused := _refused(node):
        raise RegistryError(f"{name}:{node.start_mark.line + 1}: {refused}")
    above = (*above, node)
    if isinstance(node, yaml.MappingNode):
        seen: set[Any] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise RegistryError(
                    f"{name}:{key.start_mark.line + 1}: a key must be a name, not a list or a "
                    "mapping."
                )
            line, text = key.start_mark.line + 1, str(key.value)
            if key.tag in TEXTS_AS_KEYS:
                key.tag = f"{TAG}str"
            is_number = key.tag in NUMBERS
            read = yaml.SafeLoader("").construct_object(key) if is_number else text
            if read in seen:
                raise RegistryError(
                    f"{name}:{line}: {shown(text)} stands twice in one mapping; keep one."
                )
            seen.add(read)
            child = f"{where}.{text}" if where else text
            yield child, line, value
            yield from _walk(value, child, name, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            child = f"{where}[{index}]"
            yield child, item.start_mark.line + 1, item
            yield from _walk(item, child, name, above)


def _refused(node: yaml.Node) -> str:
    """What is wrong with a value by itself, in words, whether its kind is written (`!!int`) or
    follows from its form; empty if nothing is."""
    kind = node.tag.removeprefix(TAG)
    if not isinstance(node, yaml.ScalarNode):
        plain = "map" if isinstance(node, yaml.MappingNode) else "seq"
        return "" if kind == plain else f"{_written(kind)} is not accepted here."
    if kind == "str":
        return ""
    if kind not in FORMS:
        return f"{_written(kind)} is not accepted here: write a text or a number."
    if not re.fullmatch(FORMS[kind][0], node.value):
        return f"{shown(node.value)} is no {_written(kind)}."
    if kind == "int" and len(node.value) > MOST_DIGITS:
        return f"an integer of {len(node.value):,} digits is larger than any option takes."
    return ""


def _written(kind: str) -> str:
    return kind if kind.startswith("!") else f"!!{kind}"
