"""The mark of a hot batch, on its KJTs: so it reaches modules that are handed a KJT alone.

It names the tier plan under which the batch is hot, for a plan may change while a batch is
under way. What makes another KJT loses it, and the batch is then a normal one: slower, as right.
"""

from __future__ import annotations

from copy import copy

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["mark_of", "marked"]

ATTRIBUTE = "hot_under"


def marked(features: KeyedJaggedTensor, hot_under: str | None) -> KeyedJaggedTensor:
    """The same features with this mark, or none; what is handed over stays as it is."""
    if mark_of(features) == hot_under:
        return features
    other = copy(features)
    setattr(other, ATTRIBUTE, hot_under)
    return other


def mark_of(features: KeyedJaggedTensor) -> str | None:
    """The version of the tier plan under which every rank's ids are replicated, if they are."""
    mark: str | None = getattr(features, ATTRIBUTE, None)
    return mark
