"""What the processor already knows of a device's rows: whoever needs it need not wait."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from recd_plugins.compat.pytorch import writes_to

__all__ = ["CountedRows", "counted_rows", "note_counted"]

NAME = "recd_counted"
"""The attribute of a tensor of lengths that has what was counted, and when."""


class CountedRows(NamedTuple):
    """What was counted of rows."""

    longest: int
    """The number of ids, or values, of the longest row."""
    filled: int
    """The number of rows that have any."""


def note_counted(lengths: Tensor, counted: CountedRows) -> None:
    """Keep what was counted of rows beside their lengths."""
    setattr(lengths, NAME, (writes_to(lengths), counted))


def counted_rows(lengths: Tensor) -> CountedRows | None:
    """What was counted; None where nobody did, or where the lengths were changed since."""
    writes, counted = getattr(lengths, NAME, (-1, None))
    found: CountedRows | None = counted
    return found if writes == writes_to(lengths) else None
