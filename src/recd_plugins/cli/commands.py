"""Commands whose numbers are numbers, and whose complaints can be read."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from recd_plugins.cli.standard_streams import UTF_8
from recd_plugins.errors import shortened, shown

__all__ = ["UNDECODED", "CheckedCommand", "Commands", "readable"]

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What a command line that cannot be understood raises; typer gives it no public name."""

WHOLE = 1 << 63
UNDECODED = re.compile("[\udc80-\udcff]")
"""Bytes of a command line that are not UTF-8, as Python has them."""


class CheckedCommand(TyperCommand):
    """A command that refuses numbers too large for any machine before it does anything."""

    def make_context(self, *args: Any, **settings: Any) -> Any:
        context = super().make_context(*args, **settings)
        for parameter in self.params:
            name = parameter.name
            if name is not None and (wrong := _wrong(context.params.get(name))):
                raise typer.BadParameter(wrong, ctx=context, param_hint=repr(parameter.opts[0]))
        return context


class Commands(typer.Typer):
    """A typer app of such commands."""

    def command(self, *args: Any, **settings: Any) -> Callable[[Any], Any]:
        return super().command(*args, **{"cls": CheckedCommand, **settings})


@contextmanager
def readable() -> Iterator[None]:
    """Inside, a complaint quotes what a user typed only up to a readable length."""
    try:
        yield
    except UsageError as error:
        error.message = shortened(error.message)  # type: ignore[attr-defined]
        raise


def _wrong(value: Any) -> str:
    """The fault of an option's value, or of one of its values."""
    if isinstance(value, list | tuple):
        return next(filter(None, map(_wrong, value)), "")
    if isinstance(value, int) and not -WHOLE <= value < WHOLE:
        return f"{shown(value)} is no integer of 64 bits."
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is no finite number."
    if isinstance(value, str | Path) and UNDECODED.search(str(value)):
        encoding = sys.getfilesystemencoding()
        more = "" if encoding == "utf-8" else f" Here texts are read as {encoding}. {UTF_8}"
        return f"{shown(str(value))} is no text of UTF-8.{more}"
    return ""
