"""How long work reports how far it is."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "silent"]


class Progress(Protocol):
    """A function that long work calls to report how far it is; the command line draws it."""

    def __call__(self, what: str, done: int, total: int | None) -> None: ...


def silent(what: str, done: int, total: int | None) -> None:
    """The `Progress` that reports nothing."""
