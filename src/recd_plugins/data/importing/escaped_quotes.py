r"""Text whose fields have quotes within quotes as \", made into text that has them as ""."""

from __future__ import annotations

import re

__all__ = ["doubled", "escaped_as", "has_escapes"]

ESCAPED = re.compile(
    r'(?:^|(?<=[,;|\t\x01]))"((?:[^"\\\r\n]|\\.)*)"(?=[,;|\t\x01\r\n]|$)', re.MULTILINE
)
"""A field in quotes, if a backslash before a quote takes its meaning."""
WITHIN = re.compile(r'\\"[^,;|\t\x01"]')
"""A quote that ends no field."""
ESCAPE = re.compile(rb'\\[\\"]')


def has_escapes(text: str) -> bool:
    """Whether a quote within quotes has a backslash before it."""
    fields = ESCAPED.finditer(text) if '\\"' in text else ()
    return any(WITHIN.search(field[1]) for field in fields)


def doubled(content: bytes | bytearray, delimiters: str) -> bytearray:
    r"""Lines in which "" is a quote within quotes, of lines in which \" is: as long as before, and
    the same if it is done again. In fields without quotes \" stays what it is."""
    fields = re.compile(
        rb'(?:^|(?<=[\r\n%b]))"[^"\\]*(?:(?:\\.|"")[^"\\]*)*"?' % re.escape(delimiters.encode()),
        re.DOTALL,
    )
    return bytearray(fields.sub(_doubled_within, content))


def _doubled_within(field: re.Match[bytes]) -> bytes:
    return escaped_as(b'""', field[0])


def escaped_as(pair: bytes, content: bytes | bytearray) -> bytes:
    r"""Lines with these two bytes for each \"."""
    return ESCAPE.sub(lambda one: pair if one[0] == b'\\"' else one[0], content)
