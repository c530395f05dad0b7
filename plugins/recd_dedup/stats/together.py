"""Which features change together, from sample to next sample of a session."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recd_dedup.stats.rows import I64

__all__ = ["agreement", "groups"]


def agreement(changes: I64) -> NDArray[np.float64]:
    """[F, F] of the samples in which either feature changes, the share in which both do.

    `changes` [F, F] counts those in which both do. Features that never change agree.
    """
    alone = np.diag(changes)
    either = alone[:, None] + alone[None, :] - changes
    shares: NDArray[np.float64] = np.where(either > 0, changes / np.maximum(either, 1), 1.0)
    return shares


def groups(
    features: Sequence[str], shares: NDArray[np.float64], least: float
) -> list[tuple[str, ...]]:
    """Features in groups of which every two agree by `least`: each joins the first that it can."""
    found: list[list[int]] = []
    for index in range(len(features)):
        for group in found:
            if (shares[index, group] >= least).all():
                group.append(index)
                break
        else:
            found.append([index])
    return [tuple(features[index] for index in group) for group in found]
