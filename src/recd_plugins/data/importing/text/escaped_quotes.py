r"""Turns text whose fields have quotes within quotes as \" into text that has them as ""."""

from __future__ import annotations

import re

import numpy as np

from recd_plugins.data.importing.text.encodings import ascii_alone

__all__ = ["doubled", "has_escapes", "undoubled"]

ESCAPED = re.compile(
    r'(?:^|(?<=[,;|\t\x01]))"((?:[^"\\\r\n]|\\.)*)"(?=[,;|\t\x01\r\n]|$)', re.MULTILINE
)
"""A field in quotes, if a backslash before a quote takes its meaning."""
WITHIN = re.compile(r'\\"[^,;|\t\x01"]')
"""A quote that does not end a field."""
ESCAPE = re.compile(rb'\\[\\"]')


def has_escapes(text: str) -> bool:
    """Whether a quote within quotes has a backslash before it."""
    fields = ESCAPED.finditer(text) if '\\"' in text else ()
    return any(WITHIN.search(field[1]) for field in fields)


def doubled(content: bytes | bytearray, delimiters: str, encoding: str = "utf-8") -> bytearray:
    r"""Lines in which "" is a quote within quotes, of lines in which \" is: as long as before, and
    the same if it is done again. In fields without quotes \" stays what it is."""
    fields = re.compile(
        rb'(?:^|(?<=[\r\n%b]))"[^"\\]*(?:(?:\\.|"")[^"\\]*)*"?' % re.escape(delimiters.encode()),
        re.DOTALL,
    )
    signs = ascii_alone(content, encoding)
    found = fields.sub(_doubled_within, signs)
    if signs is content:
        return bytearray(found)
    before, after, own = (np.frombuffer(one, np.uint8) for one in (signs, found, content))
    return bytearray(np.where(before != after, after, own))


def undoubled(content: bytes | bytearray, encoding: str) -> bytearray:
    r"""The signs of ASCII of such lines, with blanks for each \" that stayed: it is a part of a
    field, as in 5\" disk, and begins no quotes."""
    return bytearray(_escaped_as(b"  ", ascii_alone(content, encoding)))


def _doubled_within(field: re.Match[bytes]) -> bytes:
    return _escaped_as(b'""', field[0])


def _escaped_as(pair: bytes, content: bytes | bytearray) -> bytes:
    r"""Lines with these two bytes for each \"."""
    return ESCAPE.sub(lambda one: pair if one[0] == b'\\"' else one[0], content)
