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
    """What separates fields; by default it is found from the lines."""
    header: bool | None = None
    """Whether the first line has the columns' names; by default that is found from the lines."""
    encoding: str | None = None
    """The encoding, by default UTF-8. It must be one in which ASCII keeps its bytes."""
    names: tuple[str, ...] = ()
    """The names of the columns, in order; by default the header has them."""
    escapes: bool | None = None
    r"""Whether \" within quotes is a quote, as "" is; by default that is found from the lines."""
    lists: Mapping[str, str] = field(default_factory=dict)
    """For a column of lists, what separates the elements, or '' for texts that are no lists. Other
    columns are lists if they look so."""
    decimal_commas: tuple[str, ...] = ()
    """The columns whose numbers have a decimal comma, as 3,5. Other columns have one if they look
    so."""
    thousands: tuple[str, ...] = ()
    """The columns whose numbers have commas between thousands, as 12,345. Other columns have them
    if they can be nothing else."""

    def over(self, other: TextForm) -> TextForm:
        """This form, completed by the other one where it says nothing."""
        own = {
            one.name: value
            for one in dataclasses.fields(self)
            if (value := getattr(self, one.name)) is not None and value not in ((), {})
        }
        return dataclasses.replace(other, **own)
