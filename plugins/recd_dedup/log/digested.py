"""JSON files that hold one value and its digest, so that a reader can tell whether they are whole.

{<what the value is>: value, "digest": the SHA-256 of the value}
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["digested", "undigested"]


def digested(what: str, value: Any) -> str:
    """The text of a file that holds a value."""
    return json.dumps({what: value, "digest": _digest(value)}, indent=1)


def undigested(what: str, text: bytes) -> Any:
    """The value that a file holds; raises `ValueError` with the reason if it is not whole."""
    try:
        held = json.loads(text.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(held, dict) or not {what, "digest"} <= held.keys():
        raise ValueError(f"it has no `{what}` with a digest")
    if held["digest"] != _digest(held[what]):
        raise ValueError(f"its digest is not that of the `{what}` it names")
    return held[what]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
