"""How text and lines of JSON are read: what options say, and what a first look settled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from recd_plugins.config import Config

__all__ = ["MORE_NULLS", "NULLS", "TextForm"]

NULLS = ("", "NULL", "null", "\\N")
"""How text spells a null."""
MORE_NULLS = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "None", "none", "-", "?")
"""What else stands for a null in a column of numbers."""


@dataclass(frozen=True, kw_only=True)
class TextForm(Config):
    """The key `text` of a schema's file, by which files that come later are read alike."""

    delimiter: str | None = None
    """What parts fields; by default what lines show."""
    header: bool | None = None
    """Whether the first line names the columns; by default as it looks."""
    encoding: str | None = None
    """The encoding, one in which ASCII keeps its bytes; by default UTF-8."""
    names: tuple[str, ...] = ()
    """The names of the columns, in order; by default the header's."""
    escapes: bool | None = None
    r"""Whether \" within quotes is a quote, as "" is; by default as lines show."""
    lists: Mapping[str, str] = field(default_factory=dict)
    """The columns that are lists, and what parts the elements of each, or '' for one of texts that
    are no lists; others are if they look so."""
    decimal_commas: tuple[str, ...] = ()
    """The columns of numbers as 3,5; others are if they look so."""
    thousands: tuple[str, ...] = ()
    """The columns of numbers as 12,345; others are if they can be nothing else."""

    def over(self, other: TextForm) -> TextForm:
        """This form, completed by the other one where it says nothing."""
        own = {
            one.name: value
            for one in dataclasses.fields(self)
            if (value := getattr(self, one.name)) is not None and value not in ((), {})
        }
        return dataclasses.replace(other, **own)
