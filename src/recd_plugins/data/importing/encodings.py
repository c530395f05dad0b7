"""The encoding of text: which there may be, and the errors for bytes that are none of it."""

from __future__ import annotations

import codecs

from recd_plugins.errors import DataError, shown
from recd_plugins.storage.uri import Location

__all__ = ["BOM", "ENCODE", "checked_encoding", "decoded"]

BOM = b"\xef\xbb\xbf"
"""How UTF-8 may begin: a byte order mark."""
ENCODE = "Say its encoding, as `--encoding latin-1`, or mend the line."


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
        f"encoding {shown(encoding)}: is none that Python knows in which ASCII keeps its bytes, "
        "as latin-1, cp1251 or gb18030. Write text of others as UTF-8 (iconv)."
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
            f"Say what it is by `--encoding`: as latin-1 they would read {around!r}."
        ) from None
