"""Ids whose tier is asked for, where each is found, and what a router is that finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

__all__ = ["Hits", "RoutedIds", "Router", "Segments"]


@dataclass(frozen=True)
class Segments:
    """N ids of F features, one feature after another: whose they are."""

    lengths: tuple[int, ...]
    """The number of ids that each feature has; they sum to N."""
    tables: tuple[int, ...]
    """Each feature's table, by its number in the router; -1 for one that it does not know."""

    def of_each(self, numbers: Sequence[int]) -> list[int]:
        """[F]: the number that each feature's table has among `numbers`; 0 where it is unknown."""
        return [numbers[table] if table >= 0 else 0 for table in self.tables]


class Hits(NamedTuple):
    """The ids that a tier has."""

    at: Tensor
    """[n] int64, ascending: which of the N ids."""
    positions: Tensor
    """[n] int64: the position of each one's row in the tier; equal ids have equal ones."""


class RoutedIds(NamedTuple):
    """Where the row of each of N ids is: at home, or in one of the tiers."""

    missed: Tensor
    """[n] int64, ascending: which of the N ids must have their rows from home."""
    replicated: Hits
    """The ids whose rows have a copy on every rank."""
    per_node: Hits
    """The ids whose rows have a copy in every node."""
    outside: int
    """The number of ids that miss and are of no row of their table, or of no table."""
    missed_lengths: list[int]
    """The number of each feature's ids that miss."""


class Router(Protocol):
    """Finds tier and position of ids: a `BitmapRouter` on the CPU, or else a `SortedRouter`."""

    @property
    def nbytes(self) -> int:
        """Its memory."""

    def route(self, ids: Tensor, segments: Segments) -> RoutedIds:
        """Find the rows of `ids` [N] int64. Ids of no row miss, and are counted."""
