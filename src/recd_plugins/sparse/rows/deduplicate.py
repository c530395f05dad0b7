"""Feature groups to the unique samples of each (O3): who has which, and their rows, copied once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recd_plugins.sparse.groups import Groups
from recd_plugins.sparse.rows.gather import gather_rows, measure_rows
from recd_plugins.sparse.rows.unique import Unique, group_codes, refine, unique_rows
from recd_plugins.sparse.rows.weighted import Weighted

__all__ = ["Deduplicated", "deduplicate", "unique_samples"]


class Deduplicated(NamedTuple):
    """B samples of G groups."""

    rows: Weighted
    """The unique rows of every key, one key after another, each padded to the largest group's."""
    inverse_lookup: Tensor
    """[G, B] int64."""
    unique_counts: tuple[int, ...]
    """[G]."""
    length_per_key: list[int]
    """The ids of every key."""


def deduplicate(groups: Groups, rows: Mapping[str, Weighted]) -> Deduplicated:
    """The unique samples of each group, in order of first appearance."""
    lengths = rows[groups[0][0]].lengths
    lookups = lengths.new_empty(len(groups), lengths.numel(), dtype=torch.int64)
    firsts: dict[str, Tensor] = {}
    counts = []
    for group, lookup in zip(groups, lookups, strict=True):
        unique = unique_samples([rows[key] for key in group], out=lookup)
        firsts |= dict.fromkeys(group, unique.firsts)
        counts.append(unique.firsts.numel())
    kept, numels = _select_each([rows[key] for key in firsts], list(firsts.values()))
    return Deduplicated(kept, lookups, tuple(counts), numels)


def unique_samples(features: Sequence[Weighted], out: Tensor | None = None) -> Unique:
    """The different samples of a group: two are one where all of its features agree.

    `out` [B], if given, is where the inverse lookup is written.
    """
    first = features[0].lengths
    inverse_lookup = torch.empty_like(first, dtype=torch.int64) if out is None else out
    if not first.is_cpu:
        codes = [
            unique_rows(column, feature.offsets).inverse_lookup
            for feature in features
            for column in feature.columns()
        ]
        unique = group_codes(codes)
        return Unique(inverse_lookup.copy_(unique.inverse_lookup), unique.firsts)
    inverse_lookup.zero_()
    for feature in features:
        for column in feature.columns():
            firsts = refine(column, feature.offsets, inverse_lookup)
    return Unique(inverse_lookup, firsts)


def _select_each(
    features: Sequence[Weighted], rows: Sequence[Tensor]
) -> tuple[Weighted, list[int]]:
    """`feature.select(rows)` of each feature and its rows, joined and padded: one copy on CPU.

    And how many ids each has.
    """
    given = [feature.weights for feature in features if feature.weights is not None]
    kinds = {(feature.values.dtype, feature.lengths.dtype) for feature in features}
    alike = len(kinds) == 1 and len(given) in (0, len(features))
    if not alike or not all(feature.values.is_cpu for feature in features):
        picked = [feature.select(row) for feature, row in zip(features, rows, strict=True)]
        return Weighted.joined(picked, padded=True), [part.values.numel() for part in picked]
    offsets = [feature.offsets for feature in features]
    stride = max(row.numel() for row in rows)
    lengths = torch.zeros(len(features), stride, dtype=features[0].lengths.dtype)
    numels = [measure_rows(*each) for each in zip(offsets, rows, lengths, strict=True)]

    def gathered(parts: Sequence[Tensor]) -> Tensor:
        out = torch.empty(sum(numels), dtype=parts[0].dtype)
        for each in zip(parts, offsets, rows, out.split(numels), strict=True):
            gather_rows(*each)
        return out

    values = gathered([feature.values for feature in features])
    return Weighted(values, lengths.view(-1), gathered(given) if given else None), numels
