"""Raw rows of Criteo made by hand."""

from __future__ import annotations

GOOD = b"1\t-3\t\t" + b"\t".join(b"%d" % i for i in range(11)) + b"\tdeadbeef" * 25 + b"\t\n"


def field(number: int, value: bytes) -> bytes:
    """A good row but for one field."""
    fields = GOOD.split(b"\t")
    return b"\t".join([*fields[:number], value, *fields[number + 1 :]])
