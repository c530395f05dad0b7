"""How many examples hypothesis draws where a test says how many: fewer in `make test-fast`."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["FEW", "at_most"]

FEW = 10
"""As many as the profile `fast` draws of any test."""


def at_most(examples: int) -> int:
    """So many; in the profile `fast`, FEW."""
    return min(examples, FEW) if settings.get_current_profile_name() == "fast" else examples
