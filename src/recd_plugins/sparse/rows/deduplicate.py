"""The unique samples of feature groups (O3): which sample has which, and copies of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recd_plugins.sparse.groups import Groups
from recd_plugins.sparse.jagged import WeightedJagged, as_bits
from recd_plugins.sparse.rows.gather import Spans, addresses_of_lengths, gather_each, measure_each
from recd_plugins.sparse.rows.memory import Addresses
from recd_plugins.sparse.rows.unique import (
    Firsts,
    Unique,
    group_codes,
    refine_groups,
    unique_rows,
)

__all__ = ["Deduplicated", "deduplicate", "unique_each", "unique_of_group"]


class Deduplicated(NamedTuple):
    """B samples of G groups."""

    rows: WeightedJagged
    """The unique rows of every key, key after key, each key padded to the largest group's count."""
    inverse_lookup: Tensor
    """[G, B] int64."""
    unique_counts: tuple[int, ...]
    """[G]."""
    length_per_key: list[int]
    """The number of ids of every key."""


def deduplicate(groups: Groups, rows: Mapping[str, WeightedJagged]) -> Deduplicated:
    """The unique samples of each group, in order of first appearance."""
    features = [[rows[key] for key in group] for group in groups]
    every = [feature for group in features for feature in group]
    if not _alike(every) or not every[0].values.is_cpu:
        return _one_by_one(features)
    found = _found(features)
    counts = np.repeat(found.firsts.counts, [len(group) for group in groups])
    lengths = every[0].lengths.new_empty(len(every), int(counts.max()))
    measure_each(found.spans, counts, lengths)

    def gathered(column: int, dtype: torch.dtype) -> Tensor:
        out = torch.empty(int(found.spans.numels.sum()), dtype=dtype, device="cpu")
        addresses = found.columns.every(len(every[0].columns()), column)
        gather_each(addresses, found.spans, counts, as_bits(out))
        return out

    some = every[0].weights
    kept = WeightedJagged(
        gathered(0, every[0].values.dtype),
        lengths.view(-1),
        None if some is None else gathered(1, some.dtype),
    )
    unique_counts, numels = tuple(found.firsts.counts.tolist()), found.spans.numels.tolist()
    return Deduplicated(kept, found.inverse_lookup, unique_counts, numels)


def unique_of_group(features: Sequence[WeightedJagged]) -> Unique:
    """The different samples of a group: two samples are equal if all of its features agree."""
    if features[0].values.is_cpu:
        found = _found([features])
        return Unique(found.inverse_lookup[0], found.firsts.of(0))
    columns = [(column, feature) for feature in features for column in feature.columns()]
    codes = [unique_rows(column, feature.offsets).inverse_lookup for column, feature in columns]
    return group_codes(codes)


def unique_each(features: Sequence[WeightedJagged]) -> list[Unique]:
    """The different rows of each feature by itself; all are on CPU and have equally many rows."""
    found = _found([[feature] for feature in features])
    return [Unique(lookup, found.firsts.of(i)) for i, lookup in enumerate(found.inverse_lookup)]


class _Found(NamedTuple):
    """The unique samples of G groups of F features on CPU, before any is copied."""

    inverse_lookup: Tensor
    """[G, B]."""
    firsts: Firsts
    spans: Spans
    columns: Addresses
    """Each feature's ids, followed by its weights, if it has any."""


def _found(features: Sequence[Sequence[WeightedJagged]]) -> _Found:
    every = [feature for group in features for feature in group]
    columns = [feature.columns() for feature in every]
    owners = np.repeat(np.arange(len(every)), [len(parts) for parts in columns])
    ends = list(accumulate((len(group) for group in features), initial=0))
    lookups = torch.empty(len(features), every[0].lengths.numel(), dtype=torch.int64, device="cpu")
    lengths = addresses_of_lengths([feature.lengths for feature in every])
    addresses = Addresses.of([column for parts in columns for column in parts])
    bounds = np.searchsorted(owners, ends)
    firsts, spans = refine_groups(addresses, bounds, lengths, owners, lookups)
    return _Found(lookups, firsts, spans, addresses)


def _alike(features: Sequence[WeightedJagged]) -> bool:
    """Whether the features can be joined without converting ids, lengths or weights."""
    one = features[0]
    ids, lengths = one.values.dtype, one.lengths.dtype
    weights = None if one.weights is None else one.weights.dtype
    return all(
        feature.values.dtype == ids
        and feature.lengths.dtype == lengths
        and (None if feature.weights is None else feature.weights.dtype) == weights
        for feature in features
    )


def _one_by_one(features: Sequence[Sequence[WeightedJagged]]) -> Deduplicated:
    """What `deduplicate` returns, on any device and for any mixture of types."""
    unique = [unique_of_group(group) for group in features]
    picked = [
        feature.select(found.firsts)
        for group, found in zip(features, unique, strict=True)
        for feature in group
    ]
    return Deduplicated(
        WeightedJagged.joined(picked, padded=True),
        torch.stack([found.inverse_lookup for found in unique]),
        tuple(found.firsts.numel() for found in unique),
        [part.values.numel() for part in picked],
    )
