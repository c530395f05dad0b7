"""Feature groups to the unique samples of each (O3): who has which, and their rows, copied once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recd_plugins.sparse.groups import Groups
from recd_plugins.sparse.rows.addresses import Addresses
from recd_plugins.sparse.rows.gather import gather_each, measure_each, row_offsets
from recd_plugins.sparse.rows.unique import (
    Firsts,
    Unique,
    group_codes,
    refine_groups,
    unique_rows,
)
from recd_plugins.sparse.rows.weighted import Weighted

__all__ = ["Deduplicated", "deduplicate", "unique_samples"]

I64: TypeAlias = npt.NDArray[np.int64]


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
    features = [[rows[key] for key in group] for group in groups]
    every = [feature for group in features for feature in group]
    if not _alike(every) or not every[0].values.is_cpu:
        return _one_by_one(features)
    lookups, firsts, offsets = _found(features)
    group_of = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    lengths = every[0].lengths.new_empty(len(every), firsts.counts.max())
    numels = measure_each(offsets, group_of, firsts, lengths)

    def gathered(column: int) -> Tensor:
        parts = [feature.columns()[column] for feature in every]
        out = parts[0].new_empty(int(numels.sum()))
        gather_each(Addresses.of(parts), offsets, group_of, firsts, out)
        return out

    some = every[0].weights
    weights = None if some is None else gathered(1).view(some.dtype)
    kept = Weighted(gathered(0), lengths.view(-1), weights)
    return Deduplicated(kept, lookups, tuple(firsts.counts.tolist()), numels.tolist())


def unique_samples(features: Sequence[Weighted]) -> Unique:
    """The different samples of a group: two are one where all of its features agree."""
    if features[0].values.is_cpu:
        lookups, firsts, _ = _found([features])
        return Unique(lookups[0], firsts.of(0))
    columns = [(column, feature) for feature in features for column in feature.columns()]
    codes = [unique_rows(column, feature.offsets).inverse_lookup for column, feature in columns]
    return group_codes(codes)


def _found(features: Sequence[Sequence[Weighted]]) -> tuple[Tensor, Firsts, I64]:
    """The inverse lookup [G, B] of each group, its unique samples, and all features' offsets."""
    every = [feature for group in features for feature in group]
    columns = [feature.columns() for feature in every]
    widths = [len(parts) for parts in columns]
    bounds = np.cumsum([0, *(sum(len(f.columns()) for f in group) for group in features)])
    lookups = torch.empty(len(features), every[0].lengths.numel(), dtype=torch.int64)
    offsets = row_offsets([feature.lengths for feature in every])
    firsts = refine_groups(
        Addresses.of([column for parts in columns for column in parts]),
        bounds,
        offsets,
        np.repeat(np.arange(len(every)), widths),
        lookups,
    )
    return lookups, firsts, offsets


def _alike(features: Sequence[Weighted]) -> bool:
    """Whether they join as they are: no id, length or weight has to become one of another type."""
    kinds = {
        (
            feature.values.dtype,
            feature.lengths.dtype,
            None if feature.weights is None else feature.weights.dtype,
        )
        for feature in features
    }
    return len(kinds) == 1


def _one_by_one(features: Sequence[Sequence[Weighted]]) -> Deduplicated:
    """As `deduplicate`, on any device and of any mixture of types."""
    unique = [unique_samples(group) for group in features]
    picked = [
        feature.select(found.firsts)
        for group, found in zip(features, unique, strict=True)
        for feature in group
    ]
    return Deduplicated(
        Weighted.joined(picked, padded=True),
        torch.stack([found.inverse_lookup for found in unique]),
        tuple(found.firsts.numel() for found in unique),
        [part.values.numel() for part in picked],
    )
