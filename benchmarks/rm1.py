"""A table like the paper's RM1: 16 sequence features in 5 groups, and many smaller ones.

Samples per session S = 16.5 and d = 0.95 for sequences, less for the rest. Measured: 86% of
all ids lie in lists that repeat the session's last sample (the paper: 81.6% of bytes).
"""

from __future__ import annotations

from recd_dlrm.datasets.sessions.dataset import SessionsConfig
from recd_dlrm.datasets.sessions.features import FeatureConfig

__all__ = ["GROUPS", "rm1_like"]

GROUPS: dict[str, tuple[int, float, bool]] = {
    "clicks": (4, 50, True),
    "views": (4, 60, True),
    "likes": (3, 40, True),
    "searches": (3, 20, False),
    "follows": (2, 30, False),
}
"""Sequence groups: how many features, their mean length, whether a change shifts the list."""


def rm1_like(samples: int, seed: int = 0) -> SessionsConfig:
    """The `sessions` dataset in RM1's proportions, about 6 KB of ids a sample."""
    sequences = [
        FeatureConfig(
            name=f"{group}_{i}",
            kind="user",
            num_ids=200_000,
            sequence=True,
            shift=shift,
            stay=0.95,
            group=group,
            length=length,
            min_length=1,
            max_length=round(2 * length),
        )
        for group, (count, length, shift) in GROUPS.items()
        for i in range(count)
    ]
    users = [
        FeatureConfig(name=f"user_{i}", kind="user", num_ids=50_000, stay=0.9, length=1 + i % 6)
        for i in range(24)
    ]
    items = [
        FeatureConfig(name=f"item_{i}", kind="item", num_ids=50_000, stay=0.1, length=1 + i % 3)
        for i in range(12)
    ]
    return SessionsConfig(
        samples=samples, features=(*sequences, *users, *items), dense=13, seed=seed
    )
