"""The different ids of several tables: what of them travels when they are coalesced."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from recd_plugins.sparse.rows.coalesce import coalesce

__all__ = ["CoalescedIds", "coalesce_by_table", "of_keys", "to_keys"]

SPAN = 1 << 40
"""Id i of table t has the key t · SPAN + i: far more than a table has rows, so that an id out
of range stays its table's, and TorchRec judges it."""


class CoalescedIds(NamedTuple):
    """N ids as u different ones: id n is `ids[inverse[n]]`. Equal ids of two tables are two."""

    ids: Tensor
    """[u] int64, table by table."""
    counts: list[int]
    """How many each table has; they sum to u."""
    inverse: Tensor
    """[N] int64."""


def coalesce_by_table(ids: Tensor, counts: Sequence[int]) -> CoalescedIds:
    """Of `ids` [N] int64, the first `counts[0]` of them of table 0, and so on."""
    if ids.is_cuda:
        keys, inverse = torch.unique(to_keys(ids, counts), return_inverse=True)
        own, tables = of_keys(keys)
        return CoalescedIds(own, torch.bincount(tables, minlength=len(counts)).tolist(), inverse)
    parts = [coalesce(part) for part in ids.split(list(counts))]
    found = [len(part.ids) for part in parts]
    inverse = torch.empty_like(ids)
    for part, own, before in zip(
        parts, inverse.split(list(counts)), accumulate(found, initial=0), strict=False
    ):
        torch.add(part.inverse_lookup, before, out=own)
    return CoalescedIds(torch.cat([part.ids for part in parts]), found, inverse)


def to_keys(ids: Tensor, counts: Sequence[int]) -> Tensor:
    """Of ids laid out as `different` takes them, keys that differ by table too."""
    each = torch.tensor(counts, dtype=torch.int64, device=ids.device)
    tables = torch.arange(len(counts), device=ids.device)
    return ids + SPAN * torch.repeat_interleave(tables, each, output_size=len(ids))


def of_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The ids of keys, and their tables."""
    tables = (keys + SPAN // 2) // SPAN
    return keys - tables * SPAN, tables
