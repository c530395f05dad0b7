"""How many sessions have how many samples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recd_dedup.stats.rows import I64

__all__ = ["Histogram"]


@dataclass
class Histogram:
    """Exact: memory grows with the different sizes, not with the sessions."""

    sessions: Counter[int] = field(default_factory=Counter)
    """Samples of a session to how many sessions have as many."""

    def add(self, sizes: I64) -> None:
        """[R] samples of each session."""
        found, counts = np.unique(sizes, return_counts=True)
        self.sessions.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    @property
    def num_sessions(self) -> int:
        return self.sessions.total()

    @property
    def num_samples(self) -> int:
        return sum(size * count for size, count in self.sessions.items())

    @property
    def mean(self) -> float:
        """S: samples a session."""
        return self.num_samples / max(1, self.num_sessions)

    @property
    def largest(self) -> int:
        return max(self.sessions, default=0)

    def values(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "max": self.largest,
            "sessions": self.num_sessions,
            "histogram": [list(pair) for pair in sorted(self.sessions.items())],
        }
