"""The encoding of text: which there may be, and the errors for bytes that are none of it."""

from __future__ import annotations

import codecs
import re
from functools import cache

from recd_plugins.errors import DataError, shown
from recd_plugins.storage.uri import Location

__all__ = ["BOM", "ENCODE", "ascii_alone", "checked_encoding", "decoded"]

BOM = b"\xef\xbb\xbf"
"""How UTF-8 may begin: a byte order mark."""
ENCODE = "Give its encoding, as `--encoding latin-1`, or correct the line."


def checked_encoding(encoding: str) -> str:
    """The encoding, if lines and fields end in it as in ASCII."""
    ascii_ = bytes(range(128))
    try:
        name = codecs.lookup(encoding).name
        if ascii_.decode(encoding) == ascii_.decode("ascii"):
            return "utf-8" if name in ("utf-8", "utf-8-sig") else encoding
    except (LookupError, ValueError):
        pass
    raise DataError(
        f"encoding {shown(encoding)}: is not an encoding that Python knows and in which ASCII "
        "keeps its bytes, such as latin-1, cp1251 or gb18030. Convert text in other encodings to "
        "UTF-8 (iconv)."
    )


def decoded(head: bytes, path: Location, encoding: str, *, whole: bool) -> str:
    """The bytes that a file begins with, as text: if they are not the `whole` of it, whole lines;
    of a line that is longer, whole characters."""
    cut = len(head) if whole else head.rfind(b"\n") + 1
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        return decoder.decode(head[:cut], final=True) if cut else decoder.decode(head)
    except UnicodeDecodeError as error:
        at = error.start
        line, start = head.count(b"\n", 0, at) + 1, head.rfind(b"\n", 0, at) + 1
        around = head[max(start, at - 30) : at + 30].split(b"\n")[0].decode("latin-1").strip()
        raise DataError(
            f"{path}:{line}: holds bytes that are no {encoding.upper()} ({head[at : at + 8]!r}). "
            f"Give the encoding by `--encoding`: as latin-1 these bytes would read {around!r}."
        ) from None


def ascii_alone(content: bytes | bytearray, encoding: str) -> bytes | bytearray:
    r"""As many bytes, in which those that are characters of ASCII are the same. In encodings such
    as Shift-JIS and GB 18030 other characters hold such bytes too: \u8868 ends with a
    backslash."""
    if not _has_backslashes_within(encoding):
        return content
    # A character that the bytes end amid, or that is none, is left byte by byte, as surrogates.
    text = content.decode(encoding, "surrogateescape")
    others = re.compile(r"[^\x00-\x7f]+")

    def hidden(found: re.Match[str]) -> str:
        return "\x80" * len(found[0].encode(encoding, "surrogateescape"))

    return others.sub(hidden, text).encode("latin-1")


@cache
def _has_backslashes_within(encoding: str) -> bool:
    """Whether a character of two bytes may end in a backslash."""
    return any(
        len(bytes([lead, ord("\\")]).decode(encoding, "replace")) == 1
        for lead in range(0x80, 0x100)
    )
