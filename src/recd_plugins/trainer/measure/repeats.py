"""How often samples of a batch repeat, group by group of deduplicated features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor

__all__ = ["repeats"]


def repeats(batch: InverseKeyedJaggedTensor) -> list[dict[str, Any]]:
    """Of each group: its features with their dedupe factors, how many samples there are and how
    many are unique, and [copies, unique samples that have so many], copies rising."""
    found = []
    groups = zip(batch.groups, batch.inverse_lookup, batch.unique_counts, strict=True)
    for group, lookup, unique in groups:
        copies = torch.bincount(lookup, minlength=unique)
        numbers, counts = copies.unique(return_counts=True)
        found.append(
            {
                "features": {key: batch.dedupe_factor(key) for key in group},
                "samples": len(lookup),
                "unique": unique,
                "copies": torch.stack([numbers, counts], 1).tolist(),
            }
        )
    return found
