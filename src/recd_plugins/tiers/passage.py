"""Ids on the way to the canonical table, and whose row is whose on the way back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from recd_plugins.tiers.group import TableGroup
from recd_plugins.tiers.router import Segments

__all__ = ["Passage"]


@dataclass(frozen=True)
class Passage:
    """The ids that a group of tables sends to TorchRec, slot by slot."""

    ids: Tensor
    """[u] int64."""
    lengths: list[int]
    """How many each slot sends; they sum to u."""
    inverse: Tensor | None
    """[n] int64: which of the u each id that passed is; by default they are the same."""

    @classmethod
    def of(cls, group: TableGroup, ids: Tensor, passed: Tensor, segments: Segments) -> Passage:
        """Of a group's `ids` [N] those at `passed` [n], ascending; coalesced as the group says."""
        ends = torch.tensor(segments.lengths, dtype=torch.int64, device=ids.device).cumsum(0)
        cuts = [0, *torch.searchsorted(passed, ends).tolist()]
        lengths = [end - start for start, end in pairwise(cuts)]
        if group.coalesce == "none":
            return cls(ids[passed], lengths, None)
        return cls._coalesced(ids[passed], lengths, segments)

    @classmethod
    def _coalesced(cls, ids: Tensor, lengths: list[int], segments: Segments) -> Passage:
        """Each id of a table once, with the first of the table's slots."""
        by_table = [0] * len(set(segments.tables))
        for table, length in zip(segments.tables, lengths, strict=True):
            by_table[table] += length
        uniques: list[Tensor] = []
        inverses: list[Tensor] = []
        sent: list[int] = []
        for part in ids.split(by_table):
            unique, inverse = torch.unique(part, return_inverse=True)
            inverses.append(inverse + sum(len(each) for each in uniques))
            uniques.append(unique)
        for slot, table in enumerate(segments.tables):
            first = slot == 0 or segments.tables[slot - 1] != table
            sent.append(len(uniques[table]) if first else 0)
        return cls(torch.cat(uniques), sent, torch.cat(inverses))
