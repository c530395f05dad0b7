"""Holds a `dedup` converter to what trainers take for granted: that each sample keeps its ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError, PluginError
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import WeightedJagged

__all__ = ["check_samples", "copied_rows"]


def copied_rows(features: KeyedJaggedTensor) -> dict[str, WeightedJagged]:
    """Copies of each feature's rows, which stay the same whatever happens to the features."""
    return {
        key: WeightedJagged(
            rows.values.clone(),
            rows.lengths.clone(),
            None if rows.weights is None else rows.weights.clone(),
        )
        for key, rows in WeightedJagged.by_key(features).items()
    }


def check_samples(made: Any, given: Mapping[str, WeightedJagged], whose: str) -> None:
    """Raises `PluginError` if a converter's samples are not those that it was given, or its IKJT
    breaks the rules of the class."""
    if isinstance(made, InverseKeyedJaggedTensor):
        try:
            made.validate()
        except DataError as error:
            raise PluginError(f"{whose} returned what breaks its rules: {error}") from error
    if not isinstance(made, KeyedJaggedTensor | DeduplicatedFeatures):
        return
    all_rows = made.to_kjt() if isinstance(made, DeduplicatedFeatures) else made
    expanded = WeightedJagged.by_key(all_rows)
    for key, rows in given.items():
        back = expanded[key]
        if len(rows.lengths) != len(back.lengths):
            raise PluginError(
                f"{whose} returned {len(back.lengths)} samples of {key!r} for "
                f"{len(rows.lengths)}. Let the inverse lookup have a place for each."
            )
        sample = _first_that_differs(rows, back)
        if sample is None:
            continue
        before, after = (
            _in_words(one.select(torch.tensor([sample], device="cpu"))) for one in (rows, back)
        )
        raise PluginError(
            f"{whose} changes samples: {key!r} of sample {sample} of a batch was {before}, and is "
            f"{after}. Let samples share a row only if they are equal in all features of their "
            "group, with ids and weights in the same order; `check_record` of "
            "recd_plugins.api.testing shows which do."
        )


def _first_that_differs(one: WeightedJagged, other: WeightedJagged) -> int | None:
    """The first of B rows that differs between the two; None if none does."""
    longer = (one.lengths != other.lengths).nonzero()
    rows = int(longer[0]) if len(longer) else len(one.lengths)
    left, right = one.head(rows), other.head(rows)
    differ = left.values != right.values
    if left.weights is not None or right.weights is not None:
        weights, others = (each.weighing(torch.float32).double() for each in (left, right))
        differ |= (weights != others) & ~(weights.isnan() & others.isnan())
    ids = differ.nonzero()
    if len(ids):
        return int(torch.searchsorted(left.offsets, ids[0], right=True)) - 1
    return rows if len(longer) else None


def _in_words(row: WeightedJagged) -> str:
    ids, more = row.values[:8].tolist(), ", ..." if len(row.values) > 8 else ""
    shown = f"[{', '.join(map(str, ids))}{more}]"
    if row.weights is None:
        return shown
    return f"{shown} of weights [{', '.join(f'{one:g}' for one in row.weights[:8].tolist())}{more}]"
